"""Shadow picks: what other strategies would have chosen, on the very arrays that a finished round stored."""

from __future__ import annotations

import dataclasses
from typing import Any

from app.rounds import stage_outputs
from app.rounds.stage_outputs import Parcel
from app.rounds.steps import StageContext
from core.errors import Conflict, NotFound
from core.rounds import pipeline
from core.types import ignore
from storage.database.store import Store
from storage.rounds.comparisons import Comparison
from storage.rounds.log import RoundLog, RoundRow


def compare(store: Store, row: RoundRow, asked: Comparison) -> Comparison:
    """The answer: picks of each strategy in order, and how many of them are in the real batch."""
    if row.status != "finished":
        raise Conflict(f"Round {row.number} is {row.status}; only a finished round can be compared.")
    bench = StageContext(store, row, parcels_of(store, row), ignore)
    work = bench.work()
    inputs, guesses, candidates = bench.inputs(work), bench.guesses(), bench.candidates()
    featured = bench.featured(work)
    real = {pick.item_id for pick in bench.log.picks(row.id)}
    picks: dict[str, list[int]] = {}
    for strategy in asked.strategies:
        selection = dataclasses.replace(work.config.selection, strategy=strategy)
        shadow = dataclasses.replace(work, config=dataclasses.replace(work.config, selection=selection))
        chosen = pipeline.choose(shadow, inputs, guesses, candidates, featured)
        picks[strategy] = [int(item_id) for item_id in chosen.item_ids]
    overlap = {strategy: len(real & set(item_ids)) for strategy, item_ids in picks.items()}
    return dataclasses.replace(asked, status="finished", picks=picks, overlap=overlap)


def parcels_of(store: Store, row: RoundRow) -> dict[str, Parcel]:
    """The parcels of a finished round again, from what it stored."""
    log = RoundLog(store, row.project_id)

    def named(kind: str) -> Any:
        try:
            return stage_outputs.to_dict(log.artifact(row.id, kind))
        except NotFound:
            return None

    return {
        "snapshot": {
            "snapshot": named("snapshot"),
            "config": row.metrics["settings"],
            "previous": row.metrics.get("previous_round"),
        },
        "train": {"model": named("model")},
        "predict": {
            "probabilities": named("probabilities"),
            "embeddings": named("embeddings"),
            "views": named("view_probabilities"),
            "likeness": named("likeness"),
        },
        "features": {
            "features": named("features"),
            "rows": named("candidate_rows"),
            "kernel": named("kernel"),
            "notes": [],
        },
    }
