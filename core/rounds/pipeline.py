"""One round in one process: `run_round` runs the stages of `core.rounds.stages` and combines their outputs.

`run_round` is a pure function of the snapshot, the settings, the seed and the results of the previous round. The worker
runs the same stages as durable steps (`app.rounds.workflows`), and simulations run them round after round
(`core.rounds.simulation`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.config import RoundConfig
from core.encoders.folders import Encoder
from core.learning.training import TrainedModel, predict
from core.media.inputs import Inputs
from core.rounds.approach.deciding import apply_decision
from core.rounds.approach.presets import resolve_at_start
from core.rounds.context import Previous, StageContext
from core.rounds.outputs import (
    Approach,
    Batch,
    MapPoints,
    Predictions,
    PropagatedLabels,
    RefinedModel,
    TrainingResult,
)
from core.rounds.round_model import delivered_model, measured_rows
from core.rounds.simulation_plan import INDUCTIVE
from core.rounds.stage import Outputs, Stage, run_stages
from core.rounds.stages import STAGES
from core.runtime import Runtime
from core.types import MediaReader, PoolSnapshot, Report, RoundResult, RowCache, ignore


def run_round(  # noqa: PLR0913 - one call with all inputs of a round
    snapshot: PoolSnapshot,
    config: RoundConfig,
    *,
    read: MediaReader,
    cache: RowCache,
    runtime: Runtime,
    previous: Previous | None = None,
    encoder: Encoder | None = None,
    report: Report = ignore,
) -> RoundResult:
    """The result of a whole round, computed in this process."""
    context = StageContext(
        snapshot=snapshot,
        config=resolve_at_start(config, runtime),
        read=read,
        cache=cache,
        runtime=runtime,
        previous=previous or Previous(),
        encoder=encoder,
        report=report,
    )
    outputs = Outputs()
    seconds = run_timed(STAGES, context, outputs)
    return round_result(apply_decision(context, outputs.find(Approach)), outputs, seconds)


def run_timed(stages: Sequence[Stage[Any]], context: StageContext, outputs: Outputs) -> dict[str, float]:
    """Run the stages and add their outputs to `outputs`; returns the seconds of each stage that was run."""
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    for stage in run_stages(stages, context, outputs):
        ended = time.perf_counter()
        if outputs.find(stage.gives) is not None:
            seconds[stage.name] = round(ended - began, 3)
        began = time.perf_counter()
    return seconds


def round_result(context: StageContext, outputs: Outputs, seconds: dict[str, float]) -> RoundResult:
    """The result of a round, from the outputs of its stages."""
    batch, labels = outputs.get(Batch), outputs.get(PropagatedLabels)
    training = final_training(outputs)
    return RoundResult(
        selection=batch.selection,
        probabilities=labels.probabilities,
        embeddings=outputs.get(Predictions).embeddings,
        map_points=outputs.get(MapPoints).points,
        metrics=measure(context, outputs.get(Inputs), training, labels) | {"seconds": seconds},
        notes=round_notes(context, outputs.get(Inputs), training, labels, batch),
    )


def final_training(outputs: Outputs) -> TrainingResult:
    """The delivered model of the round, or the reason why there is none."""
    training = outputs.get(TrainingResult)
    model = delivered_model(training, outputs.find(RefinedModel))
    return TrainingResult(model=model, why_no_model=training.why_no_model)


def measure(
    context: StageContext, inputs: Inputs, training: TrainingResult, labels: PropagatedLabels
) -> dict[str, Any]:
    """The results of the round as plain numbers: accuracy on the test items with their count, confusions, curves.

    `accuracy` is inductive (`accuracy_measure`): that of the network alone, as it is exported, on the unaltered test
    items, which were not used for anything else. `accuracy_with_propagation` is that of the propagated predictions of
    the test items as new items. Rounds without `accuracy_measure` are of earlier versions, whose test items were in the
    similarity graph.
    """
    snapshot, model = context.snapshot, training.model
    known = measured_rows(snapshot, inputs)
    metrics: dict[str, Any] = {
        "n_items": len(snapshot.item_ids),
        "n_labeled": int(snapshot.labeled.sum()),
        "n_held_out": len(known),
        "class_names": list(snapshot.class_names),
        "has_model": model is not None,
    }
    if model is None:
        return metrics
    metrics |= {"training": dict(model.metrics), "history": [dict(entry) for entry in model.history]}
    metrics |= {"calibration": model.calibration, "temperature": model.temperature}
    if len(known):
        metrics |= held_out_results(context, inputs, model, labels)
    return metrics


def held_out_results(
    context: StageContext, inputs: Inputs, model: TrainedModel, labels: PropagatedLabels
) -> dict[str, Any]:
    """Inductive accuracy and confusions, and the accuracy with label propagation if there is a graph."""
    snapshot = context.snapshot
    known = measured_rows(snapshot, inputs)
    truth = snapshot.held_out_labels[known]
    predicted = predict(model, inputs, known, runtime=context.runtime).probabilities.argmax(1)
    confusion = np.zeros((snapshot.n_classes, snapshot.n_classes), np.int64)  # rows: test label, columns: prediction
    np.add.at(confusion, (truth, predicted), 1)
    found: dict[str, Any] = {
        "accuracy": float((predicted == truth).mean()),
        "accuracy_measure": INDUCTIVE,
        "confusion": confusion.tolist(),
    }
    if labels.test_items is not None and labels.test_probabilities is not None:
        at = np.searchsorted(labels.test_items.rows, known)
        propagated = np.asarray(labels.test_probabilities)[at].argmax(1)
        found["accuracy_with_propagation"] = float((propagated == truth).mean())
    return found


def round_notes(
    context: StageContext, inputs: Inputs, training: TrainingResult, labels: PropagatedLabels, batch: Batch
) -> tuple[str, ...]:
    """Notes to show about this round, in addition to those of the strategy."""
    model = training.model
    notes: tuple[str, ...] = model.notes if model is not None else inputs.notes
    if training.why_no_model:
        notes = (*notes, f"{training.why_no_model} Until then, picks cover the pool.")
    if labels.n_changed:
        share = f"{labels.n_changed:,} of {len(context.snapshot.item_ids):,}"
        notes = (*notes, f"{share} predictions were changed by label propagation.")
    return (*notes, *batch.notes)
