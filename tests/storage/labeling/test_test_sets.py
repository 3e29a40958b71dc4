"""Test sets drawn from the pool: a random draw, labeled blind, never trained on, never picked."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sqlalchemy import update

from app.views.figures.charts import wilson
from core.config import RoundConfig
from core.errors import InvalidInput
from core.types import UNLABELED, Selection
from experiments.interval_coverage import group_coverage
from storage.database.schema import Item
from storage.labeling.groups import groups_on_both_sides
from storage.labeling.held_out import move_to_pool
from storage.labeling.labeled_items import items_to_hide, undecided_labels
from storage.labeling.state_arrays import item_states
from storage.labeling.test_sets import (
    choose_items,
    count_waiting_tests,
    draw_test_set,
    list_test_sets,
    own_test_items,
    serve_tests_first,
    test_frame,
)
from storage.projects import audit
from storage.rounds.log import RoundLog
from tests.storage.pools import event, make_pool

test_frame.__test__ = False  # type: ignore[attr-defined]


def ids(made) -> list[int]:
    return own_test_items(made.store, made.project_id).item_ids.tolist()


def finish_round(made, picks) -> None:
    rounds = RoundLog(made.store, made.project_id)
    chosen = Selection(item_ids=np.array(picks), scores=np.ones(len(picks)), strategy="bico")
    rounds.finish(rounds.request(RoundConfig()).id, arrays={}, selection=chosen, metrics={})


def test_drawn_items_wait_first_and_are_test_items_for_rounds(store):
    made = make_pool(store, 30)
    row = draw_test_set(store, made.project_id, 8, seed=3)
    assert (row.draw.n_items, row.draw.n_frame, row.draw.n_labels, row.draw.seed) == (8, 30, 0, 3)
    assert list_test_sets(store, made.project_id) == [row] and count_waiting_tests(store, made.project_id) == 8
    first = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=8)]
    assert sorted(first) == ids(made)
    made.pool.apply([event(first[0], class_id=made.classes[1])], annotator=made.ann)
    snapshot = made.pool.snapshot()
    at = np.searchsorted(snapshot.item_ids, np.sort(first))
    assert snapshot.held_out[at].all() and not snapshot.eligible[at].any() and snapshot.eligible.sum() == 22
    assert (snapshot.labels == UNLABELED).all(), "no test label is trained on"
    known = snapshot.held_out_labels[np.searchsorted(snapshot.item_ids, first[0])]
    assert known == 1 and (snapshot.held_out_labels != UNLABELED).sum() == 1
    assert made.pool.counts().labeled == 0 and made.pool.counts().waiting == 29
    assert made.pool.rebuild() == 0
    assert own_test_items(store, made.project_id).labeled.sum() == 1
    assert audit.list_entries(store, made.project_id)[0].kind == "draw_test_set"
    assert not len(undecided_labels(store, made.project_id)), "Review does not ask to change a test label"


def test_test_items_are_served_before_later_picks_on_request(store):
    made = make_pool(store, 20)
    draw_test_set(store, made.project_id, 3, seed=0)
    picks = [one for one in made.items if one not in ids(made)][:2]
    finish_round(made, picks)
    order = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=5)]
    assert order[:2] == picks and sorted(order[2:]) == ids(made)
    made.pool.release(annotator=made.ann, holder="tab")
    assert serve_tests_first(store, made.project_id) == 3
    again = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=5)]
    assert sorted(again[:3]) == ids(made) and again[3:] == picks


def test_a_draw_is_the_same_for_its_seed_and_leaves_out_items_on_screen(store):
    made, other = make_pool(store, 40), make_pool(store, 40, name="others")
    on_screen = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=10)]
    row = draw_test_set(store, made.project_id, 30, seed=1)
    assert row.draw.n_open == 10 and row.draw.n_frame == 30 and not set(ids(made)) & set(on_screen)
    with pytest.raises(InvalidInput, match=r"1 test items were requested, and 0 items .* \(10 more are on someone"):
        draw_test_set(store, made.project_id, 1)
    chosen = [np.sort(choose_items(np.arange(50), 9, np.random.default_rng(seed))).tolist() for seed in (5, 5, 6)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert ids(other) == []


def test_groups_get_their_share_of_a_draw():
    groups = ["a"] * 50 + ["b"] * 30 + ["c"] * 20
    drawn = choose_items(np.arange(100), 23, np.random.default_rng(0), groups)
    counts = Counter(groups[one] for one in drawn.tolist())
    assert len(set(drawn.tolist())) == 23 and counts["a"] in (11, 12) and counts["b"] in (6, 7, 8)
    assert counts["c"] in (4, 5) and sum(counts.values()) == 23


def test_a_draw_follows_the_groups_of_the_items(store):
    made = make_pool(store, 40)
    with store.write() as connection:
        for number, item in enumerate(made.items):
            named = {"group_name": "ada" if number < 20 else "bo"} if number < 30 else {"recording_sha256": "r" * 64}
            connection.execute(update(Item).where(Item.id == item).values(**named))
    row = draw_test_set(store, made.project_id, 8, seed=0)
    places = [made.items.index(one) for one in ids(made)]
    counts = [sum(first <= one < end for one in places) for first, end in ((0, 20), (20, 30), (30, 40))]
    assert row.draw.n_groups == 3 and counts == [4, 2, 2]


def in_groups(made, size: int) -> dict[int, str]:
    """Groups of `size` items, in order."""
    group = {item: f"speaker {number // size:02d}" for number, item in enumerate(made.items)}
    with made.store.write() as connection:
        for item, name in group.items():
            connection.execute(update(Item).where(Item.id == item).values(group_name=name))
    return group


def test_whole_groups_are_drawn_where_there_are_enough_and_none_is_on_both_sides(store):
    made = make_pool(store, 156)
    group = in_groups(made, 6)
    made.pool.apply([event(made.items[0], class_id=made.classes[0])], annotator=made.ann)
    row = draw_test_set(store, made.project_id, 20, seed=0)
    drawn = {group[one] for one in ids(made)}
    assert len(ids(made)) == row.draw.n_items == 20
    assert (row.draw.n_groups, row.draw.n_test_groups, row.draw.n_set_aside) == (25, 8, 28)
    assert len(drawn) == 8 and group[made.items[0]] not in drawn, "a group with a label is not new"
    snapshot = made.pool.snapshot()
    outside = {group[int(one)] for one in snapshot.item_ids[~snapshot.held_out]}
    assert not outside & drawn and groups_on_both_sides(store, made.project_id) == []
    assert made.pool.counts().waiting == 155 - 28 and made.pool.rebuild() == 0
    found = own_test_items(store, made.project_id)
    assert not found.divided and [group[one] for one in found.item_ids.tolist()] == list(found.groups)


def test_too_few_groups_for_whole_ones_get_their_shares_or_a_reason(store):
    made = make_pool(store, 46)
    in_groups(made, 2)
    with pytest.raises(InvalidInput, match=r"There are 23 of these; at least 24 are needed"):
        draw_test_set(store, made.project_id, 4, by="groups")
    assert ids(made) == []
    row = draw_test_set(store, made.project_id, 23, seed=0)
    assert (row.draw.n_test_groups, row.draw.n_groups) == (0, 23) and own_test_items(store, made.project_id).divided
    with pytest.raises(InvalidInput, match="have no groups"):
        draw_test_set(store, make_pool(store, 30, name="plain").project_id, 4, by="groups")


@pytest.mark.parametrize("n_groups", [24, 60])
def test_the_interval_over_groups_covers_where_that_over_items_does_not(n_groups):
    over_groups, as_independent = group_coverage(0.85, n_groups, 0.1, 500)
    assert 0.93 <= over_groups <= 0.985 and as_independent < 0.85


def test_only_labels_given_in_random_order_can_be_test_labels(store):
    made = make_pool(store, 30)
    order = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=30)]
    made.pool.release(annotator=made.ann, holder="tab")
    made.pool.apply([event(order[1], "skip")], annotator=made.ann)
    for one in (0, 2, 3, 4, 12, 20):  # 12 and 20 were chosen by someone: items before them have no label
        made.pool.apply([event(order[one], class_id=made.classes[0])], annotator=made.ann)
    assert sorted(test_frame(store, made.project_id).random_labels.tolist()) == sorted(
        order[one] for one in (0, 2, 3, 4)
    )
    row = draw_test_set(store, made.project_id, 10, n_labels=3, seed=2)
    drawn = own_test_items(store, made.project_id)
    assert row.draw.n_labels == 3 and drawn.labeled.sum() == 3 and drawn.waiting.sum() == 7
    assert set(drawn.item_ids[drawn.labeled].tolist()) < {order[one] for one in (0, 2, 3, 4)}
    shown = event(order[6], class_id=made.classes[0], suggestion="shown", suggested_class_id=made.classes[0])
    made.pool.apply([event(order[5], class_id=made.classes[0]), shown], annotator=made.ann)
    left = test_frame(store, made.project_id).random_labels.tolist()
    assert order[6] not in left, "a label given with a suggestion in view is not blind"
    finish_round(made, [order[25]])
    assert len(test_frame(store, made.project_id).random_labels) == 0, "a round may have used the labels"


@pytest.mark.parametrize("in_memory", [False, True])
def test_predictions_of_test_items_are_hidden_until_labeled_in_every_project(store, in_memory):
    made = make_pool(store, 12)
    if in_memory:
        item_states(store, made.project_id)
    draw_test_set(store, made.project_id, 4, seed=0)
    assert items_to_hide(store, made.project_id, made.ann).tolist() == ids(made)
    assert items_to_hide(store, made.project_id, None).tolist() == ids(made)
    made.pool.apply([event(ids(made)[0], class_id=made.classes[0])], annotator=made.ann)
    assert items_to_hide(store, made.project_id, made.ann).tolist() == ids(made)[1:]


def test_a_test_item_moved_back_is_an_ordinary_item(store):
    made = make_pool(store, 6)
    draw_test_set(store, made.project_id, 3, seed=0)
    gone = ids(made)[0]
    move_to_pool(store, made.project_id, [gone])
    assert gone not in ids(made) and len(ids(made)) == 2
    assert made.pool.rebuild() == 0 and made.pool.snapshot().eligible.sum() == 4


@pytest.mark.parametrize("n_groups", [0, 7])
def test_the_interval_covers_the_accuracy_of_the_pool_in_93_to_97_percent_of_draws(n_groups):
    """500 draws of 200 from a pool of 5,000 of which 87 % are predicted correctly, less often in some groups."""
    rng = np.random.default_rng(11)
    group = np.arange(5_000) % max(n_groups, 1)
    correct = rng.random(5_000) < 0.87 + 0.03 * np.cos(group)
    truth, covered = correct.mean(), 0
    names = [str(one) for one in group] if n_groups else ()
    for seed in range(500):
        drawn = choose_items(np.arange(5_000), 200, np.random.default_rng([seed, 1]), names)
        low, high = wilson(int(correct[drawn].sum()), len(drawn))
        covered += low <= truth <= high
    assert 0.93 <= covered / 500 <= 0.97
