"""The model of a round: the stages "train" and "refine", and the delivered model on the test items.

train    a network, or a head on the features of an encoder, from the labels
refine   more steps of the network on targets of the pool: propagated labels if there is a similarity graph, or targets
         from patches for photographs (`core.learning.patches.targets`). Label propagation uses the neighbors of a clip,
         and patches the small parts that many pictures share, which the network alone does not; distillation trains the
         network on these targets. All later stages use the refined network, and it is exported

The targets of clips are the most probable classes after label propagation. `experiments.refinement` compares them with
the probabilities, and with a second refinement after another prediction and propagation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.learning.learner import PoolTargets
from core.learning.models import TrainedModel
from core.learning.patches.targets import has_patch_targets, patch_targets
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
    """The inputs with test items marked as unreadable, so that none is ever trained on."""
    return dataclasses.replace(inputs, readable=inputs.readable & ~snapshot.held_out)


def measured_rows(snapshot: PoolSnapshot, inputs: Inputs) -> NDArray[np.int64]:
    """The readable test items whose label is known. Accuracy is measured on them; nothing else may depend on their
    labels."""
    return np.flatnonzero(snapshot.held_out & (snapshot.held_out_labels != UNLABELED) & inputs.readable)


def model_to_continue(context: StageContext, inputs: Inputs) -> TrainedModel | None:
    """The previous model, if training can continue from it: the settings have steps for that, the network is the same,
    and no class changed its meaning. If the number of classes has changed, training keeps the layers and draws a new
    head. Only this function loads a previous model."""
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
    """Whether the settings have steps for refinement, a network was trained, and the pool has a similarity graph or
    pictures that are described by patches."""
    config = context.config
    if not config.training.refine_steps or inputs.encoder or training.model is None:
        return False
    return has_patch_targets(inputs) or has_similarity_graph(inputs, context.snapshot.held_out, config.similarity)


def refine_model(
    context: StageContext, inputs: Inputs, training: TrainingResult, trust: LabelTrust | None = None
) -> RefinedModel:
    """The network after distillation of the targets, and the graph, which the stage "propagate" reuses."""
    assert training.model is not None
    weights = None if trust is None else np.asarray(trust.weights)
    if has_patch_targets(inputs):
        targets = _patch_targets(context, inputs, training.model, weights)
        return RefinedModel(model=refine_on(context, inputs, training.model, targets, weights))
    graph = similarity_graph(context, inputs, trust, as_stage("graph", context.report))
    assert graph is not None
    targets = pool_targets(context, inputs, training.model, graph, weights)
    return RefinedModel(model=refine_on(context, inputs, training.model, targets, weights), graph=graph)


def _patch_targets(
    context: StageContext, inputs: Inputs, model: TrainedModel, trust: NDArray[np.floating] | None
) -> PoolTargets:
    """Targets by patches. Test items are not described and have no weight."""
    return patch_targets(
        model,
        pool_alone(context.snapshot, inputs),
        context.snapshot.labels,
        runtime=context.runtime,
        trust=trust,
        report=as_stage("targets", context.report),
    )


def refine_on(
    context: StageContext,
    inputs: Inputs,
    model: TrainedModel,
    targets: PoolTargets,
    trust: NDArray[np.floating] | None,
    turn: int = 0,
) -> TrainedModel:
    """The network after distillation of these targets. Test items are in no batch. `turn` counts the refinements of one
    network, each of which has its own seeds."""
    snapshot, runtime = context.snapshot, context.runtime
    known = measured_rows(snapshot, inputs)
    return refine(
        model,
        pool_alone(snapshot, inputs),
        snapshot.labels,
        targets,
        context.config.training,
        runtime=dataclasses.replace(runtime, seed=runtime.seed_for(f"refine {turn}")),
        checkpoint_dir=None if context.checkpoints is None else context.checkpoints / "refine",
        held_out=(known, snapshot.held_out_labels[known]),
        trust=trust,
        report=_as_refinement(context.report),
    )


def _as_refinement(report: Report) -> Report:
    """A callback that reports training steps as the stage "refine"; other parts keep their names."""

    def renamed(progress: Progress) -> None:
        report(dataclasses.replace(progress, stage="refine" if progress.stage == "train" else progress.stage))

    return renamed


def pool_targets(
    context: StageContext,
    inputs: Inputs,
    model: TrainedModel,
    graph: SimilarityGraph,
    trust: NDArray[np.floating] | None,
    as_classes: bool = True,
) -> PoolTargets:
    """Targets from the model's predictions for the pool after label propagation: the most probable class, one-hot, or
    the probabilities. The target of a labeled item is its label, weighted by its trust. Test items are not predicted
    and have no weight."""
    snapshot, config = context.snapshot, context.config
    rows = np.flatnonzero(inputs.readable & ~snapshot.held_out)
    report, n_views = as_stage("targets", context.report), config.training.predict_views
    found = predict(model, inputs, rows, runtime=context.runtime, n_views=n_views, report=report)
    one_hot = np.eye(snapshot.n_classes, dtype=np.float32)
    own = np.full((len(inputs), snapshot.n_classes), 1.0 / snapshot.n_classes, np.float32)
    own[rows] = found.probabilities
    q = propagate_labels(graph, own, snapshot.labels, config.similarity.reach, trust)
    if as_classes:
        q = one_hot[q.argmax(1)]
    weights = np.zeros(len(inputs), np.float32)
    weights[rows] = 1.0
    labeled = np.flatnonzero(snapshot.labels != UNLABELED)
    q[labeled] = one_hot[snapshot.labels[labeled]]
    if trust is not None:
        weights[labeled] *= trust[labeled]
    return PoolTargets(probabilities=q, weights=weights)


def similarity_graph(
    context: StageContext, inputs: Inputs, trust: LabelTrust | None, report: Report
) -> SimilarityGraph | None:
    """The graph of an earlier round on the same items or of the stage "check", or else a new one; None if the pool has
    no graph."""
    if context.graph is not None:
        return context.graph
    if trust is not None and trust.graph is not None:
        return trust.graph
    snapshot = context.snapshot
    return build_similarity_graph(inputs, snapshot.labels, snapshot.held_out, context.config.similarity, report)


def delivered_model(training: TrainingResult, refined: RefinedModel | None) -> TrainedModel | None:
    """The model that is used for prediction, stored and exported: the refined one if there is one."""
    return training.model if refined is None else refined.model


def predict_test_items(context: StageContext, inputs: Inputs, model: TrainedModel | None) -> dict[str, NDArray[Any]]:
    """(k,) ids of all readable test items and (k, C) inductive probabilities, by kind of artifact. Unlabeled ones are
    included because a test item may get its label after the round. Empty without a model or test items. No label of
    them is read."""
    rows = np.flatnonzero(context.snapshot.held_out & inputs.readable)
    if model is None or not len(rows):
        return {}
    found = predict(model, inputs, rows, runtime=context.runtime)
    return {ITEMS: context.snapshot.item_ids[rows], PROBABILITIES: found.probabilities}
