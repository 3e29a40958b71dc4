"""The model of a round: the stages "train" and "refine", and the delivered model on the test items.

train    a network, or a head on the features of an encoder, from the labels
refine   more steps of the network on the propagated labels of the pool, where there is a similarity graph. Label
         propagation uses the neighbors of a clip, which the network alone does not; distillation moves its predictions
         into the network. All later stages use the refined network, and it is exported

Refinement has two turns of equal length. Each predicts the pool with the network so far and propagates the labels. In
the first turn the targets are the propagated probabilities: the network stays unsure where they are, so that the next
propagation changes more. In the last turn they are the most probable classes. `experiments.refinement` compares this
with other turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.learning.learner import PoolTargets
from core.learning.models import TrainedModel
from core.learning.prediction import predict
from core.learning.training import refine, train
from core.media.inputs import Inputs
from core.rounds.approach.deciding import as_stage
from core.rounds.candidates import why_no_model
from core.rounds.context import StageContext
from core.rounds.encoding import train_head
from core.rounds.outputs import LabelTrust, RefinedModel, TrainingResult
from core.similarity.graph import SimilarityGraph, build_similarity_graph, has_similarity_graph
from core.similarity.propagation import propagate_labels
from core.types import UNLABELED, PoolSnapshot, Progress, Report

Turn = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # (n, C) propagated labels -> (n, C) targets


def as_propagated(q: NDArray[np.float32]) -> NDArray[np.float32]:
    return q


def most_probable(q: NDArray[np.float32]) -> NDArray[np.float32]:
    """One-hot."""
    return np.asarray(np.eye(q.shape[1], dtype=np.float32)[q.argmax(1)])


TURNS: tuple[Turn, ...] = (as_propagated, most_probable)
ITEMS, PROBABILITIES = "test_item_ids", "test_predictions"  # kinds of artifacts; they never change


def train_model(context: StageContext, inputs: Inputs, trust: LabelTrust | None = None) -> TrainingResult:
    """The model of this round, or the reason why there is nothing to learn from yet."""
    if reason := why_no_model(context, inputs):
        return TrainingResult(model=None, why_no_model=reason)
    if inputs.encoder:
        return train_head(context, inputs, trust)
    snapshot = context.snapshot
    known = measured_rows(snapshot, inputs)
    model = train(
        pool_alone(snapshot, inputs),
        snapshot.labels,
        snapshot.n_classes,
        context.config.training,
        runtime=context.runtime,
        checkpoint_dir=context.checkpoints,
        warm_start=model_to_continue(context, inputs),
        held_out=(known, snapshot.held_out_labels[known]),
        trust=None if trust is None else np.asarray(trust.weights),
        report=context.report,
    )
    return TrainingResult(model=model)


def pool_alone(snapshot: PoolSnapshot, inputs: Inputs) -> Inputs:
    """The inputs with test items as unreadable ones: no test item is ever trained on."""
    return dataclasses.replace(inputs, readable=inputs.readable & ~snapshot.held_out)


def measured_rows(snapshot: PoolSnapshot, inputs: Inputs) -> NDArray[np.int64]:
    """The readable test items whose label is known. Accuracy is measured on them; nothing else may depend on these
    labels."""
    return np.flatnonzero(snapshot.held_out & (snapshot.held_out_labels != UNLABELED) & inputs.readable)


def model_to_continue(context: StageContext, inputs: Inputs) -> TrainedModel | None:
    """The previous model, where training can continue from it: the settings have steps for that, the network is the
    same, and no class changed its meaning. With more or fewer classes than before, training keeps the layers and draws
    a new head. Only this function loads a previous model."""
    before, now = context.previous.class_names, context.snapshot.class_names
    if not context.config.training.warm_steps or (before != now and len(before) == len(now)):
        return None
    model = context.previous.load_model()
    if model is None:
        return None
    same = model.shape.name == context.config.training.network and model.shape.channels == inputs.shape[2]
    return model if same else None


def is_refined(
    context: StageContext, inputs: Inputs, training: TrainingResult, trust: LabelTrust | None = None
) -> bool:
    """Whether the settings have steps for refinement, a network was trained, and the pool has a similarity graph."""
    config = context.config
    if not config.training.refine_steps or inputs.encoder or training.model is None:
        return False
    return has_similarity_graph(inputs, context.snapshot.held_out, config.similarity)


def refine_model(
    context: StageContext, inputs: Inputs, training: TrainingResult, trust: LabelTrust | None = None
) -> RefinedModel:
    """The network after distillation of the propagated labels, and the graph, which the stage "propagate" uses
    again."""
    assert training.model is not None
    report = as_stage("refine", context.report)
    graph = similarity_graph(context, inputs, trust, report)
    assert graph is not None
    weights = None if trust is None else np.asarray(trust.weights)
    return RefinedModel(model=refine_in_turns(context, inputs, training.model, graph, weights), graph=graph)


def refine_in_turns(
    context: StageContext,
    inputs: Inputs,
    model: TrainedModel,
    graph: SimilarityGraph,
    trust: NDArray[np.floating] | None,
    turns: Sequence[Turn] = TURNS,
) -> TrainedModel:
    """The network after one turn for each function from propagated labels to targets. Test items are in no batch, no
    target and no graph."""
    snapshot, training, runtime = context.snapshot, context.config.training, context.runtime
    known = measured_rows(snapshot, inputs)
    ends = np.linspace(0, training.refine_steps, len(turns) + 1).round().astype(int)
    for number, turn in enumerate(turns):
        begin, end = int(ends[number]), int(ends[number + 1])
        if begin == end:
            continue
        model = refine(
            model,
            pool_alone(snapshot, inputs),
            snapshot.labels,
            pool_targets(context, inputs, model, graph, trust, turn),
            dataclasses.replace(training, refine_steps=end - begin),
            runtime=dataclasses.replace(runtime, seed=runtime.seed_for(f"refine {number}")),
            checkpoint_dir=None if context.checkpoints is None else context.checkpoints / f"refine-{number}",
            held_out=(known, snapshot.held_out_labels[known]),
            trust=trust,
            report=_counted(context.report, begin, training.refine_steps),
        )
    return model


def _counted(report: Report, before: int, total: int) -> Report:
    """Training steps as those of the stage "refine", counted over its turns."""

    def renamed(progress: Progress) -> None:
        if progress.stage == "train":
            progress = dataclasses.replace(progress, done=before + progress.done, total=total)
        report(dataclasses.replace(progress, stage="refine"))

    return renamed


def pool_targets(
    context: StageContext,
    inputs: Inputs,
    model: TrainedModel,
    graph: SimilarityGraph,
    trust: NDArray[np.floating] | None,
    turn: Turn,
) -> PoolTargets:
    """Targets from the model's predictions for the pool after label propagation. A label is the target of its item,
    weighted by its trust. Test items are not predicted and have no weight."""
    snapshot, config = context.snapshot, context.config
    rows = np.flatnonzero(inputs.readable & ~snapshot.held_out)
    found = predict(model, inputs, rows, runtime=context.runtime, n_views=config.training.predict_views)
    own = np.full((len(inputs), snapshot.n_classes), 1.0 / snapshot.n_classes, np.float32)
    own[rows] = found.probabilities
    q = turn(propagate_labels(graph, own, snapshot.labels, config.similarity.reach, trust))
    weights = np.zeros(len(inputs), np.float32)
    weights[rows] = 1.0
    labeled = np.flatnonzero(snapshot.labels != UNLABELED)
    q[labeled] = np.eye(snapshot.n_classes, dtype=np.float32)[snapshot.labels[labeled]]
    if trust is not None:
        weights[labeled] *= trust[labeled]
    return PoolTargets(probabilities=q, weights=weights)


def similarity_graph(
    context: StageContext, inputs: Inputs, trust: LabelTrust | None, report: Report
) -> SimilarityGraph | None:
    """The graph of an earlier round on the same items or of the stage "check", or else a new one; None where the pool
    has none."""
    if context.graph is not None:
        return context.graph
    if trust is not None and trust.graph is not None:
        return trust.graph
    snapshot = context.snapshot
    return build_similarity_graph(inputs, snapshot.labels, snapshot.held_out, context.config.similarity, report)


def delivered_model(training: TrainingResult, refined: RefinedModel | None) -> TrainedModel | None:
    """The model that predicts, is stored and is exported: the refined one where there is one."""
    return training.model if refined is None else refined.model


def predict_test_items(context: StageContext, inputs: Inputs, model: TrainedModel | None) -> dict[str, NDArray[Any]]:
    """(k,) ids of the readable test items and (k, C) inductive probabilities, by kind: of all of them, because a test
    item may get its label after the round. Empty without a model or test items. Their labels are not read."""
    rows = np.flatnonzero(context.snapshot.held_out & inputs.readable)
    if model is None or not len(rows):
        return {}
    found = predict(model, inputs, rows, runtime=context.runtime)
    return {ITEMS: context.snapshot.item_ids[rows], PROBABILITIES: found.probabilities}
