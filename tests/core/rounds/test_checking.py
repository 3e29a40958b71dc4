"""The stage "check": wrong labels lose weight with and without a similarity graph, and rounds use the weights."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from core.config import LabelsConfig
from core.labels.earlier_rounds import EarlierRounds
from core.labels.trust import SUSPECTED, graph_predictor, label_trust
from core.rounds.checking import check_labels, checked_rows, labels_are_checked, trust_notes
from core.rounds.context import Previous
from core.rounds.outputs import Predictions
from core.rounds.stages import prepare_inputs, propagate
from core.types import UNLABELED
from tests.app.worker_processes import quick_config
from tests.core.media.samples import tone, wav
from tests.core.rounds.small_rounds import context_of, pool, similar_clips

pytestmark = pytest.mark.usefixtures("one_thread")
WRONG = (10, 20, 26)


def labels() -> dict[int, int]:
    """30 of 60 items, in classes by their row; three are wrong."""
    return {row: (row + (row in WRONG)) % 3 for row in range(30)}


def clips():
    """60 tones of three pitches."""
    rng = np.random.default_rng(0)
    data = [wav(tone(300 * (1 + 2 * (row % 3)) * rng.uniform(0.97, 1.03), seconds=0.2)) for row in range(60)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    snapshot, _ = pool(labels(), n=60, kind="audio")
    return dataclasses.replace(snapshot, hashes=hashes), dict(zip(hashes, data, strict=True))


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_wrong_labels_lose_weight_and_right_ones_keep_it(kind):
    snapshot, media = clips() if kind == "audio" else pool(labels(), n=60)
    config = similar_clips() if kind == "audio" else quick_config()
    context = context_of(snapshot, media, config)
    inputs = prepare_inputs(context)
    assert labels_are_checked(context, inputs)
    found = check_labels(context, inputs)
    assert (found.graph is not None) == (kind == "audio")
    right = np.setdiff1d(np.arange(30), WRONG)
    suspects = np.flatnonzero(found.weights < SUSPECTED).tolist()
    assert set(suspects) <= set(WRONG) and len(suspects) >= 2 and found.weights[right].min() > 0.7
    assert (found.weights[30:] == 1).all() and found.n_checked == 30
    assert (found.belief[suspects].argmax(1) == np.array(suspects) % 3).all()
    expected = f"{len(suspects)} labels are more likely wrong than right, of 30 checked."
    assert trust_notes(found)[0].startswith(expected)
    confirmed = dataclasses.replace(snapshot, confirmed=np.arange(60) == suspects[0])
    again = check_labels(context_of(confirmed, media, config), inputs)
    assert again.weights[suspects[0]] == 1 and again.weights[suspects[1]] < SUSPECTED
    if kind == "audio":
        _neighbors_follow_the_others(context, inputs, found)


def _neighbors_follow_the_others(context, inputs, trust) -> None:
    """Equal predictions everywhere: what propagation adds comes from the labels."""
    before = np.full((60, 3), 1 / 3, np.float32)
    rows = np.flatnonzero(context.snapshot.labels != UNLABELED)
    before[rows] = np.eye(3, dtype=np.float32)[context.snapshot.labels[rows]]
    predictions = Predictions(probabilities=before, embeddings=np.empty((60, 0), np.float32))
    plain, weighed = propagate(context, inputs, predictions), propagate(context, inputs, predictions, trust)
    truth = np.arange(60) % 3
    right = [one.probabilities[np.arange(30, 60), truth[30:]].mean() for one in (plain, weighed)]
    assert right[1] > right[0]
    assert np.array_equal(weighed.probabilities[rows], before[rows]), "a label stays as it was given"


def test_clips_of_earlier_rounds_are_checked_by_the_graph_alone():
    snapshot, media = clips()
    config = dataclasses.replace(similar_clips(), labels=LabelsConfig(clips="graph"))
    context = context_of(snapshot, media, config)
    found = check_labels(context, prepare_inputs(context))
    expected = label_trust(snapshot.labels, 3, graph_predictor(found.graph, 3, 60, config.similarity.reach))
    np.testing.assert_array_equal(found.weights, expected.weights)
    pooled = context_of(snapshot, media, similar_clips())
    assert not np.array_equal(check_labels(pooled, prepare_inputs(pooled)).weights, expected.weights)


def test_a_prediction_of_an_earlier_round_lowers_the_trust_in_a_label_that_it_contradicts():
    """Label 29 is right by all other evidence, and the earlier round is sure of another class. An even prediction
    changes nothing."""
    snapshot, media = clips()
    context = context_of(snapshot, media, similar_clips())
    inputs = prepare_inputs(context)
    alone = check_labels(context, inputs)
    right = np.setdiff1d(np.arange(30), WRONG)
    before = np.where(np.arange(60) < 15, snapshot.labels, UNLABELED)
    sure = np.full((60, 3), 0.01)
    sure[np.arange(60), np.arange(60) % 3] = 0.98
    sure[29] = (0.0, 1.0, 0.0)  # its label is 2
    found = {}
    for name, probabilities in (("sure", sure), ("even", np.full((60, 3), 1 / 3))):
        earlier = EarlierRounds(None)
        earlier.add(dataclasses.replace(snapshot, labels=before), probabilities)
        previous = Previous(load_predictions=earlier.newest_first)
        found[name] = check_labels(dataclasses.replace(context, previous=previous), inputs)
    np.testing.assert_allclose(found["even"].weights, alone.weights, atol=0.02)
    doubt = {name: 1.0 - float(one.belief[29, 2]) for name, one in (("alone", alone), *found.items())}
    assert doubt["sure"] > 3 * doubt["alone"] > 0
    assert (found["sure"].belief[[20, 26]].argmax(1) == np.array([20, 26]) % 3).all()
    assert found["sure"].weights[right[right < 29]].min() > 0.7
    off = dataclasses.replace(similar_clips(), labels=LabelsConfig(earlier_rounds=False))
    ignored = check_labels(dataclasses.replace(context, previous=previous, config=off), inputs)
    np.testing.assert_array_equal(ignored.weights, alone.weights)


def test_test_items_and_their_labels_do_not_change_the_trust_in_labels_of_clips():
    snapshot, media = clips()
    out = np.arange(60) >= 50
    weights = []
    for shift, others in (
        (0, {}),
        (1, {snapshot.hashes[row]: wav(tone(90 + row, seconds=0.2)) for row in range(50, 60)}),
    ):
        truth = np.where(out, (np.arange(60) + shift) % 3, UNLABELED)
        held = dataclasses.replace(snapshot, held_out=out, held_out_labels=truth, eligible=snapshot.eligible & ~out)
        context = context_of(held, media | others, similar_clips())
        weights.append(check_labels(context, prepare_inputs(context)).weights)
    np.testing.assert_array_equal(*weights)
    assert (weights[0][[10, 20, 26]] < SUSPECTED).sum() >= 2


def test_few_labels_and_switched_off_checks_are_left_alone():
    few, media = pool({row: row % 3 for row in range(19)}, n=40)
    context = context_of(few, media, quick_config())
    inputs = prepare_inputs(context)
    assert not labels_are_checked(context, inputs) and trust_notes(None) == ()
    many, media = pool(labels(), n=60)
    off = dataclasses.replace(quick_config(), labels=LabelsConfig(weigh=False))
    assert not labels_are_checked(context_of(many, media, off), prepare_inputs(context_of(many, media, off)))


def test_checked_rows_are_all_labeled_ones_and_evenly_spaced_others():
    labels_ = np.full(10_000, UNLABELED)
    labels_[::7] = 0
    usable = np.arange(10_000) % 2 == 0
    rows = checked_rows(usable, labels_)
    assert len(rows) == 4_000 and usable[rows].all()
    assert np.isin(np.flatnonzero(usable & (labels_ == 0)), rows).all()
