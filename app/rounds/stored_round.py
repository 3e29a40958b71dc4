"""A round in the store: its row, the results of its finished steps, and the context in which its stages run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from app.rounds import stage_outputs
from app.rounds.artifact_refs import to_dict
from app.rounds.stage_outputs import Place, Stored
from core.config import RoundConfig, from_stored
from core.encoders.choice import encoder_of
from core.errors import InvalidInput, NotFound
from core.labels.earlier_predictions import EarlierRound
from core.learning.training import TrainedModel, load_model
from core.media.inputs import Inputs
from core.rounds.approach.deciding import apply_decision
from core.rounds.approach.evidence import PastRound
from core.rounds.context import Landmarks, Previous, StageContext
from core.rounds.embedding_map import PreviousMap
from core.rounds.outputs import Approach
from core.rounds.stage import Outputs
from core.rounds.stages import STAGES
from core.runtime import Runtime
from core.types import PoolSnapshot, Report
from storage.database.store import Store
from storage.media import shared as shared_media
from storage.media.checks import is_shared
from storage.rounds.artifacts import ArtifactRef
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.row_cache import FolderRowCache

Output = TypeVar("Output")
Loaded = TypeVar("Loaded")
SNAPSHOT, FINISH = "snapshot", "finish"  # the steps before and after the stages
NAME_OF = {stage.gives: stage.name for stage in STAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStart:
    """The output of the step "snapshot", on which all stages are based."""

    snapshot: PoolSnapshot
    config: RoundConfig  # with the preset resolved for the device of the worker
    previous_round: int | None  # id of the round this one continues


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step, which passes through the engine as JSON."""

    output: Stored | None = None  # None: the stage was skipped, because no later stage reads its output
    units: tuple[tuple[int, int], ...] = ()  # of a plan: the rows of each unit
    common: Stored | None = None  # of a plan: the common input of the units
    seconds: float = 0.0
    notes: tuple[str, ...] = ()  # notes on this step that the finished round shows
    ended: str = ""  # the status of the round if it ended in this step
    error: str = ""  # the error of a failed unit
    log: str = ""

    def to_dict(self) -> Stored:
        return dataclasses.asdict(self) | {"units": [list(unit) for unit in self.units]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StepResult:
        units = tuple((int(start), int(stop)) for start, stop in values["units"])
        return cls(**{**values, "units": units, "notes": tuple(values["notes"])})


class StoredRound:
    """A round, opened for one of its steps. `results` are the results of the earlier steps, by name."""

    def __init__(self, store: Store, row: RoundRow, results: Mapping[str, Stored], report: Report) -> None:
        self.store, self.row, self.report = store, row, report
        self.results = {name: StepResult.from_dict(values) for name, values in results.items()}
        self.folder = store.artifacts
        self.log = RoundLog(store, row.project_id)
        self.notes: list[str] = []  # notes of the step that runs with this object

    @cached_property
    def place(self) -> Place:
        return Place(folder=self.folder, context=lambda: self.context, shares_inputs=is_shared(self.store))

    @cached_property
    def start(self) -> RoundStart:
        """The start of the round: the output of its first step or, after it has finished, the data in its row."""
        if self.row.status == "finished":
            return self._start_of_finished()
        return stage_outputs.open_output(self.place, RoundStart, self.results[SNAPSHOT].output or {})

    @cached_property
    def outputs(self) -> StoredOutputs:
        return StoredOutputs(self)

    @cached_property
    def context(self) -> StageContext:
        """The context of the stages. Results of the previous round are opened only when a stage reads them."""
        start = self.start
        region, share = self._region(start.snapshot)
        runtime = Runtime.create(start.config.seed)
        context = StageContext(
            snapshot=start.snapshot,
            config=start.config,
            read=shared_media.reader(self.store, self.row.project_id),
            cache=FolderRowCache(self.store.home / "cache" / "rows"),
            runtime=runtime,
            previous=self._previous(start.previous_round, runtime),
            region=region,
            region_share=share,
            offered=self._offered(start.snapshot),
            encoder=encoder_of(start.config.encoder, self.store.home),
            checkpoints=self.checkpoints(),
            report=self.report,
        )
        decided = self.results.get(NAME_OF[Approach])
        if decided is None or decided.output is None:
            return context
        return apply_decision(context, stage_outputs.open_output(self.place, Approach, decided.output))

    def _start_of_finished(self) -> RoundStart:
        ref = self.log.artifact(self.row.id, "snapshot")
        return RoundStart(
            snapshot=stage_outputs.open_snapshot(self.place, to_dict(ref)),
            config=from_stored(RoundConfig, self.row.metrics["settings"]),
            previous_round=self.row.metrics.get("previous_round"),
        )

    def checkpoints(self) -> Path:
        """The folder of checkpoints: in the artifact folder, which other workers share, unless that is remote."""
        folder = self.store.home / "cache" if self.folder.remote else self.folder.folder
        return Path(folder) / "checkpoints" / f"round-{self.row.id}"

    def artifact(self, round_id: int, *kinds: str) -> ArtifactRef | None:
        """The first of these artifacts that the round has. None if it has none."""
        return find_artifact(self.log, round_id, *kinds)

    def _region(self, snapshot: PoolSnapshot) -> tuple[NDArray[np.bool_] | None, float]:
        constraint = self.row.constraint
        if not constraint.get("region"):
            return None, 1.0
        item_ids = stage_outputs.open_array(self.folder, constraint["region"])
        return np.isin(snapshot.item_ids, item_ids), float(constraint.get("share", 1.0))

    def _offered(self, snapshot: PoolSnapshot) -> NDArray[np.bool_] | None:
        stored = self.row.constraint.get("candidates")
        return np.isin(snapshot.item_ids, stage_outputs.open_array(self.folder, stored)) if stored else None

    def _previous(self, round_id: int | None, runtime: Runtime) -> Previous:
        if round_id is None:
            return Previous()

        def load_previous_model() -> TrainedModel | None:
            if self.artifact(round_id, "model") is None:
                return None
            return load_model(self.log.file(round_id, "model"), runtime)

        def load_map() -> PreviousMap:
            item_ids, points = (np.asarray(self.log.arrays(round_id, kind)) for kind in ("item_ids", "map"))
            return PreviousMap(item_ids=item_ids, points=points)

        return Previous(
            class_names=tuple(self.log.get(round_id).metrics.get("class_names", ())),
            load_model=lambda: self.load_or_note("model", load_previous_model),
            load_landmarks=lambda: self.load_or_note("kernel", lambda: last_landmarks(self.log, round_id)),
            load_map=lambda: self.load_or_note("map", load_map),
            load_past=lambda: past_rounds(self.log, round_id),
            load_predictions=lambda: self._earlier_rounds(round_id),
        )

    def _earlier_rounds(self, round_id: int | None) -> Iterator[EarlierRound]:
        """The chain of rounds that ends with this one, from the newest on."""
        while round_id is not None:
            row = self.log.get(round_id)
            with contextlib.suppress(NotFound, InvalidInput, OSError):
                snapshot = self.log.artifact(round_id, "snapshot")
                yield stage_outputs.open_earlier_round(self.folder, snapshot, partial(self._predictions, round_id))
            before = row.metrics.get("previous_round")
            round_id = int(before) if before is not None else None

    def _predictions(self, round_id: int) -> NDArray[np.floating] | None:
        """The predictions of a round; None if they cannot be read."""
        with contextlib.suppress(NotFound, InvalidInput, OSError):
            return self.log.arrays(round_id, "probabilities")
        return None

    def load_or_note(self, part: str, load: Callable[[], Loaded | None]) -> Loaded | None:
        """Load a result of the previous round. If it cannot be read, add a note and return None."""
        try:
            return load()
        except (NotFound, InvalidInput) as problem:
            self.notes.append(f"This round started without the {part} of the previous round. {problem}")
            return None


def find_artifact(log: RoundLog, round_id: int, *kinds: str) -> ArtifactRef | None:
    """The first of these artifacts that the round has. None if it has none."""
    for kind in kinds:
        try:
            return log.artifact(round_id, kind)
        except NotFound:
            continue
    return None


def last_landmarks(log: RoundLog, round_id: int | None) -> Landmarks | None:
    """The landmarks of this round, or of the newest earlier round that computed kernel features."""
    while round_id is not None:
        if find_artifact(log, round_id, "kernel") is not None:
            return stage_outputs.open_landmarks(log.file(round_id, "kernel"))
        before = log.get(round_id).metrics.get("previous_round")
        round_id = int(before) if before is not None else None
    return None


def past_rounds(log: RoundLog, round_id: int | None) -> tuple[PastRound, ...]:
    """The chain of rounds with the preset `auto` that ends with this one, oldest first. A round whose predictions have
    been removed counts as one that trained only one approach."""
    found: list[PastRound] = []
    while round_id is not None:
        row = log.get(round_id)
        stored, encoder = row.metrics.get("approach"), (row.metrics.get("settings") or {}).get("encoder") or {}
        if stored:
            both = item_ids = None
            with contextlib.suppress(NotFound, InvalidInput, OSError):
                item_ids, both = (np.asarray(log.arrays(round_id, kind)) for kind in ("item_ids", "both_classes"))
            found.append(
                PastRound(
                    n_labels=int(row.metrics["n_labeled"]),
                    encoder=str(stored["encoder"]),
                    uses_encoder=bool(encoder.get("identity")),
                    class_names=tuple(row.metrics.get("class_names", ())),
                    item_ids=item_ids,
                    classes=both,
                )
            )
        before = row.metrics.get("previous_round")
        round_id = int(before) if before is not None else None
    return tuple(reversed(found))


_last_inputs: tuple[tuple[int, int], Inputs] | None = None  # the inputs of this process's last round


class StoredOutputs(Outputs):
    """The outputs of a round's finished steps. Each is opened when it is first read."""

    def __init__(self, of: StoredRound) -> None:
        super().__init__()
        self.round = of

    def has(self, gives: type) -> bool:
        return super().has(gives) or NAME_OF.get(gives) in self.round.results

    def find(self, gives: type[Output]) -> Output | None:
        if not super().has(gives) and self.has(gives):
            stored = self.round.results[NAME_OF[gives]].output
            self.add(gives, None if stored is None else self._open(gives, stored))
        return super().find(gives)

    def _open(self, gives: type[Output], stored: Stored) -> Output:
        if gives is Inputs:
            return cast(Output, open_round_inputs(self.round, stored))
        return stage_outputs.open_output(self.round.place, gives, stored)


def open_round_inputs(of: StoredRound, stored: Stored | None = None) -> Inputs:
    """The inputs of a round, opened once per round and process. They are prepared again if `stored` is empty."""
    global _last_inputs
    key = _inputs_key(of)
    if _last_inputs is None or _last_inputs[0] != key:
        _last_inputs = (key, stage_outputs.open_output(of.place, Inputs, stored or {}))
    return _last_inputs[1]


def keep_inputs(of: StoredRound, inputs: Inputs) -> None:
    """Keep the inputs for later steps of the round in this process, which then do not open them again."""
    global _last_inputs
    _last_inputs = (_inputs_key(of), inputs)


def _inputs_key(of: StoredRound) -> tuple[int, int]:
    return of.row.id, hash(of.start.snapshot.hashes)
