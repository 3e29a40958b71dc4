"""The stages "decide" and "rival" of the preset `auto`: collect evidence, apply the rule, and train both approaches in
rounds that compare them."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from core.learning.training import nothing_to_learn
from core.media.inputs import prepare
from core.rounds.approach.decision import ENOUGH, decide
from core.rounds.approach.evidence import (
    NONE,
    Tally,
    cross_validated,
    progressive_validation,
    tally,
    validation_rows,
)
from core.rounds.approach.presets import both_approaches, chooses_approach
from core.rounds.context import Previous, Rival, StageContext
from core.rounds.outputs import Approach, BothPredictions, EncodedFeatures, Predictions
from core.types import UNLABELED, Progress, Report

STAGE, SECOND = "decide", "rival"


def is_undecided(context: StageContext, *needs: object) -> bool:
    """Whether the stage "decide" runs: if the settings leave the choice open and the encoder is available."""
    return chooses_approach(context.config) and context.encoder is not None


def decide_approach(context: StageContext, encoded: EncodedFeatures) -> Approach:
    """The approach of this round, chosen by training labels and the stored predictions of earlier rounds."""
    assert context.encoder is not None
    snapshot, encoder = context.snapshot, context.encoder
    approaches, past = both_approaches(context.config, context.runtime), context.previous.load_past()
    if not (encoded.pool.readable & ~snapshot.held_out).any():
        shown = encoder.description.shown
        return Approach(
            config=approaches.scratch,
            rival=None,
            note=f"Automatic: training from scratch: encoder {shown} gives no features.",
        )
    before = progressive_validation(snapshot, past, encoder.identity)
    folds = compare_heads(context, encoded) if before.n < ENOUGH else Tally()
    labels = np.where(encoded.pool.readable, snapshot.labels, UNLABELED)
    found = decide(int(snapshot.labeled.sum()), past, encoder.identity, encoder.description.shown, before, folds)
    learns = nothing_to_learn(labels, snapshot.n_classes) is None
    own, other = approaches.encoder, approaches.scratch
    if not found.uses_encoder:
        own, other = other, own
    return Approach(config=own, rival=other if found.trains_both and learns else None, note=found.note)


def compare_heads(context: StageContext, encoded: EncodedFeatures) -> Tally:
    """Cross-validation of the head on the encoder's features and of one on the network's inputs."""
    snapshot, head = context.snapshot, context.config.head
    rows = validation_rows(snapshot, encoded.pool.readable)
    labels = snapshot.labels[rows]
    context.report(Progress(STAGE, 0, 2, "cross-validation, encoder"))
    by_encoder = cross_validated(encoded.pool.features(rows), labels, snapshot.n_classes, head)
    if not (by_encoder != NONE).any():
        return Tally()
    context.report(Progress(STAGE, 1, 2, "cross-validation, inputs"))
    by_inputs = cross_validated(input_vectors(context, rows), labels, snapshot.n_classes, head)
    scored = by_encoder != NONE
    return tally(labels[scored], by_encoder[scored], by_inputs[scored])


def input_vectors(context: StageContext, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(len(rows), d) inputs of a network trained from scratch, as vectors; zeros for items that cannot be read."""
    snapshot = context.snapshot
    hashes = [snapshot.hashes[row] for row in rows]
    media = context.config.media
    made = prepare(hashes, context.read, snapshot.kind, media, context.cache, as_stage(STAGE, context.report))
    return np.asarray(made.clean.take(np.arange(len(rows))), np.float32).reshape(len(rows), -1)


def apply_decision(context: StageContext, approach: Approach | None) -> StageContext:
    """The context with the settings of the chosen approach; unchanged if nothing had to be decided."""
    if approach is None or not is_undecided(context):
        return context
    uses = bool(approach.config.encoder.identity)
    rival = None
    if approach.rival is not None:
        rival = Rival(config=approach.rival, encoder=None if uses else context.encoder)
    encoder = context.encoder if uses else None
    return dataclasses.replace(context, config=approach.config, encoder=encoder, rival=rival)


def rival_context(context: StageContext) -> StageContext:
    """The context in which the other approach is trained: without the model, landmarks and map of the previous
    round."""
    assert context.rival is not None
    return dataclasses.replace(
        context,
        config=context.rival.config,
        encoder=context.rival.encoder,
        rival=None,
        previous=Previous(),
        graph=None,
        test_items=None,
        checkpoints=context.checkpoints / SECOND if context.checkpoints is not None else None,
        report=as_stage(SECOND, context.report),
    )


def both_classes(
    context: StageContext, own: Predictions, other: Predictions, readable: NDArray[np.bool_]
) -> BothPredictions:
    """The classes predicted by the round's own approach and by the other one, for unlabeled items."""
    columns = [np.asarray(one.probabilities).argmax(1) for one in (own, other)]
    if context.encoder is None:
        columns.reverse()
    classes = np.stack(columns, 1).astype(np.int32)
    classes[context.snapshot.labeled | ~readable] = NONE
    return BothPredictions(classes=classes)


def as_stage(name: str, report: Report) -> Report:
    """A progress callback that reports under the name of this stage, whatever name the computation uses."""

    def renamed(progress: Progress) -> None:
        report(dataclasses.replace(progress, stage=name))

    return renamed
