"""Second looks: a labeled item waits again, once, and labels that were given twice or decided are confirmed."""

from __future__ import annotations

import numpy as np
import pytest

from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.state_arrays import item_states
from storage.projects.annotators import annotator_named
from storage.projects.projects import change_settings
from storage.rounds.log import RoundLog
from tests.storage.pools import event, make_pool


def look_again(made, item: int, also: tuple[int, ...] = ()) -> None:
    """A finished round that picks `also`, and `item` for a second look."""
    picks = (*also, item)
    reasons = tuple(PickReason(order=k + 1, score=1.0, second_look=one == item) for k, one in enumerate(picks))
    chosen = Selection(item_ids=np.array(picks), scores=np.ones(len(picks)), strategy="bico", reasons=reasons)
    rounds = RoundLog(made.store, made.project_id)
    rounds.finish(rounds.request(RoundConfig()).id, arrays={}, selection=chosen, metrics={})


def served(made, n: int = 3) -> list[int]:
    found = [one.id for one in made.pool.next_to_label(annotator=made.ann, holder="tab", limit=n)]
    made.pool.release(annotator=made.ann, holder="tab")
    return found


def label(made, item: int, which: int, annotator: int | None = None) -> None:
    made.pool.apply([event(item, class_id=made.classes[which])], annotator=annotator or made.ann)


def confirmed(made) -> list[int]:
    snapshot = made.pool.snapshot()
    return [] if snapshot.confirmed is None else snapshot.item_ids[snapshot.confirmed].tolist()


def test_a_labeled_item_waits_for_one_more_answer_and_keeps_its_label_until_then(store):
    made = make_pool(store, 6)
    item, other = made.items[0], made.items[3]
    label(made, item, 0)
    assert item not in served(made, 6)
    look_again(made, item, also=(other,))
    assert served(made, 2) == [other, item]
    snapshot = made.pool.snapshot()
    at = int(np.searchsorted(snapshot.item_ids, item))
    assert snapshot.labels[at] == 0 and not snapshot.eligible[at], "nothing changed the label"
    assert made.pool.rebuild() == 0
    label(made, item, 1)
    assert item not in served(made, 6) and made.pool.rebuild() == 0
    assert made.pool.snapshot().labels[at] == 1 and confirmed(made) == [], "two different answers confirm nothing"


def test_the_same_answer_twice_confirms_a_label_and_undo_takes_it_back(store):
    made = make_pool(store, 6)
    item = made.items[0]
    label(made, item, 0)
    assert confirmed(made) == []
    before = made.pool.snapshot().label_sequence
    look_again(made, item)
    again = event(item, class_id=made.classes[0])
    made.pool.apply([again], annotator=made.ann)
    assert confirmed(made) == [item] and item not in served(made, 6)
    made.pool.apply([event(item, "undo", undoes=again.uuid)], annotator=made.ann)
    assert confirmed(made) == [] and served(made, 1) == [item] and made.pool.rebuild() == 0
    assert made.pool.snapshot().label_sequence > before


@pytest.mark.parametrize("how", ["another annotator", "review", "skip"])
def test_a_second_look_ends_by_any_answer(store, how):
    made = make_pool(store, 6)
    item = made.items[0]
    label(made, item, 0)
    look_again(made, item)
    if how == "another annotator":
        label(made, item, 0, annotator_named(store, "bo").id)
    else:
        made.pool.apply(
            [event(item, "decide", class_id=made.classes[1]) if how == "review" else event(item, "skip")],
            annotator=made.ann,
        )
    assert item not in served(made, 6)
    assert confirmed(made) == ([] if how == "skip" else [item])
    change_settings(store, made.project_id, {"labels_per_item": 2})
    change_settings(store, made.project_id, {"labels_per_item": 1})
    assert made.pool.rebuild() == 0


def test_a_label_given_while_the_round_ran_is_not_requested_again(store):
    made = make_pool(store, 6)
    item = made.items[0]
    label(made, item, 0)
    rounds = RoundLog(store, made.project_id)
    row = rounds.request(RoundConfig())
    label(made, item, 1)
    reason = PickReason(order=1, score=1.0, second_look=True)
    chosen = Selection(item_ids=np.array([item]), scores=np.ones(1), strategy="bico", reasons=(reason,))
    rounds.finish(row.id, arrays={}, selection=chosen, metrics={})
    assert item not in served(made, 6)


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_label_is_hidden_from_those_who_are_still_to_give_the_second_look(store, in_memory):
    made = make_pool(store, 6)
    item, skipped = made.items[0], made.items[1]
    for one in (item, skipped):
        label(made, one, 0)
    if in_memory:
        item_states(store, made.project_id)

    def hidden(annotator: int | None) -> list[int]:
        return items_to_hide(store, made.project_id, annotator).tolist()

    assert hidden(made.bob) == hidden(None) == []
    look_again(made, item)
    look_again(made, skipped)
    made.pool.apply([event(skipped, "skip")], annotator=made.bob)
    assert hidden(made.bob) == hidden(None) == [item]
    assert hidden(made.ann) == [], "visible to those who gave it"
    assert items_to_hide(store, made.project_id, made.bob, second_looks=False).tolist() == []
    label(made, item, 0, made.bob)
    assert hidden(made.bob) == hidden(None) == []
    answer = event(item, "undo", undoes=made.pool.history(item)[-1].uuid)
    assert made.pool.apply([answer], annotator=made.bob)[0].accepted
    assert hidden(made.bob) == [item]


def test_the_only_item_of_a_project_keeps_its_second_look_when_the_labels_per_item_change(store):
    made, other = make_pool(store, 1), make_pool(store, 3, name="other")
    label(made, made.items[0], 0)
    look_again(made, made.items[0])
    for wanted in (2, 1):
        change_settings(store, made.project_id, {"labels_per_item": wanted})
    assert served(made, 2) == made.items and made.pool.rebuild() == 0
    assert len(served(other, 3)) == 3 and other.pool.rebuild() == 0
