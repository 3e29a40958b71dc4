"""One rule for undone events, in SQL and in Python; the views of an annotator's own work that use it."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import select

from storage.database.schema import LabelEvent
from storage.database.store import Store
from storage.labeling.pool import LabelInput
from storage.labeling.undo import is_undone, without_undone
from tests.storage.pools import Made, make_pool


def act(made: Made, item: int, kind: str, annotator: int, **fields: Any) -> str:
    event = LabelInput(uuid=str(uuid.uuid4()), item_id=item, kind=kind, **fields)  # type: ignore[arg-type]
    assert made.pool.apply([event], annotator=annotator)[0].accepted
    return event.uuid


def test_sql_and_python_agree_on_what_is_undone(store: Store) -> None:
    made = make_pool(store)
    item = made.items[0]
    first = act(made, item, "label", made.ann, class_id=made.classes[0])
    second = act(made, item, "label", made.bob, class_id=made.classes[1])
    flag = act(made, item, "flag", made.ann)
    undo = act(made, item, "undo", made.ann, undoes=first)
    history = made.pool.history(item)
    assert [event.uuid for event in without_undone(history)] == [second, flag, undo]
    query = select(LabelEvent.uuid).where(LabelEvent.project_id == made.project_id, ~is_undone())
    with store.read() as connection:
        assert set(connection.execute(query).scalars()) == {second, flag, undo}


def test_undoable_lists_the_newest_actions_after_any_number_of_undone_ones(store: Store) -> None:
    made = make_pool(store, 12)
    kept = [act(made, item, "label", made.ann, class_id=made.classes[0]) for item in made.items[:3]]
    act(made, made.items[0], "label", made.bob, class_id=made.classes[1])
    act(made, made.items[0], "decide", made.ann, class_id=made.classes[1])
    for item in made.items[3:]:
        given = act(made, item, "label", made.ann, class_id=made.classes[0])
        act(made, item, "undo", made.ann, undoes=given)
    assert [event.uuid for event in made.pool.undoable(made.ann, limit=2)] == kept[:0:-1]


def test_own_state_is_the_current_label_and_the_newest_note(store: Store) -> None:
    made = make_pool(store)
    item = made.items[0]
    assert made.pool.own_state(item, made.ann).class_id is None
    act(made, item, "label", made.ann, class_id=made.classes[0])
    act(made, item, "label", made.bob, class_id=made.classes[1])
    act(made, item, "note", made.ann, note="two birds")
    last = act(made, item, "note", made.ann, note="three birds")
    own = made.pool.own_state(item, made.ann)
    assert (own.class_id, own.note) == (made.classes[0], "three birds")
    act(made, item, "undo", made.ann, undoes=last)
    assert made.pool.own_state(item, made.ann).note == "two birds"
    act(made, item, "skip", made.ann)
    assert made.pool.own_state(item, made.ann).class_id is None, "a skip replaces the annotator's label"
