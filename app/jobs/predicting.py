"""Predictions of a round's model for files outside the project, and for items of the project.

Threads decode files ahead of the network, predictions are written block by block, and an interrupted run can be
resumed. Memory use does not depend on the number of files, except for eight bytes per file of the interrupted run.
Recordings can be predicted in windows (`app.jobs.predict_windows`).

This module loads torch. It runs in the process of the command line or of a job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.jobs.predict_windows import SUFFIXES, list_units, write_tracks
from app.rounds.model import RoundModel, open_round_model
from core.config import require
from core.errors import InvalidInput, NotFound
from core.learning.file_predictor import BLOCK, FilePredictions
from core.types import Progress, Report, ignore
from storage.database.store import Store
from storage.exporting.models.predictions import PROBABILITY, PredictionTable, check_predictions_target
from storage.exporting.span_tables import SpanFormat
from storage.labeling.labeled_items import item_names
from storage.media.windows import WindowOptions
from storage.rounds.log import RoundLog

READERS = 4  # threads that read and decode
NEIGHBOR_ROWS = 8_192  # labeled items compared at once
NAMED = 20  # unreadable files that the report lists; the table has all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """What to predict, the round whose model to use, and where to write the table."""

    paths: tuple[str, ...]
    target: str
    round: str | None = None  # number or name; None: the newest round with a model
    all_probabilities: bool = False
    overwrite: bool = False
    windows: WindowOptions | None = None  # cut sounds that are longer than one window into windows
    tracks: SpanFormat | None = None  # also write label tracks or selection tables, in a folder next to the table
    tracks_above: float = 0.0  # the lowest confidence of a prediction in the tracks


def predict_files(store: Store, project_id: int, options: PredictOptions, report: Report = ignore) -> dict[str, Any]:
    """Write the table of predictions. Returns counts and the first unreadable files."""
    target = check_predictions_target(Path(options.target), options.overwrite)
    found = open_round_model(store, project_id, options.round)
    kind = found.snapshot.kind
    require(kind == "audio" or not (options.windows or options.tracks), "Only recordings have windows and tracks.")
    listed = partial(list_units, options.paths, kind, options.windows, measured=options.tracks is not None)
    total = sum(1 for _ in listed())
    if total == 0:
        raise InvalidInput(f"There are no {kind} files ({', '.join(SUFFIXES[kind])}) in {', '.join(options.paths)}.")
    about: dict[str, Any] = {"paths": list(options.paths)}
    if options.windows is not None:
        about["windows"] = [options.windows.seconds, options.windows.step]
    table = prediction_table(found, target, about, all_probabilities=options.all_probabilities)
    table.begin(fresh=options.overwrite)
    waiting = (one for one in listed() if not table.has(str(one.path), one.start))
    entries = (Entry(str(one.path), one.read, None, one.start, one.end) for one in waiting)
    tracks = {}

    def before_the_end() -> None:
        if options.tracks is not None:
            made = write_tracks(table, options.tracks, options.tracks_above, overwrite=options.overwrite)
            tracks["tracks"] = str(made)

    done = predict_entries(found, table, entries, total, report, before_the_end)
    return done | tracks


def predict_entries(
    found: RoundModel,
    table: PredictionTable,
    entries: Iterator[Entry],
    total: int,
    report: Report,
    before_the_end: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Add a row for each entry and write the table. Returns counts and the first unreadable entries.

    `before_the_end` is called after the last row has been added and before the table is written.
    """
    run = _Run(found, table.has_probabilities)
    done = table.n_done
    for block in run.decoded_blocks(entries):
        report(Progress("predict", done, total))
        table.append(run.rows(block))
        done += len(block)
    before_the_end()
    table.finish()
    report(Progress("predict", total, total))
    return {
        "target": str(table.target),
        "round": found.row.number,
        "files": done,
        "continued": table.n_done,
        "unreadable": run.n_unreadable,
        "unreadable_files": run.unreadable,
    }


def prediction_table(
    found: RoundModel, target: Path, about: dict[str, Any], *, all_probabilities: bool, of_items: bool = False
) -> PredictionTable:
    """The table of one run. `about` describes the input; only a run with the same description can resume the table."""
    names = [one.name for one in found.classes]
    artifact = RoundLog(found.of.store, found.row.project_id).artifact(found.row.id, "model")
    run = {"round": found.row.number, "model": artifact.sha256, "classes": names, "all": all_probabilities, **about}
    return PredictionTable(target, run, names if all_probabilities else (), of_items=of_items)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file to predict. `read` returns its bytes or raises OSError, InvalidInput or NotFound."""

    name: str
    read: Callable[[], bytes]
    item_id: int | None = None  # for items of the project
    start: float | None = None  # of a window, in seconds
    end: float | None = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded file: its content, or the reason why it cannot be read."""

    entry: Entry
    item: NDArray[Any] | None
    error: str = ""


