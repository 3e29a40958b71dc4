"""The last step of a round: stores its result in one transaction, with the hindsight of the previous picks."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

import numpy as np

from app.rounds.artifact_refs import to_ref
from app.rounds.hindsight import store_hindsight
from app.rounds.stored_round import NAME_OF, SNAPSHOT, RoundStart, StepResult, StoredRound
from core.media.inputs import Inputs
from core.rounds import pipeline
from core.rounds.outputs import (
    Approach,
    Batch,
    BothPredictions,
    CandidateFeatures,
    LabelTrust,
    MapPoints,
    Predictions,
    PropagatedLabels,
    RefinedModel,
    TrainingResult,
)
from core.rounds.round_model import predict_test_items
from core.types import Selection
from storage.rounds.artifacts import ArtifactRef
from storage.rounds.log import RoundRow

# kind of a stored artifact -> its stage output and field. Later versions read these kinds, so they must not change.
ARTIFACTS: dict[str, tuple[type, str]] = {
    "snapshot": (RoundStart, "snapshot"),
    "label_weights": (LabelTrust, "weights"),
    "label_beliefs": (LabelTrust, "belief"),
    "model": (TrainingResult, "model"),
    "embeddings": (Predictions, "embeddings"),
    "view_probabilities": (Predictions, "view_probabilities"),
    "probabilities": (PropagatedLabels, "probabilities"),
    "similarity_graph": (PropagatedLabels, "graph"),  # "likeness" in rounds of version 0.1
    "features": (CandidateFeatures, "features"),
    "kernel": (CandidateFeatures, "fitted"),
    "candidate_rows": (Batch, "candidate_rows"),
    "label_influence": (Batch, "label_influence"),
    "map": (MapPoints, "points"),
    "both_classes": (BothPredictions, "classes"),
}
DELIVERED: dict[str, tuple[type, str]] = {"model": (RefinedModel, "model")}  # replaces the above if the stage was run


def finish_round(of: StoredRound) -> StepResult:
    """Store the result of the round in one transaction, which makes it visible. Does nothing for a finished round."""
    if of.row.status == "finished":
        return StepResult()
    context, outputs = of.context, of.outputs
    training, labels, batch = pipeline.final_training(outputs), outputs.get(PropagatedLabels), outputs.get(Batch)
    notes = pipeline.round_notes(context, outputs.get(Inputs), training, labels, batch)
    metrics = pipeline.measure(context, outputs.get(Inputs), training, labels) | {
        "seconds": seconds_of(of),
        "settings": dataclasses.asdict(context.config),
        "previous_round": of.start.previous_round,
        "device": context.runtime.device.type,
        "normalization": normalization_of(outputs.get(Inputs)),
    }
    approach = outputs.find(Approach)
    if approach is not None:
        encoder = of.start.config.encoder
        metrics["approach"] = {"encoder": encoder.identity, "name": encoder.name, "note": approach.note}
        notes = (approach.note, *notes)
    if of.row.replay_of is not None:
        metrics["replay"], note = compare_with_original(of, batch.selection)
        notes = (*notes, note)
    store_hindsight(of, outputs.get(Predictions), labels)
    of_steps = [note for result in of.results.values() for note in result.notes]
    notes = (*notes, *dict.fromkeys([*of_steps, *of.notes]))
    of.log.finish(
        of.row.id,
        arrays={
            "item_ids": context.snapshot.item_ids,
            **artifacts_of(of),
            **predict_test_items(context, outputs.get(Inputs), training.model),
        },
        selection=batch.selection,
        metrics=metrics,
        notes=notes,
    )
    shutil.rmtree(of.checkpoints(), ignore_errors=True)
    return StepResult()


def normalization_of(inputs: Inputs) -> dict[str, list[float]]:
    """Mean and scale of the network's inputs per channel. An export of the model needs the values of its training."""
    return {"mean": [float(one) for one in inputs.mean], "scale": [float(one) for one in inputs.scale]}


def seconds_of(of: StoredRound) -> dict[str, float]:
    """Seconds of each stage that was run, including its plan step."""
    seconds: dict[str, float] = {}
    skipped = {name for name, result in of.results.items() if name in NAME_OF.values() and result.output is None}
    for name, result in of.results.items():
        stage = name.removeprefix("plan ")
        if stage not in skipped:
            seconds[stage] = round(seconds.get(stage, 0.0) + result.seconds, 3)
    return seconds


def artifacts_of(of: StoredRound) -> dict[str, ArtifactRef]:
    """The artifacts that earlier steps stored, by kind."""
    found: dict[str, ArtifactRef] = {}
    for kind, (gives, field) in (*ARTIFACTS.items(), *DELIVERED.items()):
        result = of.results[NAME_OF.get(gives, SNAPSHOT)]
        if result.output is not None and result.output[field] is not None:
            found[kind] = to_ref(result.output[field])
    return found


def compare_with_original(of: StoredRound, selection: Selection) -> tuple[dict[str, Any], str]:
    """Compare the picks of a replay with those of its original. Returns metrics and a note."""
    assert of.row.replay_of is not None
    original: RoundRow = of.log.get(of.row.replay_of)
    before = np.array([pick.item_id for pick in of.log.picks(original.id)], np.int64)
    same = bool(np.array_equal(before, selection.item_ids))
    shared = len(set(before.tolist()) & set(selection.item_ids.tolist()))
    note = (
        f"Replay of round {original.number}: the same {len(before)} picks in the same order."
        if same
        else f"Replay of round {original.number}: {shared} of {len(before)} picks are the same."
    )
    return {"of": original.id, "same": same, "shared": shared, "n_picks": len(before)}, note
