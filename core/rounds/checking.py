"""The stage "check": how far each label of the round can be trusted (`core.labels.trust`), before anything is trained.

Its predictions use only features that do not depend on labels:

    with an encoder     heads on its features
    with a graph        label propagation over the similarity graph, which the stage "propagate" reuses, together with
                        heads on a random projection of the network inputs and predictions of earlier rounds
                        (`core.labels.clip_trust`)
    otherwise           heads on a random projection of the network inputs

Test items are not used. At most MOST_ROWS items are: the labeled ones, and others at even spacing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.labels.clip_trust import clip_predictor, clip_trust
from core.labels.earlier_predictions import earlier_log_probabilities
from core.labels.errors import FEWEST
from core.labels.second_looks import with_second_looks
from core.labels.trust import SUSPECTED, Predict, Trust, graph_predictor, head_predictor, label_trust
from core.learning.head import prepare
from core.media.inputs import Inputs
from core.rounds.approach.deciding import as_stage
from core.rounds.candidates import project, why_no_model
from core.rounds.context import StageContext
from core.rounds.encoding import features_of
from core.rounds.outputs import LabelTrust
from core.similarity.graph import SimilarityGraph, build_similarity_graph
from core.types import UNLABELED, Progress, Selection, SelectionRequest

MOST_ROWS = 4_000
PROJECTED = 256  # dimensions of projected inputs


def labels_are_checked(context: StageContext, inputs: Inputs) -> bool:
    """Whether the settings enable label checks, and there are enough labels."""
    labels = np.where(inputs.readable, context.snapshot.labels, UNLABELED)
    enough = int((labels != UNLABELED).sum()) >= FEWEST
    return context.config.labels.weigh and enough and why_no_model(context, inputs) is None


def check_labels(context: StageContext, inputs: Inputs) -> LabelTrust:
    """The trust in all labels of readable items."""
    snapshot, config = context.snapshot, context.config
    context.report(Progress("check", 0, 1))
    graph = context.graph
    if graph is None and not inputs.encoder:
        report = as_stage("check", context.report)
        graph = build_similarity_graph(inputs, snapshot.labels, snapshot.held_out, config.similarity, report)
    labels = np.where(inputs.readable, snapshot.labels, UNLABELED)
    if graph is not None and config.labels.clips == "graph":
        predict = graph_predictor(graph, snapshot.n_classes, len(labels), config.similarity.reach)
        found = label_trust(labels, snapshot.n_classes, predict, snapshot.confirmed)
    elif graph is not None:
        predict = predictor_of_clips(context, inputs, graph, labels)
        found = clip_trust(
            labels, snapshot.n_classes, predict, snapshot.confirmed, earlier_predictions(context, labels)
        )
    else:
        found = _by_heads(context, inputs, labels)
    context.report(Progress("check", 1, 1))
    return _output(found, graph)


def earlier_predictions(context: StageContext, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
    """(n, C) log-probabilities by earlier rounds that did not know the label; None if no label has any."""
    snapshot = context.snapshot
    if not context.config.labels.earlier_rounds:
        return None
    rounds = context.previous.load_predictions()
    found = earlier_log_probabilities(snapshot.item_ids, labels, snapshot.class_names, rounds)
    return found if np.isfinite(found).any() else None


def predictor_of_clips(
    context: StageContext, inputs: Inputs, graph: SimilarityGraph, labels: NDArray[np.int64]
) -> Predict:
    """The predictor of `core.labels.clip_trust`, with heads on random projections of the inputs."""
    snapshot, config = context.snapshot, context.config
    features = np.zeros((len(inputs), PROJECTED), np.float32)
    features[graph.rows] = project(inputs, graph.rows, context, PROJECTED)
    fitted = checked_rows(np.isin(np.arange(len(inputs)), graph.rows), labels)
    return clip_predictor(graph, features, fitted, snapshot.n_classes, config.similarity.reach, config.head)


def _by_heads(context: StageContext, inputs: Inputs, labels: NDArray[np.int64]) -> Trust:
    """The trust by heads on the features of some rows, which include all labeled ones."""
    snapshot, config = context.snapshot, context.config.head
    rows = checked_rows(inputs.readable & ~snapshot.held_out, labels)
    pool = prepare(_features(context, inputs, rows), snapshot.n_classes, config)
    confirmed = None if snapshot.confirmed is None else snapshot.confirmed[rows]
    found = label_trust(labels[rows], snapshot.n_classes, head_predictor(pool, snapshot.n_classes, config), confirmed)
    weights = np.ones(len(labels), np.float32)
    belief = np.zeros((len(labels), snapshot.n_classes), np.float32)
    weights[rows], belief[rows] = found.weights, found.belief
    return Trust(
        weights=weights,
        belief=belief,
        wrong_share=found.wrong_share,
        sharpness=found.sharpness,
        n_checked=found.n_checked,
    )


def checked_rows(usable: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labeled rows and, up to MOST_ROWS, others at even spacing; ascending."""
    labeled, others = np.flatnonzero(usable & (labels != UNLABELED)), np.flatnonzero(usable & (labels == UNLABELED))
    n_others = min(len(others), max(MOST_ROWS - len(labeled), 0))
    spaced = others[np.linspace(0, len(others) - 1, n_others).round().astype(np.int64)] if n_others else others[:0]
    return np.union1d(labeled, spaced)


def _features(context: StageContext, inputs: Inputs, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return features_of(inputs, rows) if inputs.encoder else project(inputs, rows, context, PROJECTED)


def _output(found: Trust, graph: SimilarityGraph | None) -> LabelTrust:
    return LabelTrust(
        weights=found.weights,
        belief=found.belief,
        wrong_share=found.wrong_share,
        n_checked=found.n_checked,
        graph=graph,
    )


def add_second_looks(
    context: StageContext,
    request: SelectionRequest,
    chosen: Selection,
    trust: LabelTrust | None,
    rows: NDArray[np.int64],
) -> tuple[Selection, NDArray[np.float32] | None]:
    """The batch with second looks, if the settings enable them, and the influence of suspected labels on the candidate
    rows (None: no suspects). With a region of interest, a batch has only new items."""
    if trust is None:
        return chosen, None
    weights, belief = np.asarray(trust.weights)[rows], np.asarray(trust.belief)[rows]
    changed, influence = with_second_looks(chosen, request, context.snapshot.labels[rows], weights, belief)
    wanted = context.config.labels.second_looks and context.region is None
    return (changed if wanted else chosen), influence


def trust_notes(trust: LabelTrust | None) -> tuple[str, ...]:
    """A sentence that says how many labels may be wrong; empty if none is suspected."""
    n_suspects = 0 if trust is None else int((np.asarray(trust.weights) < SUSPECTED).sum())
    if trust is None or not n_suspects:
        return ()
    what = "1 label is" if n_suspects == 1 else f"{n_suspects:,} labels are"
    return (f"{what} more likely wrong than right, of {trust.n_checked:,} checked. Such a label has less weight until "
            "someone confirms it in Review.",)  # fmt: skip
