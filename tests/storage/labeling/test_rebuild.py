"""The projections are determined by the events alone, for any sequence of actions."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from core.errors import WinnowError
from storage.database.schema import CurrentLabel, ItemState, LabelEvent
from storage.database.store import Store
from storage.labeling import projections
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, merge_classes, restore_class, retire_class, unmerge_class
from tests.storage.pools import Made, event, make_pool

ITEMS, CLASSES, PEOPLE = 4, 3, 3
place = st.integers(0, ITEMS - 1)
person = st.integers(0, PEOPLE - 1)
one_class = st.integers(0, CLASSES - 1)
step = st.one_of(
    st.tuples(st.just("label"), place, person, one_class),
    st.tuples(st.just("label"), place, person, one_class),
    st.tuples(st.just("decide"), place, person, one_class),
    st.tuples(st.sampled_from(["skip", "flag", "unflag", "note"]), place, person),
    st.tuples(st.just("undo"), person),
    st.tuples(st.just("undo one"), st.integers(0, 30), person),
    st.tuples(st.just("again"), st.integers(0, 30), person),
    st.tuples(st.just("merge"), one_class, one_class),
    st.tuples(st.sampled_from(["unmerge", "retire", "restore"]), one_class),
)


def perform(made: Made, people: list[int], done: tuple[Any, ...]) -> None:
    """One step; a refused action changes nothing."""
    kind, *rest = done
    stored = sorted((row for item in made.items for row in made.pool.history(item)), key=lambda row: row.sequence)
    if kind in ("label", "decide"):
        given_class = made.classes[rest[2]]
        made.pool.apply([event(made.items[rest[0]], kind, given_class)], annotator=people[rest[1]])
    elif kind in ("skip", "flag", "unflag", "note"):
        made.pool.apply([event(made.items[rest[0]], kind)], annotator=people[rest[1]])
    elif kind == "undo":
        made.pool.undo(annotator=people[rest[0]])
    elif kind in ("undo one", "again") and not stored:
        return
    elif kind == "undo one":
        target = stored[rest[0] % len(stored)]
        made.pool.apply([event(target.item_id, "undo", undoes=target.uuid)], annotator=people[rest[1]])
    elif kind == "again":
        target = stored[rest[0] % len(stored)]
        again = event(target.item_id, target.kind, target.class_id, uuid=target.uuid, undoes=target.undoes)
        made.pool.apply([again], annotator=people[rest[1]])
    else:
        change_classes(made, kind, rest)


def change_classes(made: Made, kind: str, rest: list[int]) -> None:
    functions = {"unmerge": unmerge_class, "retire": retire_class, "restore": restore_class}
    chosen = [made.classes[one] for one in rest]
    try:
        if kind == "merge":
            merge_classes(made.store, made.project_id, *chosen)
        elif kind in functions:
            functions[kind](made.store, made.project_id, chosen[0])
    except WinnowError:
        return


def projected(store: Store) -> tuple[list[Any], list[Any]]:
    with store.read() as connection:
        columns = [column for column in ItemState.__table__.c if column.name != "revision"]  # when, not what
        states = connection.execute(select(*columns).order_by(ItemState.item_id)).all()
        current = connection.execute(
            select(CurrentLabel.__table__).order_by(CurrentLabel.item_id, CurrentLabel.annotator_id)
        ).all()
    return [tuple(row) for row in states], [tuple(row) for row in current]


def counted_by_hand(made: Made, wanted: int) -> dict[int, tuple[Any, ...]]:
    """A reference without the code of the store: replays the log with plain loops."""
    with made.store.read() as connection:
        log = connection.execute(select(LabelEvent.__table__).order_by(LabelEvent.sequence)).all()
    counts_as = {row.id: row.effective_id or row.id for row in list_classes(made.store, made.project_id, True)}
    result = {}
    for item in made.items:
        mine = [row for row in log if row.item_id == item]
        live = [row for row in mine if row.kind != "undo" and not any(one.undoes == row.uuid for one in mine)]
        last: dict[int, Any] = {}
        for row in live:
            if row.kind in ("label", "skip"):
                last[row.annotator_id] = row
        votes = [row for row in last.values() if row.kind == "label"]
        decisions = [row for row in live if row.kind == "decide"]
        tally = Counter(counts_as[row.class_id] for row in votes)
        best = [row for row in votes if tally[counts_as[row.class_id]] == max(tally.values())]
        counting = decisions[-1] if decisions else max(best, key=lambda row: row.sequence, default=None)
        opinions = [row for row in live if row.kind in ("label", "skip", "decide")]
        skipped = bool(opinions) and opinions[-1].kind == "skip"
        flags = [row.kind for row in live if row.kind in ("flag", "unflag")]
        result[item] = (
            counting.class_id if counting else None,
            len(votes),
            bool(decisions),
            skipped,
            flags[-1:] == ["flag"],
            not (skipped or decisions) and len(votes) < wanted,
        )
    return result


def check_sequence(store: Store, steps: list[tuple[Any, ...]], wanted: int) -> None:
    made = make_pool(store, ITEMS, labels_per_item=wanted)
    people = [made.ann, made.bob, annotator_named(store, "Cay").id]
    for one in steps:
        perform(made, people, one)
    kept = projected(store)
    found = {
        row.id: (row.class_id, row.n_labels, row.decided, row.skipped, row.flagged, row.waiting)
        for row in made.pool.items()
    }
    assert found == counted_by_hand(made, wanted)
    assert made.pool.rebuild() == 0, "rebuilding finds nothing to change"
    with store.write() as connection:
        connection.execute(delete(CurrentLabel))
        connection.execute(
            update(ItemState).values(
                n_labels=0, class_id=None, decided=False, skipped=False, flagged=False, sequence=None
            )
        )
        projections.rebuild(connection, made.project_id)
    assert projected(store) == kept, "rebuilding from nothing gives the same rows"


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(steps=st.lists(step, max_size=14), wanted=st.integers(1, 3))
def test_rebuilding_from_the_events_gives_the_projections(
    empty_sqlite: Path, steps: list[tuple[Any, ...]], wanted: int
) -> None:
    home = Path(tempfile.mkdtemp())
    try:
        shutil.copy(empty_sqlite, home / "winnow.sqlite")
        with Store.open(home=home) as store:
            check_sequence(store, steps, wanted)
    finally:
        shutil.rmtree(home)


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_the_same_on_postgresql(store: Store) -> None:
    steps: list[tuple[Any, ...]] = [
        ("label", 0, 0, 0), ("label", 0, 1, 1), ("label", 0, 2, 1), ("merge", 1, 2), ("label", 1, 0, 1),
        ("undo", 1), ("decide", 2, 0, 0), ("skip", 3, 1), ("label", 3, 2, 0), ("unmerge", 1), ("undo", 2),
        ("flag", 0, 0), ("undo one", 1, 1), ("again", 2, 0), ("retire", 0), ("label", 1, 1, 0), ("label", 1, 1, 2),
    ]  # fmt: skip
    check_sequence(store, steps, 2)
