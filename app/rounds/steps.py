"""The stages of `core.rounds.pipeline` with their doors to the store: each takes parcels, does its part, leaves a
parcel.

    snapshot   the pool as the round was asked for, the settings for this device, the round to go on from
    prepare    network inputs in the row cache (and as a file, where machines share the round)
    train      a model file (with checkpoints on the way), or none before there is anything to learn
    predict    probabilities and embeddings of all rows               cut into units of rows
    features   kernel features of the rows strategies see             cut into units of rows
    select     the picks and their reasons
    map        points, starting from the last map
    finish     everything becomes visible in one transaction; what the last picks bought is added to them

A unit is worth its overhead (about a second on the queue) only for many rows, and where there is someone to share with:
below twice `UNIT_ROWS`, or with one living worker and fewer than ten units, a stage runs in one piece.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.rounds import distributed_training, stage_outputs
from app.rounds.estimates import STAGES as ORDER
from app.rounds.shared_inputs import open_inputs, put_inputs
from app.rounds.stage_outputs import Parcel
from core.config import RoundConfig, from_dict
from core.errors import NotFound
from core.kernels.nystrom import KernelFeatures
from core.learning.training import TrainedModel, load_model, save_model
from core.media.inputs import Inputs
from core.rounds import candidates, pipeline
from core.rounds.context import Candidates, Featured, PoolPredictions, Previous, Work
from core.runtime import Runtime
from core.types import PoolSnapshot, Report
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.rounds import workers
from storage.rounds.artifacts import ArtifactRef
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.row_cache import FolderRowCache

SHARED = ("predict", "features")
FINISHED = "finished"  # the note of the row that says a stage is over
UNIT_ROWS = {"predict": 20_000, "features": 2_000}
ALONE = 10  # units that one worker alone does without cutting

_last_inputs: tuple[tuple[int, str], Inputs] | None = None  # of the round this process worked on last


class StageContext:
    """One stage's workplace: the store's side of `core.rounds.pipeline.Work`."""

    def __init__(self, store: Store, row: RoundRow, parcels: Mapping[str, Parcel], report: Report) -> None:
        self.store, self.row, self.parcels, self.report = store, row, parcels, report
        self.folder = store.artifacts
        self.log = RoundLog(store, row.project_id)

    @property
    def config(self) -> RoundConfig:
        return from_dict(RoundConfig, self.parcels["snapshot"]["config"])

    @property
    def snapshot(self) -> PoolSnapshot:
        return stage_outputs.open_snapshot(self.folder, self.parcels["snapshot"]["snapshot"])

    def work(self) -> Work:
        config, snapshot = self.config, self.snapshot
        region, share = self._region(snapshot)
        runtime = Runtime.create(config.seed)
        return Work(
            snapshot=snapshot,
            config=config,
            read=shared_media.reader(self.store, self.row.project_id),
            cache=FolderRowCache(self.store.home / "cache" / "rows"),
            runtime=runtime,
            previous=self._previous(runtime),
            region=region,
            region_share=share,
            offered=self._offered(snapshot),
            checkpoints=self.checkpoints(),
            report=self.report,
        )

    def inputs(self, work: Work) -> Inputs:
        """Read once per round and process."""
        global _last_inputs
        key = (self.row.id, str(self.parcels["snapshot"]["snapshot"]["sha256"]))
        if _last_inputs is None or _last_inputs[0] != key:
            left = self.parcels.get("prepare", {}).get("inputs")
            kind, media = work.snapshot.kind, work.config.media
            found = open_inputs(self.folder, left, kind, media, work.cache) if left else pipeline.prepare(work)
            _last_inputs = (key, found)
        return _last_inputs[1]

    def checkpoints(self) -> Path:
        """Where other workers find them too, if the artifact folder is one of the file system."""
        folder = self.store.home / "cache" if self.folder.remote else self.folder.folder
        return Path(folder) / "checkpoints" / f"round-{self.row.id}"

    def _region(self, snapshot: PoolSnapshot) -> tuple[NDArray[np.bool_] | None, float]:
        constraint = self.row.constraint
        if not constraint.get("region"):
            return None, 1.0
        item_ids = stage_outputs.open_array(self.folder, constraint["region"])
        return np.isin(snapshot.item_ids, item_ids), float(constraint.get("share", 1.0))

    def _offered(self, snapshot: PoolSnapshot) -> NDArray[np.bool_] | None:
        left = self.row.constraint.get("candidates")
        return np.isin(snapshot.item_ids, stage_outputs.open_array(self.folder, left)) if left else None

    def _previous(self, runtime: Runtime) -> Previous | None:
        round_id = self.parcels["snapshot"]["previous"]
        if round_id is None:
            return None
        before = self.log.get(round_id)
        model, kernel = self._left(round_id, "model"), self._left(round_id, "kernel")
        return Previous(
            item_ids=np.asarray(self.log.arrays(round_id, "item_ids")),
            map_points=np.asarray(self.log.arrays(round_id, "map")),
            class_names=tuple(before.metrics.get("class_names", ())),
            model=load_model(self.folder.path(model), runtime) if model else None,
            landmarks=stage_outputs.open_landmarks(self.folder, kernel) if kernel else None,
        )

    def _left(self, round_id: int, kind: str) -> ArtifactRef | None:
        try:
            return self.log.artifact(round_id, kind)
        except NotFound:
            return None

    def model(self, runtime: Runtime) -> TrainedModel | None:
        parcel = self.parcels["train"]["model"]
        return load_model(self.folder.path(stage_outputs.to_ref(parcel)), runtime) if parcel else None

    def guesses(self) -> PoolPredictions:
        found = self.parcels["predict"]
        return PoolPredictions(
            probabilities=self._array(found["probabilities"]),
            embeddings=self._array(found["embeddings"]),
            view_probabilities=self._array(found["views"]) if found["views"] else None,
            has_model=bool(self.parcels["train"]["model"]),
            likeness=stage_outputs.open_similarity_graph(self.folder, found.get("likeness")),
            n_changed=int(found.get("changed", 0)),
        )

    def kernel(self, work: Work, parcel: Parcel) -> KernelFeatures:
        return stage_outputs.open_kernel(self.folder, parcel, work.config.kernel, work.cache, work.runtime.device)

    def featured(self, work: Work) -> Featured:
        found = self.parcels["features"]
        return Featured(features=self._array(found["features"]), kernel=self.kernel(work, found["kernel"]))

    def candidates(self) -> Candidates:
        found = self.parcels["features"]
        return Candidates(rows=np.asarray(self._array(found["rows"])), notes=tuple(found["notes"]))

    def _array(self, parcel: Mapping[str, Any]) -> NDArray[Any]:
        return stage_outputs.open_array(self.folder, parcel)

    def put(self, array: NDArray[Any]) -> Parcel:
        return stage_outputs.put_array(self.folder, array)


def perform(stage: str, bench: StageContext, units: Sequence[Parcel] = ()) -> Parcel:
    """One stage, or the plan of a shared one; `units` are the parcels of the units, if it was cut."""
    if stage.startswith("plan "):
        return plan(stage.removeprefix("plan "), bench)
    if units:
        return JOIN[stage](bench, units)
    return ALL[stage](bench)


def plan(stage: str, bench: StageContext) -> Parcel:
    """The rows of each unit; none when the stage runs in one piece. For features also the kernel, fitted once."""
    work = bench.work()
    n_rows, made = len(work.snapshot.item_ids), {}
    if stage == "features":
        inputs = bench.inputs(work)
        n_rows = len(candidates.choose_candidates(work, inputs).rows)
        chosen = candidates.choose_landmarks(work, inputs)
        made = {"kernel": stage_outputs.put_kernel(bench.folder, candidates.fit_kernel(work, inputs, chosen), chosen)}
    size = int(os.environ.get("WINNOW_UNIT_ROWS") or UNIT_ROWS[stage])
    n_workers = len(workers.living_workers(bench.store))
    if n_rows < 2 * size or (n_workers < 2 and n_rows < ALONE * size):
        return {"units": [], **made}
    return {"units": [[start, min(start + size, n_rows)] for start in range(0, n_rows, size)], **made}


def perform_unit(stage: str, bench: StageContext, start: int, stop: int) -> Parcel:
    return UNIT[stage](bench, start, stop)


def take_snapshot(bench: StageContext) -> Parcel:
    row = bench.row
    shared_media.share(bench.store, row.project_id, row.last_item_id, bench.report)
    snapshot = Pool(bench.store, row.project_id).snapshot(row)
    config = pipeline.settled(row.config, Runtime.create(row.config.seed))
    return {
        "snapshot": stage_outputs.put_snapshot(bench.folder, snapshot),
        "config": dataclasses.asdict(config),
        "previous": previous_round(bench.log, row),
    }


def previous_round(log: RoundLog, row: RoundRow) -> int | None:
    """The round this one goes on from: for a replay, the one its original went on from."""
    if row.replay_of is not None:
        found = log.get(row.replay_of).metrics.get("previous_round")
        return int(found) if found is not None else None
    earlier = [
        other.id
        for other in log.list()
        if other.status == "finished" and other.number < row.number and other.replay_of is None
    ]
    return earlier[0] if earlier else None


def prepare(bench: StageContext) -> Parcel:
    inputs = bench.inputs(bench.work())
    left = put_inputs(bench.folder, inputs, bench.report) if shared_media.is_shared(bench.store) else None
    return {"readable": int(inputs.readable.sum()), "inputs": left}


def train(bench: StageContext) -> Parcel:
    work = bench.work()
    if pipeline.why_no_model(work, bench.inputs(work)):
        return {"model": None}
    with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
        path = Path(folder) / "model.safetensors"
        if (n_processes := distributed_training.size()) > 1:
            path = distributed_training.train_together(bench, n_processes, Path(folder))
        elif model := pipeline.learn(work, bench.inputs(work)):
            save_model(model, path)
        return {"model": stage_outputs.to_dict(bench.folder.put_file(path))}


def predict_unit(bench: StageContext, start: int, stop: int) -> Parcel:
    work = bench.work()
    return _put_guesses(bench, _guess(bench, work, np.arange(start, stop)))


def predict(bench: StageContext) -> Parcel:
    work = bench.work()
    return _put_guesses(bench, _settle(bench, work, _guess(bench, work, np.arange(len(work.snapshot.item_ids)))))


def join_predictions(bench: StageContext, units: Sequence[Parcel]) -> Parcel:
    """Units guess for themselves; what is alike concerns the whole pool."""
    joined = PoolPredictions(
        probabilities=_parts(bench, units, "probabilities"),
        embeddings=_parts(bench, units, "embeddings"),
        view_probabilities=_parts(bench, units, "views", axis=1) if units[0]["views"] else None,
        has_model=bool(bench.parcels["train"]["model"]),
    )
    return _put_guesses(bench, _settle(bench, bench.work(), joined))


def _guess(bench: StageContext, work: Work, rows: NDArray[np.int64]) -> PoolPredictions:
    return pipeline.guess(work, bench.inputs(work), bench.model(work.runtime), rows)


def _settle(bench: StageContext, work: Work, guesses: PoolPredictions) -> PoolPredictions:
    return pipeline.settle(work, guesses, pipeline.listen(work, bench.inputs(work)))


def _put_guesses(bench: StageContext, found: PoolPredictions) -> Parcel:
    return {
        "probabilities": bench.put(found.probabilities),
        "embeddings": bench.put(found.embeddings),
        "views": bench.put(found.view_probabilities) if found.view_probabilities is not None else None,
        "likeness": stage_outputs.put_similarity_graph(bench.folder, found.likeness),
        "changed": found.n_changed,
    }


def _parts(bench: StageContext, units: Sequence[Parcel], name: str, axis: int = 0) -> NDArray[Any]:
    return np.concatenate([stage_outputs.open_array(bench.folder, unit[name]) for unit in units], axis)


def features_unit(bench: StageContext, start: int, stop: int) -> Parcel:
    work = bench.work()
    inputs = bench.inputs(work)
    rows = candidates.choose_candidates(work, inputs).rows[start:stop]
    kernel = bench.kernel(work, bench.parcels["plan features"]["kernel"])
    return {"features": bench.put(candidates.kernel_features(work, inputs, kernel, rows))}


def features(bench: StageContext) -> Parcel:
    work = bench.work()
    inputs = bench.inputs(work)
    chosen = candidates.choose_candidates(work, inputs)
    kernel = bench.kernel(work, bench.parcels["plan features"]["kernel"])
    found = candidates.kernel_features(work, inputs, kernel, chosen.rows)
    return _candidate_parcel(bench, chosen) | {"features": bench.put(found)}


def join_features(bench: StageContext, units: Sequence[Parcel]) -> Parcel:
    work = bench.work()
    chosen = candidates.choose_candidates(work, bench.inputs(work))
    return _candidate_parcel(bench, chosen) | {"features": bench.put(_parts(bench, units, "features"))}


def _candidate_parcel(bench: StageContext, chosen: Candidates) -> Parcel:
    return {
        "rows": bench.put(chosen.rows),
        "notes": list(chosen.notes),
        "kernel": bench.parcels["plan features"]["kernel"],
    }


def select(bench: StageContext) -> Parcel:
    work = bench.work()
    selection = pipeline.choose(work, bench.inputs(work), bench.guesses(), bench.candidates(), bench.featured(work))
    return {"selection": stage_outputs.put_selection(bench.folder, selection)}


def draw_map(bench: StageContext) -> Parcel:
    selection = stage_outputs.open_selection(bench.folder, bench.parcels["select"]["selection"])
    return {"map": bench.put(pipeline.draw_map(bench.work(), bench.guesses(), selection))}


def finish(bench: StageContext) -> Parcel:
    from app.rounds.finish import finish_round

    return finish_round(bench)


ALL: dict[str, Callable[[StageContext], Parcel]] = {
    "snapshot": take_snapshot,
    "prepare": prepare,
    "train": train,
    "predict": predict,
    "features": features,
    "select": select,
    "map": draw_map,
    "finish": finish,
}
UNIT: dict[str, Callable[[StageContext, int, int], Parcel]] = {"predict": predict_unit, "features": features_unit}
JOIN: dict[str, Callable[[StageContext, Sequence[Parcel]], Parcel]] = {
    "predict": join_predictions,
    "features": join_features,
}
assert tuple(ALL) == ORDER
