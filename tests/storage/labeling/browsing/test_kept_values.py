"""Arrays that are updated by label events equal newly read ones, after every kind of change."""

from __future__ import annotations

import random
from typing import Any

import pytest

from storage.labeling.browsing import kept_values
from storage.labeling.browsing.kept_values import are_contested, have_notes, labels_of
from storage.labeling.state_arrays import NO_ID, item_states
from storage.projects.classes import merge_classes, unmerge_class
from storage.projects.deletion import request_deletion, run_deletion
from tests.storage.pools import Made, add_items, event, make_pool


def kept(made: Made) -> list[list[Any]]:
    states = item_states(made.store, made.project_id)
    found = [labels_of(made.store, made.project_id, who, states) for who in (made.ann, made.bob)]
    found += [have_notes(made.store, made.project_id, who, states) for who in (NO_ID, made.ann, made.bob)]
    found.append(are_contested(made.store, made.project_id, states))
    assert all(len(one) == states.n_items for one in found)
    return [one.tolist() for one in found]


def check(made: Made) -> list[list[Any]]:
    """The arrays of this process, which must equal those of a process that has read nothing yet."""
    found = kept(made)
    known = dict(kept_values._arrays)
    kept_values._arrays.clear()
    assert found == kept(made)
    kept_values._arrays.clear()
    kept_values._arrays.update(known)
    return found


def test_arrays_follow_the_events_of_a_random_session(store):
    made = make_pool(store, 6, labels_per_item=2)
    rng, given, contested = random.Random(4), [], 0
    check(made)
    for turn in range(60):
        who, item = rng.choice((made.ann, made.bob)), rng.choice(made.items)
        kind = rng.choice(
            ("label", "label", "label", "label", "label", "skip", "note", "note", "decide", "undo", "flag")
        )
        undoes = rng.choice(given) if given else None
        if kind == "undo" and undoes is not None and undoes[1] == who:
            one = event(undoes[2], "undo", undoes=undoes[0])
        elif kind == "note":
            one = event(item, "note", note=rng.choice(("", "noise", "dark")))
        elif kind in ("label", "decide", "undo"):
            one = event(item, "decide" if kind == "decide" else "label", class_id=rng.choice(made.classes))
        else:
            one = event(item, kind)
        [done] = made.pool.apply([one], annotator=who)
        given += [(done.uuid, who, item)] if done.accepted and one.kind != "undo" else []
        if turn % 5 == 0:  # else several events are new
            contested += any(check(made)[-1])
    labels, _, notes, *_ = check(made)
    assert any(labels) and any(notes) and contested


def test_a_changed_minority_vote_makes_and_ends_a_disagreement(store):
    """The state of the item does not change; only its current labels do."""
    made = make_pool(store, 2, labels_per_item=2)
    item, (robin, wren, _) = made.items[0], made.classes
    made.pool.label(item, wren, annotator=made.bob)
    made.pool.label(item, robin, annotator=made.ann)
    assert check(made)[-1] == [True, False]
    made.pool.label(item, robin, annotator=made.bob)
    assert check(made)[-1] == [False, False]


def test_merges_imports_and_deletions_are_followed(store):
    made = make_pool(store, 4, labels_per_item=2)
    robin, wren, _ = made.classes
    made.pool.label(made.items[1], robin, annotator=made.ann)
    made.pool.label(made.items[1], wren, annotator=made.bob)
    assert check(made)[-1] == [False, True, False, False]
    merge_classes(store, made.project_id, robin, wren)
    assert check(made)[-1] == [False] * 4
    unmerge_class(store, made.project_id, robin)
    assert check(made)[-1] == [False, True, False, False]
    new = add_items(store, made.project_id, ["new"])
    made.pool.label(new[0], wren, annotator=made.bob)
    assert check(made)[1] == [NO_ID, wren, NO_ID, NO_ID, wren]
    run_deletion(store, request_deletion(store, made.project_id, "birds", [made.items[0]]).id)
    assert check(made)[1] == [wren, NO_ID, NO_ID, wren]


def test_a_label_costs_one_item_and_many_labels_are_read_at_once(sqlite_store, monkeypatch):
    made = make_pool(sqlite_store, 30)
    read: list[int | None] = []
    parts = kept_values._parts

    def counted(query: Any, column: Any, item_ids: Any) -> Any:
        read.append(None if item_ids is None else len(item_ids))
        return parts(query, column, item_ids)

    monkeypatch.setattr(kept_values, "_parts", counted)
    monkeypatch.setattr(kept_values, "MOST_CHANGES", 5)

    def ask() -> int:
        states = item_states(made.store, made.project_id)
        return int((labels_of(made.store, made.project_id, made.ann, states) != NO_ID).sum())

    assert (ask(), ask(), read) == (0, 0, [None])
    for n, (items, expected) in enumerate(((made.items[:1], 1), (made.items[1:4], 3), (made.items[4:10], None))):
        made.pool.apply([event(item, class_id=made.classes[0]) for item in items], annotator=made.ann)
        assert ask() == (1, 4, 10)[n]
        assert read[1 + n :] == [expected]


@pytest.mark.parametrize("many", [3, 20])
def test_only_the_arrays_used_last_are_kept(sqlite_store, many):
    made = make_pool(sqlite_store, 2)
    states = item_states(made.store, made.project_id)
    for who in range(many):
        labels_of(made.store, made.project_id, who, states)
    assert len(kept_values._arrays[sqlite_store]) == min(many, kept_values.KEPT_ARRAYS)
