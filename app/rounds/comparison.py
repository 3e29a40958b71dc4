"""The picks of other strategies in a finished round, computed from the arrays that the round stored."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.rounds import stage_outputs
from app.rounds.artifact_refs import to_dict
from app.rounds.stored_round import StoredRound, open_round_inputs
from core.errors import Conflict
from core.media.inputs import Inputs
from core.rounds.candidates import choose_candidates
from core.rounds.outputs import CandidateFeatures, Predictions, PropagatedLabels
from core.rounds.stage import Outputs, needed, run_stages
from core.rounds.stages import SELECT, STAGES
from core.types import ignore
from storage.database.store import Store
from storage.rounds.comparisons import Comparison
from storage.rounds.log import RoundRow


def compare(store: Store, row: RoundRow, asked: Comparison) -> Comparison:
    """Compute the ordered picks of each requested strategy, and how many of them are in the round's own batch."""
    if row.status != "finished":
        raise Conflict(f"Round {row.number} is {row.status}; only a finished round can be compared.")
    of = StoredRound(store, row, {}, ignore)
    outputs = outputs_of_finished(of)
    for _ in run_stages(needed(STAGES, *SELECT.needs, known=outputs), of.context, outputs):
        pass  # computes outputs that the round did not store: its inputs, and features that it did not need
    real = {pick.item_id for pick in of.log.picks(row.id)}
    picks: dict[str, list[int]] = {}
    for strategy in asked.strategies:
        selection = dataclasses.replace(of.context.config.selection, strategy=strategy)
        context = dataclasses.replace(of.context, config=dataclasses.replace(of.context.config, selection=selection))
        batch = SELECT.run(context, *outputs.take(SELECT.needs))
        picks[strategy] = [int(item_id) for item_id in batch.selection.item_ids]
    overlap = {strategy: len(real & set(item_ids)) for strategy, item_ids in picks.items()}
    return dataclasses.replace(asked, status="finished", picks=picks, overlap=overlap)


def outputs_of_finished(of: StoredRound) -> Outputs:
    """The stored stage outputs of a finished round that a selection reads."""
    outputs = of.outputs
    outputs.add(Inputs, open_round_inputs(of))
    probabilities = _array(of, "probabilities")
    embeddings = _array(of, "embeddings")
    assert probabilities is not None and embeddings is not None
    has_model = of.artifact(of.row.id, "model") is not None
    predictions = Predictions(
        probabilities=probabilities,
        embeddings=embeddings,
        view_probabilities=_array(of, "view_probabilities"),
        has_model=has_model,
        temperature=float(of.row.metrics.get("temperature") or 1.0),
    )
    outputs.add(Predictions, predictions)
    graph = of.artifact(of.row.id, "similarity_graph", "likeness")
    opened = stage_outputs.open_similarity_graph(of.place, to_dict(graph)) if graph is not None else None
    outputs.add(PropagatedLabels, PropagatedLabels(probabilities=probabilities, graph=opened))
    if (features := _features(of, outputs.get(Inputs))) is not None:
        outputs.add(CandidateFeatures, features)
    return outputs


def _features(of: StoredRound, inputs: Inputs) -> CandidateFeatures | None:
    """The stored kernel features. None if the round has none, or if the candidate rows have changed since."""
    features, rows = _array(of, "features"), _array(of, "candidate_rows")
    kernel = of.artifact(of.row.id, "kernel")
    if features is None or rows is None or kernel is None:
        return None
    if not np.array_equal(rows, choose_candidates(of.context, inputs).rows):
        return None
    return CandidateFeatures(features=features, fitted=stage_outputs.open_kernel(of.place, to_dict(kernel)))


def _array(of: StoredRound, kind: str) -> NDArray[Any] | None:
    ref = of.artifact(of.row.id, kind)
    return stage_outputs.open_array(of.folder, to_dict(ref)) if ref is not None else None
