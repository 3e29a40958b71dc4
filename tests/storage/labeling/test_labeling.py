"""Labels are events: applied once, undone by another event, counted by one rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from core.errors import InvalidInput
from storage.database.store import Store, now
from storage.projects.annotators import annotator_statistics, remove_annotator, restore_annotator
from storage.projects.classes import merge_classes, rename_class, retire_class
from storage.projects.projects import ProjectSettings, archive_project, get_project, restore_project, update_project
from tests.storage.pools import add_items, event, make_pool


def test_the_same_event_applied_twice_changes_nothing(store: Store) -> None:
    """A double click, a retry after a lost response."""
    made = make_pool(store)
    given = event(made.items[0], class_id=made.classes[0])
    first = made.pool.apply([given, given], annotator=made.ann)
    again = made.pool.apply([given], annotator=made.ann)
    assert [answer.accepted for answer in first + again] == [True, True, True]
    assert [row.uuid for row in made.pool.history(made.items[0])] == [given.uuid]
    assert made.pool.item(made.items[0]).n_labels == 1


def test_a_batch_keeps_its_order_and_answers_each_event(store: Store) -> None:
    made = make_pool(store)
    robin, wren, _ = made.classes
    events = [
        event(made.items[0], class_id=robin),
        event(999_999, class_id=robin),
        event(made.items[0], class_id=wren),
        event(made.items[1], "skip"),
    ]
    answers = made.pool.apply(events, annotator=made.ann)
    assert [answer.accepted for answer in answers] == [True, False, True, True]
    assert answers[1].reason == "Item 999999 is not in this project; the label was not stored."
    assert made.pool.item(made.items[0]).class_id == wren
    assert made.pool.item(made.items[1]).skipped
    assert [row.kind for row in made.pool.recent(made.ann)] == ["skip", "label", "label"]


def test_undo_restores_the_previous_label_and_goes_further_back(store: Store) -> None:
    made = make_pool(store)
    robin, wren, _ = made.classes
    item = made.items[0]
    for class_id in (robin, wren):
        made.pool.label(item, class_id, annotator=made.ann)
    made.pool.label(item, made.classes[2], annotator=made.bob)

    assert made.pool.undo(annotator=made.ann).class_id == wren  # type: ignore[union-attr]
    assert set(_standing(made, item).values()) == {robin, made.classes[2]}
    assert made.pool.undo(annotator=made.ann).class_id == robin  # type: ignore[union-attr]
    assert made.pool.undo(annotator=made.ann) is None
    assert _standing(made, item) == {made.bob: made.classes[2]}
    assert [row.kind for row in made.pool.history(item)] == ["label", "label", "label", "undo", "undo"]


def _standing(made, item):
    from sqlalchemy import select

    from storage.database.schema import CurrentLabel

    with made.store.read() as connection:
        rows = connection.execute(select(CurrentLabel.__table__).where(CurrentLabel.item_id == item))
        return {row.annotator_id: row.class_id for row in rows}


def test_undo_takes_back_skips_and_flags_too(store: Store) -> None:
    made = make_pool(store)
    made.pool.apply([event(made.items[0], "skip"), event(made.items[1], "flag")], annotator=made.ann)
    assert made.pool.undo(annotator=made.ann).kind == "flag"  # type: ignore[union-attr]
    assert not made.pool.item(made.items[1]).flagged
    assert made.pool.undo(annotator=made.ann).kind == "skip"  # type: ignore[union-attr]
    assert made.pool.item(made.items[0]).waiting


def test_only_ones_own_action_can_be_undone_and_only_once(store: Store) -> None:
    made = make_pool(store)
    given = event(made.items[0], class_id=made.classes[0])
    made.pool.apply([given], annotator=made.ann)

    def undo(by: int, **fields):
        return made.pool.apply([event(made.items[0], "undo", **fields)], annotator=by)[0].reason

    assert undo(made.bob, undoes=given.uuid) == "Only the annotator who did this can undo it."
    assert undo(made.ann, undoes="6c1f0a2e-0000-4000-8000-000000000000") == "The action to undo is not stored."
    assert undo(made.ann, undoes=given.uuid) == ""
    assert undo(made.ann, undoes=given.uuid) == "This was already undone."
    assert len(made.pool.history(made.items[0])) == 2


def test_the_class_most_annotators_give_counts_and_a_decision_overrides_it(store: Store) -> None:
    made = make_pool(store, labels_per_item=3)
    robin, wren, owl = made.classes
    item = made.items[0]
    from storage.projects.annotators import annotator_named

    cay = annotator_named(store, "Cay").id
    made.pool.label(item, robin, annotator=made.ann)
    made.pool.label(item, wren, annotator=made.bob)
    assert made.pool.item(item).class_id == wren, "a tie goes to the newest"
    made.pool.label(item, robin, annotator=cay)
    assert made.pool.item(item).class_id == robin
    assert not made.pool.item(item).waiting
    made.pool.apply([event(item, "decide", owl)], annotator=made.bob)
    row = made.pool.item(item)
    assert (row.class_id, row.decided, row.n_labels) == (owl, True, 3)
    made.pool.undo(annotator=made.bob)
    assert made.pool.item(item).class_id == robin


def test_a_label_for_a_class_merged_meanwhile_counts_as_its_successor(store: Store) -> None:
    """The class was merged while another person had it on screen."""
    made = make_pool(store)
    robin, wren, owl = made.classes
    merge_classes(store, made.project_id, robin, wren)
    rename_class(store, made.project_id, owl, "barn owl")
    assert made.pool.label(made.items[0], robin, annotator=made.ann).accepted
    assert made.pool.label(made.items[1], owl, annotator=made.ann).accepted
    assert made.pool.history(made.items[0])[0].class_id == robin
    assert made.pool.counts().per_class == {wren: 1, owl: 1}
    snapshot = made.pool.snapshot()
    assert snapshot.class_names == ("wren", "barn owl")
    assert sorted(snapshot.labels[snapshot.labeled]) == [0, 1]


def test_a_label_for_a_retired_class_is_refused_with_the_reason(store: Store) -> None:
    """Nothing is stored, so the card stays on screen with the reason."""
    made = make_pool(store)
    retire_class(store, made.project_id, made.classes[0])
    answer = made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert answer.reason == "The class 'robin' was retired; the label was not stored. Choose another class."
    assert made.pool.history(made.items[0]) == []


def test_an_archived_project_and_a_removed_annotator_refuse_labels_explicitly(store: Store) -> None:
    """A label stored before is still acknowledged when it is sent again."""
    made = make_pool(store)
    stored = event(made.items[0], class_id=made.classes[0])
    made.pool.apply([stored], annotator=made.ann)
    fresh = event(made.items[1], class_id=made.classes[0])
    archive_project(store, made.project_id)
    answers = made.pool.apply([stored, fresh], annotator=made.ann)
    assert [answer.accepted for answer in answers] == [True, False]
    assert answers[1].reason == "The project birds is archived; the label was not stored."
    assert made.pool.next_to_label(annotator=made.ann) == []
    restore_project(store, made.project_id)
    remove_annotator(store, made.ann)
    assert "annotator was removed" in made.pool.apply([fresh], annotator=made.ann)[0].reason
    restore_annotator(store, made.ann)
    assert made.pool.apply([fresh], annotator=made.ann)[0].accepted
    assert made.pool.counts().labeled == 2


def test_a_class_of_another_project_is_refused(store: Store) -> None:
    made, other = make_pool(store), make_pool(store, name="frogs")
    answer = made.pool.label(made.items[0], other.classes[0], annotator=made.ann)
    assert not answer.accepted
    assert not made.pool.label(other.items[0], made.classes[0], annotator=made.ann).accepted
    assert made.pool.counts().labeled == other.pool.counts().labeled == 0


@pytest.mark.parametrize("note", ["<script>alert(1)</script>", "![x](http://x)", "ü" * 100_000, "a\r\n\tb", "e\u0301é"])
def test_notes_are_stored_exactly(store: Store, note: str) -> None:
    """Markup, line breaks and characters of any script come back unchanged."""
    made = make_pool(store, 2)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann, note=note)
    assert made.pool.history(made.items[0])[0].note == note


@pytest.mark.parametrize("note", ["a\x00b", "half \ud800 pair"])
def test_notes_that_no_database_can_store_exactly_are_refused_on_both(store: Store, note: str) -> None:
    """NUL and lone surrogates are refused on SQLite and on PostgreSQL."""
    made = make_pool(store, 2)
    with pytest.raises(InvalidInput, match=r"The note contains .* Remove it and try again\."):
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann, note=note)
    assert made.pool.history(made.items[0]) == []


def test_times_are_utc_and_days_are_those_of_the_requested_time_zone(store: Store) -> None:
    """Ann labels at 23:30 in UTC−8 on 1 May, Bob at 08:30 in UTC+9 on 2 May."""
    made = make_pool(store)
    west, east = timezone(timedelta(hours=-8)), timezone(timedelta(hours=9))
    late, early = datetime(2024, 5, 1, 23, 30, tzinfo=west), datetime(2024, 5, 2, 8, 30, tzinfo=east)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann, at=late)
    made.pool.label(made.items[1], made.classes[0], annotator=made.bob, at=early)
    assert made.pool.history(made.items[0])[0].at == datetime(2024, 5, 2, 7, 30, tzinfo=UTC)
    assert made.pool.history(made.items[0])[0].at.tzinfo is UTC

    def days(zone):
        return {
            one.name: [str(day) for day in one.per_day] for one in annotator_statistics(store, made.project_id, zone)
        }

    assert days(west) == {"Ann": ["2024-05-01"], "Bob": ["2024-05-01"]}
    assert days(east) == {"Ann": ["2024-05-02"], "Bob": ["2024-05-02"]}
    assert days(UTC) == {"Ann": ["2024-05-02"], "Bob": ["2024-05-01"]}


def test_a_time_without_zone_is_refused_and_a_future_one_becomes_now(store: Store) -> None:
    made = make_pool(store)
    with pytest.raises(InvalidInput, match="has no time zone"):
        made.pool.label(made.items[0], made.classes[0], annotator=made.ann, at=datetime(2024, 5, 1))
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann, at=now() + timedelta(days=400))
    row = made.pool.history(made.items[0])[0]
    assert row.at == row.stored_at


def test_the_revision_grows_with_every_change_and_with_nothing_else(store: Store) -> None:
    made = make_pool(store)
    before = made.pool.revision()
    made.pool.next_to_label(annotator=made.ann)
    made.pool.counts()
    assert made.pool.revision() == before
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    made.pool.undo(annotator=made.ann)
    assert made.pool.revision() == before + 2


def test_counts_describe_the_state_of_the_pool(store: Store) -> None:
    made = make_pool(store)
    add_items(store, made.project_id, ["test 1", "test 2"], held_out=True)
    add_items(store, made.project_id, ["broken"], condition="unreadable")
    made.pool.apply(
        [
            event(made.items[0], class_id=made.classes[0]),
            event(made.items[1], "skip"),
            event(made.items[2], "flag"),
        ],
        annotator=made.ann,
    )
    counts = made.pool.counts()
    assert (counts.total, counts.held_out, counts.labeled, counts.waiting) == (13, 2, 1, 8)
    assert (counts.skipped, counts.flagged, counts.unreadable) == (1, 1, 1)
    assert counts.per_class == {made.classes[0]: 1, made.classes[1]: 0, made.classes[2]: 0}


def test_requiring_more_labels_per_item_makes_finished_items_wait_again(store: Store) -> None:
    made = make_pool(store, 3)
    made.pool.label(made.items[0], made.classes[0], annotator=made.ann)
    assert made.pool.counts().waiting == 2
    update_project(store, made.project_id, settings=ProjectSettings(labels_per_item=2))
    assert made.pool.counts().waiting == 3
    assert get_project(store, made.project_id).settings.labels_per_item == 2
    served = [row.id for row in made.pool.next_to_label(annotator=made.ann, limit=10)]
    assert sorted(served) == sorted(made.items[1:]), "items that Ann labeled are not served to her again"
    update_project(store, made.project_id, settings=ProjectSettings(labels_per_item=1))
    assert made.pool.counts().waiting == 2
