"""Labels that count, with merged classes, against the labels that were given."""

from __future__ import annotations

from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.item_rows import count_items, first_pick_rounds
from storage.labeling.known_labels import count_known_labels, known_labels
from storage.labeling.labeled_items import counting_classes, undecided_labels
from storage.projects.class_rows import counts_as, effective_names
from storage.projects.classes import list_classes, merge_classes, retire_class
from tests.storage.pools import event, make_pool


def test_counting_classes_follow_merges(store: Store) -> None:
    made = make_pool(store, 5)
    robin, wren, owl = made.classes
    made.pool.label(made.items[0], robin, annotator=made.ann)
    made.pool.label(made.items[1], wren, annotator=made.ann)
    made.pool.label(made.items[3], owl, annotator=made.bob)
    merge_classes(store, made.project_id, robin, wren)
    assert counting_classes(store, made.project_id) == {made.items[0]: wren, made.items[1]: wren, made.items[3]: owl}
    assert counting_classes(store, made.project_id, made.items[:1]) == {made.items[0]: wren}
    assert counting_classes(store, made.project_id, []) == {}


def test_items_are_counted_by_project_and_no_round_has_picked_them(store: Store) -> None:
    made, other = make_pool(store, 4), make_pool(store, 2, "frogs")
    assert count_items(store, made.project_id) == 4 and count_items(store, other.project_id) == 2
    assert first_pick_rounds(store, made.project_id) == {}


def test_undecided_labels_leave_out_decided_items_and_include_the_first_label(store: Store) -> None:
    made = make_pool(store, 3, labels_per_item=2)
    robin, wren, _ = made.classes
    made.pool.label(made.items[0], robin, annotator=made.ann)
    made.pool.label(made.items[0], wren, annotator=made.ann)
    made.pool.label(made.items[1], robin, annotator=made.ann)
    first, second = (made.pool.history(item)[0].sequence for item in made.items[:2])
    expected = [(made.items[0], wren, first), (made.items[1], robin, second)]
    assert sorted(undecided_labels(store, made.project_id).tolist()) == expected
    assert sorted(undecided_labels(store, made.project_id, after=first - 1).tolist()) == expected
    assert undecided_labels(store, made.project_id, after=first).tolist() == expected[1:], "a later label is not first"
    assert undecided_labels(store, made.project_id, after=second).tolist() == []
    made.pool.apply([event(made.items[0], "decide", robin)], annotator=made.bob)
    assert undecided_labels(store, made.project_id).tolist() == expected[1:]


def test_known_labels_are_those_of_readable_items_with_an_active_class(store: Store) -> None:
    made = make_pool(store, 5)
    robin, wren, owl = made.classes
    values = [
        (robin, False, "ok"),
        (wren, True, "ok"),
        (owl, False, "ok"),
        (robin, False, "missing"),
        (None, False, "ok"),
    ]
    with store.write() as connection:
        for item, (known, held_out, condition) in zip(made.items, values, strict=True):
            row = Item.__table__.update().where(Item.id == item)
            connection.execute(row.values(truth_class_id=known, held_out=held_out, condition=condition))
    retire_class(store, made.project_id, owl)
    found = known_labels(store, made.project_id)
    assert [one.sha256 for one in found] == sorted(one.sha256 for one in found)
    assert {(one.class_id, one.held_out) for one in found} == {(robin, False), (wren, True)}
    counts = count_known_labels(store, made.project_id)
    assert (counts.pool, counts.test, counts.enough) == (1, 1, True)


def test_a_class_counts_as_the_end_of_its_chain_of_merges(store: Store) -> None:
    made = make_pool(store, 0)
    robin, wren, owl = made.classes
    merge_classes(store, made.project_id, robin, wren)
    merge_classes(store, made.project_id, wren, owl)
    rows = list_classes(store, made.project_id, include_inactive=True)
    assert counts_as(rows) == {robin: owl, wren: owl, owl: owl}
    assert set(effective_names(rows).values()) == {"owl"}
