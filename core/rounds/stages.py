"""The stages of a round, written once: their functions and the list that every caller runs.

    encode     features of all items by a pretrained encoder         shared by workers in units of rows
    decide     the encoder or training from scratch, if the preset `auto` has both
    prepare    network inputs of all items, or the features of the encoder instead
    check      how far each label can be trusted
    train      a model, if there is anything to learn from
    refine     more steps of the network on propagated labels of clips, or on targets by patches of photographs
    predict    probabilities and embeddings of all rows              shared by workers in units of rows
    propagate  label propagation over the similarity graph
    features   kernel features of the candidate rows                 shared by workers in units of rows
    select     the next batch
    map        two-dimensional points, starting from the last map
    rival      predictions of the other approach, in some rounds of the preset `auto`

A new stage is a function, the frozen dataclass it returns (`core.rounds.outputs`), a record here with its place in
`STAGES`, and its name and title in `core.rounds.stage_names`. An array, a scalar or a nested dataclass in the output is
stored by the worker without further code.

Without a model: before the first label, while all labels are of one class, or if no labeled item can be read, there is
nothing to train. The batch then covers the pool by the kernel features alone, and a note says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from core.acquisition import catalog, registry
from core.errors import TrainingFailed
from core.learning.training import predict
from core.media.inputs import Inputs, prepare
from core.rounds.approach.deciding import as_stage, both_classes, decide_approach, is_undecided, rival_context
from core.rounds.candidates import (
    choose_candidates,
    features_are_read,
    fit_kernel,
    kernel_features,
    project,
    selection_request,
    with_labels,
)
from core.rounds.checking import add_second_looks, check_labels, labels_are_checked, trust_notes
from core.rounds.context import StageContext
from core.rounds.embedding_map import MapRequest, embed
from core.rounds.encoding import (
    ENCODE_ROWS,
    encode_items,
    encode_rows,
    encoded_inputs,
    encoder_is_used,
    join_encoded,
    space_rows,
)
from core.rounds.outputs import (
    Approach,
    Batch,
    BothPredictions,
    CandidateFeatures,
    EncodedBlock,
    EncodedFeatures,
    FeatureBlock,
    FittedKernel,
    LabelTrust,
    MapPoints,
    NoCommon,
    Predictions,
    PropagatedLabels,
    RefinedModel,
    TrainingResult,
)
from core.rounds.round_model import delivered_model, is_refined, refine_model, similarity_graph, train_model
from core.rounds.stage import Outputs, Split, Stage, check_order, run_stages
from core.rounds.stage_names import TITLES
from core.similarity.graph import connect_new_items
from core.similarity.propagation import extended, propagate_labels
from core.types import Selection

PREDICTION_ROWS, FEATURE_ROWS = 20_000, 2_000  # rows of one unit of work


def prepare_inputs(context: StageContext, encoded: EncodedFeatures | None = None) -> Inputs:
    """Inputs of all items, computed once per item and cached. In a round with an encoder they are its features, and no
    spectrogram or small picture is computed. Statistics do not include test items."""
    if context.encoder is not None:
        return encoded_inputs(context, encoded or encode_items(context))
    snapshot, config = context.snapshot, context.config
    made = prepare(
        snapshot.hashes, context.read, snapshot.kind, config.media, context.cache, context.report,
        held_out=snapshot.held_out,
    )  # fmt: skip
    return dataclasses.replace(made, augmentation=config.augmentation)


def predict_all(
    context: StageContext, inputs: Inputs, training: TrainingResult, refined: RefinedModel | None = None
) -> Predictions:
    """Probabilities and embeddings of all rows."""
    return predict_rows(context, NoCommon(), 0, len(inputs), inputs, training, refined)


def predict_rows(  # noqa: PLR0913 - the signature of a unit
    context: StageContext,
    common: NoCommon,
    start: int,
    stop: int,
    inputs: Inputs,
    training: TrainingResult,
    refined: RefinedModel | None = None,
) -> Predictions:
    """Probabilities and embeddings of the rows from `start` to `stop`. A human label replaces the prediction."""
    rows, model = np.arange(start, stop), delivered_model(training, refined)
    if model is None:
        n_classes = max(context.snapshot.n_classes, 1)
        even = np.full((len(rows), n_classes), 1.0 / n_classes, np.float32)
        probabilities = with_labels(even, context.snapshot, rows)
        near = space_rows(context, inputs, rows) if inputs.encoder else project(inputs, rows, context)
        return Predictions(probabilities=probabilities, embeddings=near, has_model=False)
    strategy_views = catalog.entry(context.config.selection.strategy).prediction_views
    n_views = 0 if inputs.encoder else max(context.config.training.predict_views, strategy_views)
    found = predict(model, inputs, rows, runtime=context.runtime, n_views=n_views, report=context.report)
    broken = int((~np.isfinite(found.probabilities).all(1)).sum())
    if broken:
        raise TrainingFailed(f"The predictions are not finite numbers for {broken} of {len(rows)} items.")
    return Predictions(
        probabilities=with_labels(found.probabilities, context.snapshot, rows),
        embeddings=found.embeddings,
        view_probabilities=found.view_probabilities,
        temperature=float(model.temperature),
    )


def join_predictions(
    context: StageContext,
    common: NoCommon,
    blocks: Sequence[Predictions],
    inputs: Inputs,
    training: TrainingResult,
    refined: RefinedModel | None = None,
) -> Predictions:
    """One array of each kind, from blocks in the order of their rows."""
    views = [block.view_probabilities for block in blocks if block.view_probabilities is not None]
    return Predictions(
        probabilities=np.concatenate([block.probabilities for block in blocks]),
        embeddings=np.concatenate([block.embeddings for block in blocks]),
        view_probabilities=np.concatenate(views, axis=1) if views else None,
        has_model=training.model is not None,
        temperature=blocks[0].temperature,
    )


def propagate(
    context: StageContext,
    inputs: Inputs,
    predictions: Predictions,
    trust: LabelTrust | None = None,
    refined: RefinedModel | None = None,
) -> PropagatedLabels:
    """Predictions of the whole pool after label propagation (`core.similarity.propagation`). Test items are not in the
    graph and keep their predictions; the propagated predictions for them as new items are returned separately."""
    snapshot, config = context.snapshot, context.config.similarity
    report = as_stage("propagate", context.report)
    graph = similarity_graph(context, inputs, trust, report) if refined is None else refined.graph
    new = context.test_items
    before = predictions.probabilities
    if graph is None or not predictions.has_model:
        return PropagatedLabels(probabilities=before, graph=graph)
    weights = None if trust is None else np.asarray(trust.weights)
    after = propagate_labels(graph, before, snapshot.labels, config.reach, weights)
    if new is None:
        new = connect_new_items(inputs, graph, snapshot.held_out, report)
    return PropagatedLabels(
        probabilities=after,
        graph=graph,
        n_changed=int((after.argmax(1) != before.argmax(1)).sum()),
        test_items=new,
        test_probabilities=extended(graph, new, before[new.rows], after[graph.rows], config.reach),
    )


def compute_features(context: StageContext, inputs: Inputs) -> CandidateFeatures:
    """Kernel features of all candidate rows."""
    fitted = fit_kernel(context, inputs)
    rows = choose_candidates(context, inputs).rows
    return CandidateFeatures(features=kernel_features(context, inputs, fitted.kernel, rows), fitted=fitted)


def compute_feature_block(
    context: StageContext, fitted: FittedKernel, start: int, stop: int, inputs: Inputs
) -> FeatureBlock:
    """Kernel features of the candidates from `start` to `stop`."""
    rows = choose_candidates(context, inputs).rows[start:stop]
    return FeatureBlock(features=kernel_features(context, inputs, fitted.kernel, rows))


def join_features(
    context: StageContext, fitted: FittedKernel, blocks: Sequence[FeatureBlock], inputs: Inputs
) -> CandidateFeatures:
    return CandidateFeatures(features=np.concatenate([block.features for block in blocks]), fitted=fitted)


def select_batch(
    context: StageContext,
    inputs: Inputs,
    predictions: Predictions,
    labels: PropagatedLabels,
    features: CandidateFeatures | None,
    trust: LabelTrust | None = None,
) -> Batch:
    """The next batch: as many items as the settings request, or fewer if fewer can be chosen. `features` is None in
    rounds that do not read them."""
    candidates = choose_candidates(context, inputs)
    influence = None
    request, notes = selection_request(context, inputs, predictions, labels, features)
    if request is None:
        empty, strategy = np.empty(0, np.int64), context.config.selection.strategy
        chosen = Selection(item_ids=empty, scores=empty.astype(np.float32), strategy=strategy)
    else:
        chosen = registry.select(request, context.config.selection, context.report, explain=context.explain)
        chosen, influence = add_second_looks(context, request, chosen, trust, candidates.rows)
    selection = dataclasses.replace(chosen, notes=(*chosen.notes, *notes))
    return Batch(
        selection=selection,
        candidate_rows=candidates.rows,
        notes=(*candidates.notes, *trust_notes(trust)),
        label_influence=influence,
    )


def draw_map(context: StageContext, predictions: Predictions, batch: Batch) -> MapPoints:
    """(n, 2) points of the map, which starts from the last one."""
    snapshot = context.snapshot
    request = MapRequest(
        item_ids=snapshot.item_ids,
        vectors=predictions.embeddings,
        keep=snapshot.labeled | np.isin(snapshot.item_ids, batch.selection.item_ids),
        previous=context.previous.load_map(),
    )
    return MapPoints(
        points=embed(request, context.config.map, seed=context.runtime.seed_for("map"), report=context.report)
    )


def predict_both(
    context: StageContext, encoded: EncodedFeatures | None, inputs: Inputs, predictions: Predictions
) -> BothPredictions:
    """Train the approach that the round does not use, by the same stages, and return the classes that both predict."""
    outputs = Outputs()
    outputs.add(EncodedFeatures, encoded)
    for _ in run_stages((PREPARE, CHECK, TRAIN, REFINE, PREDICT), rival_context(context), outputs):
        pass
    return both_classes(context, predictions, outputs.get(Predictions), inputs.readable & outputs.get(Inputs).readable)


ENCODE: Stage[EncodedFeatures] = Stage(
    name="encode",
    title=TITLES["encode"],
    needs=(),
    gives=EncodedFeatures,
    run=encode_items,
    is_read=encoder_is_used,
    split=Split(
        unit_rows=ENCODE_ROWS,
        n_rows=lambda context: len(context.snapshot.hashes),
        common=NoCommon,
        prepare=lambda context: NoCommon(),
        block=EncodedBlock,
        run_unit=encode_rows,
        join=join_encoded,
    ),
)
DECIDE: Stage[Approach] = Stage(
    name="decide",
    title=TITLES["decide"],
    needs=(EncodedFeatures,),
    gives=Approach,
    run=decide_approach,
    is_read=is_undecided,
)
PREPARE: Stage[Inputs] = Stage(
    name="prepare", title=TITLES["prepare"], needs=(EncodedFeatures,), gives=Inputs, run=prepare_inputs
)
CHECK: Stage[LabelTrust] = Stage(
    name="check",
    title=TITLES["check"],
    needs=(Inputs,),
    gives=LabelTrust,
    run=check_labels,
    is_read=labels_are_checked,
)
TRAIN: Stage[TrainingResult] = Stage(
    name="train", title=TITLES["train"], needs=(Inputs, LabelTrust), gives=TrainingResult, run=train_model
)
REFINE: Stage[RefinedModel] = Stage(
    name="refine",
    title=TITLES["refine"],
    needs=(Inputs, TrainingResult, LabelTrust),
    gives=RefinedModel,
    run=refine_model,
    is_read=is_refined,
)
PREDICT: Stage[Predictions] = Stage(
    name="predict",
    title=TITLES["predict"],
    needs=(Inputs, TrainingResult, RefinedModel),
    gives=Predictions,
    run=predict_all,
    split=Split(
        unit_rows=PREDICTION_ROWS,
        n_rows=lambda context, inputs, training, refined: len(inputs),
        common=NoCommon,
        prepare=lambda context, inputs, training, refined: NoCommon(),
        block=Predictions,
        run_unit=predict_rows,
        join=join_predictions,
    ),
)
PROPAGATE: Stage[PropagatedLabels] = Stage(
    name="propagate",
    title=TITLES["propagate"],
    needs=(Inputs, Predictions, LabelTrust, RefinedModel),
    gives=PropagatedLabels,
    run=propagate,
)
FEATURES: Stage[CandidateFeatures] = Stage(
    name="features",
    title=TITLES["features"],
    needs=(Inputs,),
    gives=CandidateFeatures,
    run=compute_features,
    is_read=features_are_read,
    split=Split(
        unit_rows=FEATURE_ROWS,
        n_rows=lambda context, inputs: len(choose_candidates(context, inputs).rows),
        common=FittedKernel,
        prepare=fit_kernel,
        block=FeatureBlock,
        run_unit=compute_feature_block,
        join=join_features,
    ),
)
SELECT: Stage[Batch] = Stage(
    name="select",
    title=TITLES["select"],
    needs=(Inputs, Predictions, PropagatedLabels, CandidateFeatures, LabelTrust),
    gives=Batch,
    run=select_batch,
)
MAP: Stage[MapPoints] = Stage(
    name="map", title=TITLES["map"], needs=(Predictions, Batch), gives=MapPoints, run=draw_map
)
RIVAL: Stage[BothPredictions] = Stage(
    name="rival",
    title=TITLES["rival"],
    needs=(EncodedFeatures, Inputs, Predictions),
    gives=BothPredictions,
    run=predict_both,
    is_read=lambda context, encoded, inputs, predictions: context.rival is not None and predictions.has_model,
)

STAGES: tuple[Stage[Any], ...] = (
    ENCODE, DECIDE, PREPARE, CHECK, TRAIN, REFINE, PREDICT, PROPAGATE, FEATURES, SELECT, MAP, RIVAL,
)  # fmt: skip
check_order(STAGES)
