"""The last stage of a round: its result in one transaction, and what the previous picks turned out to be worth."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from app.rounds import stage_outputs
from app.rounds.hindsight import look_back_at
from app.rounds.stage_outputs import Parcel
from core.rounds import pipeline
from core.types import Selection
from storage.rounds.artifacts import ArtifactRef
from storage.rounds.log import RoundRow

if TYPE_CHECKING:
    from app.rounds.steps import StageContext


def finish_round(bench: StageContext) -> Parcel:
    """Everything becomes visible together; a round that is finished already stays as it is."""
    work = bench.work()
    inputs, model, guesses = bench.inputs(work), bench.model(work.runtime), bench.guesses()
    selection = stage_outputs.open_selection(bench.folder, bench.parcels["select"]["selection"])
    told = pipeline.round_notes(work, inputs, model, guesses, bench.candidates())
    metrics = pipeline.measure(work, model, guesses) | {
        "seconds": seconds_of(bench),
        "settings": dataclasses.asdict(work.config),
        "previous_round": bench.parcels["snapshot"]["previous"],
        "device": work.runtime.device.type,
    }
    if bench.row.replay_of is not None:
        metrics["replay"], note = compare_with_original(bench, selection)
        told = (*told, note)
    look_back_at(bench, work, guesses)
    bench.log.finish(
        bench.row.id,
        arrays={"item_ids": work.snapshot.item_ids, **files_of(bench)},
        selection=selection,
        metrics=metrics,
        notes=told,
    )
    shutil.rmtree(bench.checkpoints(), ignore_errors=True)
    return {}


def seconds_of(bench: StageContext) -> dict[str, float]:
    """Of each stage, its plan included."""
    seconds: dict[str, float] = {}
    for name, parcel in bench.parcels.items():
        stage = name.removeprefix("plan ")
        seconds[stage] = round(seconds.get(stage, 0.0) + float(parcel["seconds"]), 3)
    return seconds


def files_of(bench: StageContext) -> dict[str, ArtifactRef]:
    """What earlier stages stored, by kind."""
    found = {
        "probabilities": bench.parcels["predict"]["probabilities"],
        "embeddings": bench.parcels["predict"]["embeddings"],
        "view_probabilities": bench.parcels["predict"]["views"],
        "likeness": bench.parcels["predict"].get("likeness"),
        "features": bench.parcels["features"]["features"],
        "kernel": bench.parcels["features"]["kernel"],
        "candidate_rows": bench.parcels["features"]["rows"],
        "map": bench.parcels["map"]["map"],
        "model": bench.parcels["train"]["model"],
        "snapshot": bench.parcels["snapshot"]["snapshot"],
    }
    return {kind: stage_outputs.to_ref(parcel) for kind, parcel in found.items() if parcel}


def compare_with_original(bench: StageContext, selection: Selection) -> tuple[dict[str, Any], str]:
    """Whether a replay gave the picks of its original, in their order."""
    assert bench.row.replay_of is not None
    original: RoundRow = bench.log.get(bench.row.replay_of)
    before = np.array([pick.item_id for pick in bench.log.picks(original.id)], np.int64)
    same = bool(np.array_equal(before, selection.item_ids))
    shared = len(set(before.tolist()) & set(selection.item_ids.tolist()))
    note = (
        f"Replay of round {original.number}: the same {len(before)} picks in the same order."
        if same
        else f"Replay of round {original.number}: {shared} of {len(before)} picks are the same."
    )
    return {"of": original.id, "same": same, "shared": shared, "n_picks": len(before)}, note
