"""The durable steps of a round: the stages of `core.rounds.stages` between "snapshot" and "finish".

Each step opens the outputs it needs from the artifact folder (`app.rounds.stored_round`), runs one stage, and stores
its output (`app.rounds.stage_outputs`). A stage with a split is preceded by a step "plan ...", which divides its rows
into units for several workers.

Each unit costs about a second on the queue, so dividing pays only for many rows and several workers. A stage runs in
one piece if it has fewer than twice its `unit_rows`, or if there is one living worker and fewer than ten units.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.rounds import distributed_training, stage_outputs
from app.rounds.artifact_refs import to_dict
from app.rounds.finish import finish_round
from app.rounds.stage_outputs import Stored
from app.rounds.stored_audition import preferred_encoder
from app.rounds.stored_round import FINISH, SNAPSHOT, RoundStart, StepResult, StoredRound, keep_inputs
from core.config import RoundConfig
from core.encoders.choice import encoder_of, resolve_encoder
from core.learning.training import load_model
from core.media.inputs import Inputs
from core.rounds.approach.presets import resolve_at_start
from core.rounds.candidates import why_no_model
from core.rounds.context import StageContext
from core.rounds.outputs import LabelTrust, TrainingResult
from core.rounds.stage import Stage, run_stage
from core.rounds.stages import STAGES, TRAIN
from core.runtime import Runtime
from core.types import PoolSnapshot
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.projects.projects import get_project
from storage.rounds import workers
from storage.rounds.log import RoundLog, RoundRow

ONE_WORKER_UNITS = 10  # with fewer units, a single worker runs the stage in one piece
PLAN = "plan "

BY_NAME: dict[str, Stage[Any]] = {stage.name: stage for stage in STAGES}
ORDER = (SNAPSHOT, *BY_NAME, FINISH)
SPLIT = tuple(stage.name for stage in STAGES if stage.split is not None)


def perform(name: str, of: StoredRound, units: Sequence[Stored] = ()) -> StepResult:
    """Run one step. `units` are the outputs of its units if the stage was divided."""
    if name.startswith(PLAN):
        result = plan(BY_NAME[name.removeprefix(PLAN)], of)
    else:
        result = STEPS[name](of, units) if units else STEPS[name](of)
    return dataclasses.replace(result, notes=tuple(of.notes))


def perform_unit(name: str, of: StoredRound, start: int, stop: int) -> StepResult:
    """Run the rows from `start` to `stop` of a divided stage."""
    return UNIT_STEPS[name](of, start, stop)


def take_snapshot(of: StoredRound) -> StepResult:
    """Snapshot the pool as of the request of the round, and resolve the settings for this device."""
    row = of.row
    shared_media.share(of.store, row.project_id, row.last_item_id, of.report)
    snapshot = original_pool(of, Pool(of.store, row.project_id).snapshot(row))
    config = resolved_encoder(of.store, row)
    start = RoundStart(
        snapshot=snapshot,
        config=resolve_at_start(config, Runtime.create(row.config.seed)),
        previous_round=previous_round(of.log, row),
    )
    return StepResult(output=stage_outputs.put_output(of.place, start))


def original_pool(of: StoredRound, derived: PoolSnapshot) -> PoolSnapshot:
    """The snapshot of a round.

    For a replay, this is the snapshot that the original round stored, without items that were deleted since. It has the
    test items of the original. For other rounds, or if the original stored no snapshot, it is `derived`, which was
    computed from the events.
    """
    row = of.row
    ref = of.artifact(row.replay_of, "snapshot") if row.replay_of is not None else None
    if ref is None:
        return derived
    stored = stage_outputs.open_snapshot(of.place, to_dict(ref))
    kept = np.isin(stored.item_ids, derived.item_ids)
    if kept.all():
        return stored
    arrays = ("item_ids", "labels", "held_out", "held_out_labels", "eligible", "groups", "windows", "confirmed")
    rows = {name: values[kept] for name in arrays if (values := getattr(stored, name)) is not None}
    hashes = tuple(one for one, stays in zip(stored.hashes, kept, strict=True) if stays)
    return dataclasses.replace(stored, hashes=hashes, **rows)


def resolved_encoder(store: Store, row: RoundRow) -> RoundConfig:
    """The settings with the encoder that the round may use. A replay uses the encoder of its original, or none."""
    if row.replay_of is not None:
        encoder_of(row.config.encoder, store.home)
        return row.config
    project = get_project(store, row.project_id)
    return resolve_encoder(row.config, store.home, project.kind, preferred_encoder(project))


def previous_round(log: RoundLog, row: RoundRow) -> int | None:
    """The id of the round that this one continues. For a replay, it is the one that its original continued."""
    if row.replay_of is not None:
        found = log.get(row.replay_of).metrics.get("previous_round")
        return int(found) if found is not None else None
    earlier = [
        other.id
        for other in log.list()
        if other.status == "finished" and other.number < row.number and other.replay_of is None
    ]
    return earlier[0] if earlier else None


def run_and_store(stage: Stage[Any], of: StoredRound, units: Sequence[Stored] = ()) -> StepResult:
    """Run a stage, or join its units, and store its output. There is no output if no later stage reads it."""
    found = join_units(stage, of, units) if units else run_stage(stage, of.context, of.outputs)
    if found is None:
        return StepResult()
    if isinstance(found, Inputs):
        keep_inputs(of, found)
    return StepResult(output=stage_outputs.put_output(of.place, found))


def plan(stage: Stage[Any], of: StoredRound) -> StepResult:
    """Divide a stage into units and store their common input. No units if it is skipped or runs in one piece."""
    assert stage.split is not None
    needs = of.outputs.take(stage.needs)
    if not stage.is_read(of.context, *needs):
        return StepResult()
    n_rows = stage.split.n_rows(of.context, *needs)
    size = int(os.environ.get("WINNOW_UNIT_ROWS") or stage.split.unit_rows)
    n_workers = len(workers.living_workers(of.store))
    if n_rows < 2 * size or (n_workers < 2 and n_rows < ONE_WORKER_UNITS * size):
        return StepResult()
    common = stage_outputs.put_output(of.place, stage.split.prepare(of.context, *needs))
    units = tuple((start, min(start + size, n_rows)) for start in range(0, n_rows, size))
    return StepResult(units=units, common=common)


def run_unit(stage: Stage[Any], of: StoredRound, start: int, stop: int) -> StepResult:
    assert stage.split is not None
    needs = of.outputs.take(stage.needs)
    block = stage.split.run_unit(of.context, _common(stage, of), start, stop, *needs)
    return StepResult(output=stage_outputs.put_output(of.place, block))


def join_units(stage: Stage[Any], of: StoredRound, units: Sequence[Stored]) -> Any:
    assert stage.split is not None
    blocks = [stage_outputs.open_output(of.place, stage.split.block, unit) for unit in units]
    return stage.split.join(of.context, _common(stage, of), blocks, *of.outputs.take(stage.needs))


def _common(stage: Stage[Any], of: StoredRound) -> Any:
    assert stage.split is not None
    stored = of.results[PLAN + stage.name].common
    assert stored is not None
    return stage_outputs.open_output(of.place, stage.split.common, stored)


def train(of: StoredRound) -> StepResult:
    """Run the training stage, in several processes if this machine has several GPUs."""
    n_processes = distributed_training.size()
    if n_processes < 2:
        return run_and_store(TRAIN, of)

    def run(context: StageContext, inputs: Inputs, trust: LabelTrust | None = None) -> TrainingResult:
        if reason := why_no_model(context, inputs):
            return TrainingResult(model=None, why_no_model=reason)
        with tempfile.TemporaryDirectory(prefix="winnow-") as folder:
            path = distributed_training.train_together(of, n_processes, Path(folder))
            return TrainingResult(model=load_model(path, context.runtime))

    return run_and_store(dataclasses.replace(TRAIN, run=run), of)


def _step(stage: Stage[Any]) -> Callable[..., StepResult]:
    return lambda of, units=(): run_and_store(stage, of, units)


def _unit_step(stage: Stage[Any]) -> Callable[..., StepResult]:
    return lambda of, start, stop: run_unit(stage, of, start, stop)


STEPS: dict[str, Callable[..., StepResult]] = {
    SNAPSHOT: take_snapshot,
    **{stage.name: _step(stage) for stage in STAGES},
    TRAIN.name: train,
    FINISH: finish_round,
}
UNIT_STEPS: dict[str, Callable[..., StepResult]] = {name: _unit_step(BY_NAME[name]) for name in SPLIT}