class _Run:
    def __init__(self, found: RoundModel, all_probabilities: bool) -> None:
        self.found, self.all_probabilities = found, all_probabilities
        self.predictor = found.predictor
        self.decode = self.predictor.decode
        self.nearest = nearest_labeled(found)
        self.names = [one.name for one in found.classes]
        self.n_unreadable, self.unreadable = 0, list[dict[str, str]]()

    def decoded_blocks(self, entries: Iterator[Entry]) -> Iterator[list[Decoded]]:
        """Yield blocks of decoded files, in order. The next block is decoded while the caller processes this one."""
        with ThreadPoolExecutor(READERS, "winnow-decode") as threads:
            ahead: deque[list[Future[Decoded]]] = deque()
            try:
                while True:
                    while len(ahead) < 2 and (block := list(islice(entries, BLOCK))):
                        ahead.append([threads.submit(self._read, entry) for entry in block])
                    if not ahead:
                        return
                    yield [one.result() for one in ahead.popleft()]
            finally:
                threads.shutdown(wait=True, cancel_futures=True)

    def _read(self, entry: Entry) -> Decoded:
        try:
            return Decoded(entry, self.decode(entry.read()))
        except (InvalidInput, NotFound) as problem:
            return Decoded(entry, None, str(problem))
        except OSError as problem:
            return Decoded(entry, None, problem.strerror or str(problem))

    def rows(self, block: Sequence[Decoded]) -> list[dict[str, Any]]:
        """The table rows of a block, including those of unreadable files."""
        items = [one.item for one in block if one.item is not None]
        made = iter(self._predicted(self.predictor.predict(items)) if items else ())
        rows = []
        for one in block:
            values: dict[str, Any] = {"file": one.entry.name, "round": self.found.row.number}
            values |= {"start": one.entry.start, "end": one.entry.end}
            values |= {} if one.entry.item_id is None else {"item_id": one.entry.item_id}
            if one.item is None:
                self.n_unreadable += 1
                if len(self.unreadable) < NAMED:
                    self.unreadable.append({"file": one.entry.name, "error": one.error})
                rows.append(values | {"error": one.error})
            else:
                rows.append(values | next(made))
        return rows

    def _predicted(self, found: FilePredictions) -> Iterator[dict[str, Any]]:
        p = found.probabilities.astype(np.float64)
        best, entropy = p.argmax(1), -(p * np.log(np.maximum(p, 1e-300))).sum(1)
        near = self.nearest.of(found.embeddings)
        for row, column in enumerate(best):
            values = {
                "class": self.names[column],
                "confidence": round(float(p[row, column]), 6),
                "entropy": round(float(entropy[row]), 6) + 0.0,
                **near[row],
            }
            if self.all_probabilities:
                values |= {
                    PROBABILITY + name: round(float(one), 6) for name, one in zip(self.names, p[row], strict=True)
                }
            yield values


@dataclass(frozen=True, slots=True)
class NearestLabeled:
    """The labeled items of a round with their embeddings in the last layer of its network."""

    item_ids: NDArray[np.int64]  # (m,)
    item_names: Sequence[str]
    class_names: Sequence[str]  # (m,) the label of each item
    embeddings: NDArray[np.float32]  # (m, e)

    def of(self, embeddings: NDArray[np.float32]) -> list[dict[str, Any]]:
        """The nearest labeled item for each row of `embeddings` (n, e), by Euclidean distance."""
        best, distance = np.zeros(len(embeddings), np.int64), np.full(len(embeddings), np.inf)
        wide = embeddings.astype(np.float64)
        for start in range(0, len(self.item_ids), NEIGHBOR_ROWS):
            part = self.embeddings[start : start + NEIGHBOR_ROWS].astype(np.float64)
            squares = (wide**2).sum(1)[:, None] - 2 * wide @ part.T + (part**2).sum(1)
            at = squares.argmin(1)
            found = squares[np.arange(len(wide)), at]
            closer = found < distance
            best[closer], distance[closer] = start + at[closer], found[closer]
        exact = np.linalg.norm(wide - self.embeddings[best], axis=1)
        return [
            {
                "nearest_item": self.item_names[row],
                "nearest_item_id": int(self.item_ids[row]),
                "nearest_class": self.class_names[row],
                "nearest_distance": round(float(length), 6),
            }
            for row, length in zip(best.tolist(), exact, strict=True)
        ]


def nearest_labeled(found: RoundModel) -> NearestLabeled:
    """The labeled items, read from the arrays that the round stored."""
    snapshot, log = found.snapshot, RoundLog(found.of.store, found.row.project_id)
    rows = np.flatnonzero(snapshot.labeled)
    ids = snapshot.item_ids[rows]
    names = item_names(found.of.store, found.row.project_id, ids.tolist())
    return NearestLabeled(
        item_ids=ids,
        item_names=[names.get(item_id, "") for item_id in ids.tolist()],
        class_names=[snapshot.class_names[label] for label in snapshot.labels[rows]],
        embeddings=np.asarray(log.arrays(found.row.id, "embeddings")[rows], np.float32),
    )
