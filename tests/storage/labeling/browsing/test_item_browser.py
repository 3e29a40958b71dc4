"""Finding items: every query equals a plain loop over the items, on SQLite and PostgreSQL."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.errors import Forbidden, InvalidInput
from storage.database.schema import NOT_QUEUED
from storage.labeling.agreement import disagreements
from storage.labeling.browsing.item_browser import ItemQuery, matching, notes_of, query_choices
from storage.labeling.browsing.requeue import Sent, send_to_queue, take_back
from storage.labeling.held_out import move_to_test
from storage.labeling.item_rows import ItemRow
from storage.media.checks import set_condition
from storage.projects.class_rows import counts_as
from storage.projects.classes import list_classes, merge_classes
from storage.projects.deletion import request_deletion, run_deletion
from storage.projects.projects import get_project
from storage.projects.roles import Actor, acting_as, set_role
from tests.app.finished_rounds import finish_round
from tests.storage.pools import Made, add_items, event, make_pool, waiting_ids

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
EVERY_SHOW, EVERY_MARK = (
    ("waiting", "labeled", "test", "all"),
    ("flagged", "skipped", "noted", "contested", "unreadable"),
)


@pytest.fixture
def made(store) -> Made:
    """Items in every state, labels of two annotators on three days, current notes and undone notes."""
    pool = make_pool(store, 12, labels_per_item=2)
    pool.items.extend(add_items(store, pool.project_id, ["Über Ödland", "50%_off"], split_name="dev"))
    items, (robin, wren, owl) = pool.items, pool.classes

    def by(who: int, *events: Any) -> list[str]:
        results = pool.pool.apply(events, annotator=who)
        assert all(one.accepted for one in results)
        return [one.uuid for one in results]

    for day, (item, label) in enumerate([(0, robin), (1, wren), (2, owl)]):
        by(pool.ann, event(items[item], class_id=label, at=MONDAY + timedelta(days=day)))
    by(pool.bob, event(items[0], class_id=wren), event(items[1], class_id=wren), event(items[3], class_id=owl))
    by(pool.bob, event(items[2], class_id=wren), event(items[2], "decide", class_id=owl))
    by(pool.ann, event(items[4], "skip"), event(items[5], "flag"), event(items[0], "flag"), event(items[6], "flag"))
    by(pool.ann, event(items[6], "unflag"), event(items[7], "note", note="noise"), event(items[0], "note", note="x"))
    by(pool.ann, event(items[0], "note", note=""), event(items[8], "note", note="first"))
    undone = by(pool.bob, event(items[9], "note", note="a mistake"), event(items[8], "note", note="second"))[0]
    by(pool.bob, event(items[9], "undo", undoes=undone))
    set_condition(store, pool.project_id, {items[10]: ("missing", "gone")})
    move_to_test(store, pool.project_id, [items[11], items[3]])
    finish_round(store, get_project(store, pool.project_id), [0, 1])
    return pool


@dataclass(frozen=True)
class Fact:
    """The properties of one item, read from its row and its events."""

    row: ItemRow
    counts_as: int | None
    shows: set[str]
    marks: set[str]
    annotators: set[int]
    at: datetime | None
    split: str


def facts(made: Made) -> list[Fact]:
    target = counts_as(list_classes(made.store, made.project_id, include_inactive=True))
    contested = {one.item_id for one in disagreements(made.store, made.project_id)}
    noted = {made.items[7], made.items[8]}
    found = []
    for row in made.pool.items(limit=None):
        events = made.pool.history(row.id)
        marks = {"flagged": row.flagged, "skipped": row.skipped, "unreadable": row.condition != "ok"}
        marks |= {"noted": row.id in noted, "contested": row.id in contested}
        shows = {"all": True, "test": row.held_out, "waiting": row.waiting}
        shows["labeled"] = row.class_id is not None and not row.held_out
        named = row.name.startswith(("Über", "50%"))
        found.append(
            Fact(
                row=row,
                counts_as=target.get(row.class_id),
                shows={name for name, holds in shows.items() if holds},
                marks={name for name, holds in marks.items() if holds},
                annotators={one.annotator_id for one in events if one.kind == "label"},
                at=next((one.at for one in events if one.sequence == row.sequence), None),
                split="dev" if named else "test" if row.held_out else "train",
            )
        )
    return found


def plainly(known: list[Fact], query: ItemQuery) -> list[int]:
    """The same result by a loop over every item."""
    return [
        one.row.id
        for one in known
        if query.show in one.shows
        and set(query.marks) <= one.marks
        and (query.class_id is None or one.counts_as == query.class_id)
        and (query.annotator_id is None or query.annotator_id in one.annotators)
        and (query.round_id is None or (one.row.pick is not None and one.row.pick.round_id == query.round_id))
        and (not query.split or one.split == query.split)
        and (query.since is None or (one.at is not None and one.at >= query.since))
        and (query.until is None or (one.at is not None and one.at < query.until))
        and query.search.lower() in one.row.name.lower()
        and (query.items is None or one.row.id in query.items)
    ]


def check(made: Made, known: list[Fact] | None = None, **conditions: Any) -> list[int]:
    query = ItemQuery(**conditions)
    found = matching(made.store, made.project_id, query).item_ids.tolist()
    assert found == plainly(known or facts(made), query), conditions
    return [made.items.index(one) for one in found]


def test_every_condition_and_pair_of_conditions_equals_a_plain_loop(made):
    robin, wren, owl = made.classes
    round_id = query_choices(made.store, made.project_id).rounds[0][0]
    single = [{"show": show} for show in EVERY_SHOW] + [{"marks": (mark,)} for mark in EVERY_MARK]
    single += [{"class_id": one} for one in (robin, wren, owl)] + [{"annotator_id": made.bob}, {"annotator_id": 10**9}]
    single += [{"round_id": round_id}, {"round_id": 10**9}, {"split": "dev"}, {"split": "test"}, {"split": "train"}]
    single += [{"since": MONDAY + timedelta(days=1)}, {"until": MONDAY + timedelta(days=1)}]
    single += [{"search": text} for text in ("birds 1", "ÖDLAND", "50%_", "nothing", "%")]
    single += [{"items": (made.items[0], made.items[7], 10**9)}]
    known = facts(made)
    for one, other in itertools.combinations_with_replacement(single, 2):
        check(made, known, **(one | other))


def test_marks_find_what_people_marked(made):
    assert check(made, marks=("flagged",)) == [0, 5]
    assert check(made, marks=("skipped",)) == [4]
    assert check(made, marks=("noted",)) == [7, 8]
    assert check(made, marks=("contested",)) == [0]  # item 2 was decided, the labels of item 1 agree
    assert check(made, marks=("unreadable",)) == [10]
    assert notes_of(made.store, made.project_id, made.items) == {
        made.items[7]: [(made.ann, "noise")],
        made.items[8]: [(made.ann, "first"), (made.bob, "second")],
    }


def test_merged_classes_count_as_one_and_deleted_items_are_not_found(made):
    robin, wren, _ = made.classes
    merge_classes(made.store, made.project_id, robin, wren)
    assert check(made, class_id=wren) == [0, 1]
    assert check(made, marks=("contested",)) == []
    check(made, search="birds")
    run_deletion(made.store, request_deletion(made.store, made.project_id, "birds", [made.items[1]]).id)
    assert matching(made.store, made.project_id, ItemQuery(class_id=wren)).item_ids.tolist() == [made.items[0]]
    found = matching(made.store, made.project_id, ItemQuery(search="BIRDS 1")).item_ids.tolist()
    assert found == [made.items[10], made.items[11]]


def test_a_viewer_of_a_blind_project_finds_own_labels_and_notes_only(made):
    def seen(**conditions: Any) -> list[int]:
        found = matching(made.store, made.project_id, ItemQuery(viewer=made.bob, **conditions))
        return [made.items.index(one) for one in found.item_ids.tolist()]

    _, wren, _ = made.classes
    assert seen(show="labeled") == [0, 1, 2]  # item 3 is a test item
    assert seen(class_id=wren) == [0, 1, 2]
    assert seen(marks=("noted",)) == [8]
    assert seen(marks=("contested",)) == []
    assert seen(annotator_id=made.ann) == []
    assert not {0, 1, 2} & set(seen(show="waiting"))
    assert [one for one, _ in query_choices(made.store, made.project_id, made.bob).annotators] == [made.bob]


def test_the_choices_are_what_the_project_has(made):
    found = query_choices(made.store, made.project_id)
    assert found.annotators == [(made.ann, "Ann"), (made.bob, "Bob")]
    assert [number for _, number in found.rounds] == [1]
    assert found.splits == ["dev", "test", "train"]


def test_items_go_to_the_front_of_the_queue_and_skips_of_all_annotators_are_undone(made):
    skipped, waiting, labeled = made.items[4], made.items[9], made.items[1]
    before = waiting_ids(made)
    assert skipped not in before
    sent = send_to_queue(made.store, made.project_id, [skipped, waiting, labeled], annotator=made.bob)
    assert sent.n_waiting == 2 and set(sent.skipped) == {skipped}
    assert made.pool.first_in_queue()[:2].tolist() == [skipped, waiting]
    assert [item.id for item in made.pool.next_to_label(annotator=made.ann, limit=2)] == [skipped, waiting]
    assert [(event.kind, event.annotator_id) for event in made.pool.history(skipped)][-1] == ("undo", made.bob)
    assert take_back(made.store, made.project_id, sent, annotator=made.bob) == 2
    assert waiting_ids(made) == before and made.pool.item(skipped).skipped
    assert made.pool.rebuild() == 0


def test_an_item_that_was_labeled_in_between_is_not_returned(made):
    skipped = made.items[4]
    sent = send_to_queue(made.store, made.project_id, [skipped], annotator=made.bob)
    made.pool.label(skipped, made.classes[0], annotator=made.ann)
    take_back(made.store, made.project_id, sent, annotator=made.bob)
    assert not made.pool.item(skipped).skipped and made.pool.item(skipped).class_id == made.classes[0]


@pytest.mark.parametrize("rank", [NOT_QUEUED + 1, 2**61, -NOT_QUEUED - 1, -(2**61)])
def test_no_place_in_the_queue_takes_an_item_out_of_it(made, rank):
    before = waiting_ids(made)
    with pytest.raises(InvalidInput, match="out of range"):
        take_back(made.store, made.project_id, Sent(ranks={before[0]: rank}, skipped={}), annotator=made.bob)
    assert waiting_ids(made) == before


@pytest.mark.parametrize("rank", [NOT_QUEUED, -NOT_QUEUED])
def test_items_at_the_ends_of_the_queue_are_served_and_others_still_come_first(made, rank):
    *_, last, first = waiting_ids(made)
    assert take_back(made.store, made.project_id, Sent(ranks={last: rank}, skipped={}), annotator=made.bob) == 1
    send_to_queue(made.store, made.project_id, [first], annotator=made.bob)
    served = [item.id for item in made.pool.next_to_label(annotator=made.ann, limit=100)]
    assert served[0] == first and last in served


def test_only_editors_undo_the_skips_of_others(made):
    set_role(made.store, made.project_id, made.bob, "owner")
    set_role(made.store, made.project_id, made.ann, "annotator")
    made.pool.apply([event(made.items[9], "skip")], annotator=made.bob)
    skip = made.pool.history(made.items[9])[-1].uuid
    undo = event(made.items[9], "undo", undoes=skip)
    with acting_as(Actor(made.ann)):
        assert not made.pool.apply([undo], annotator=made.ann)[0].accepted
        with pytest.raises(Forbidden, match="is annotator"):
            send_to_queue(made.store, made.project_id, [made.items[9]], annotator=made.ann)
        with pytest.raises(Forbidden, match="is annotator"):
            take_back(made.store, made.project_id, Sent(ranks={}, skipped={}), annotator=made.ann)
    assert made.pool.item(made.items[9]).skipped
