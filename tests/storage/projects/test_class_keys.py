"""Class keys: the key that a new class gets, and that no class has the key of an action that the screens show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from core.errors import Conflict, InvalidInput
from storage.database.schema import LabelClass
from storage.database.store import Store
from storage.projects.class_rows import ACTION_KEYS, KEYS, STREAMLIT_KEYS, ClassRow, default_key, with_usable_keys
from storage.projects.classes import add_class, list_classes, restore_class, retire_class, style_class
from storage.projects.projects import create_project

ASSETS = Path(__file__).parents[3] / "app" / "web" / "widgets" / "assets"
COMMAND = re.compile(r'^  \["(\w+)", "(.+?)", "(.+?)", ".+?"\],$', re.MULTILINE)
CAP = re.compile(r"<kbd>(.+?)</kbd>|class=\"key \w+\" aria-label=\"\w+\">(.)<")


def bound(script: str, n: int) -> dict[str, str]:
    """cap -> key of the commands of a widget, as its script binds them."""
    found = COMMAND.findall((ASSETS / script).read_text())
    assert len(found) == n
    return {cap: key for _, key, cap in found}


def shown(page: str) -> set[str]:
    """The keycaps on the pills and buttons of a widget."""
    return {one or other for one, other in CAP.findall((ASSETS / page).read_text())}


def test_a_name_of_one_character_is_its_own_key_and_others_take_what_is_free(tmp_path):
    with Store.open(home=tmp_path) as store:
        digits = create_project(store, "Digits", "image", [*"0123456789"])
        assert [row.key for row in list_classes(store, digits.id)] == [*"0123456789"]
        mixed = create_project(store, "Mixed", "image", ["cat", "1", "y", "dog", "C"])
        assert [row.key for row in list_classes(store, mixed.id)] == ["1", "2", "y", "3", "4"]
        assert add_class(store, mixed.id, "Y ").key == "5"


def test_every_key_that_is_shown_is_bound_and_every_bound_key_is_reserved():
    commands, grid = bound("label_card.js", 17), bound("grid_tiles.js", 10)
    assert shown("label_card.html") <= set(commands) and len(shown("label_card.html")) > 12
    assert {"A", "L", "Z", "[", "]", "Space"} <= shown("label_card.html")
    single = {key for key in {*commands.values(), *grid.values()} if len(key) == 1}
    assert single == ACTION_KEYS
    assert shown("grid_tiles.html") - {"←", "→"} <= set(grid)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.lists(st.sampled_from([*"abcdefghijklmnopqrstuvwxyz0123456789.,[]/?Z"]), unique=True))
@example(200, [])
@example(11, [])
def test_no_class_key_shadows_a_shown_action_with_1_to_200_classes(n, names):
    names = [*names, *(f"class {k}" for k in range(n))][:n]
    taken: list[str | None] = []
    for name in names:
        taken.append(default_key(name, taken))
    keys = [key for key in taken if key is not None]
    assert len(keys) == len(set(keys)) == min(n, len(KEYS)) == min(n, 24)
    assert not set(keys) & (set(bound("label_card.js", 17).values()) | STREAMLIT_KEYS)


def row(k: int, key: str | None, retired: bool = False) -> ClassRow:
    from datetime import UTC, datetime

    gone = datetime(2024, 1, 1, tzinfo=UTC) if retired else None
    return ClassRow(
        id=k + 1, project_id=1, name=str(k), position=k, key=key, color=None, effective_id=None, retired_at=gone
    )


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.none() | st.text(max_size=2) | st.sampled_from([*"azluZ1c.,"]), st.booleans()), max_size=60)
)
def test_stored_keys_of_any_kind_are_read_as_keys_that_each_belong_to_one_class(stored):
    rows = [row(k, key, retired) for k, (key, retired) in enumerate(stored)]
    read = with_usable_keys(rows)
    keys = [one.key for one in read if one.active and one.key is not None]
    assert len(keys) == len(set(keys)) and not set(keys) & (ACTION_KEYS | STREAMLIT_KEYS)
    assert all(len(key) == 1 and key == key.lower() for key in keys)
    for before, after in zip(rows, read, strict=True):
        assert not before.active or (after.key is None) <= (before.key is None or len(keys) >= len(KEYS))
    assert with_usable_keys(read) == read


def test_a_project_of_an_earlier_version_gets_other_keys_and_keeps_them(tmp_path):
    """The stored keys are those that eleven and more classes got in earlier versions: letters in order, with
    actions."""
    with Store.open(home=tmp_path) as store:
        project = create_project(store, "Old", "image", [f"class {k}" for k in range(14)])
        with store.write() as connection:
            for one, key in zip(list_classes(store, project.id)[10:], ["a", "b", "z", "l"], strict=True):
                connection.execute(update(LabelClass).where(LabelClass.id == one.id).values(key=key))
        rows = list_classes(store, project.id)
        assert [one.key for one in rows[10:]] == ["d", "b", "h", "i"]
        retire_class(store, project.id, rows[0].id)
        assert [one.key for one in list_classes(store, project.id)[9:]] == ["d", "b", "h", "i"]
        assert add_class(store, project.id, "new").key == "1"
        restore_class(store, project.id, rows[0].id)
        keys = [one.key for one in list_classes(store, project.id)]
        assert len(keys) == len(set(keys)) == 15


@pytest.mark.parametrize("key", ["z", "Z", "a", "l", "u", " ", "?", "c", "R", ".", ","])
def test_the_key_of_an_action_is_refused(tmp_path, key):
    with Store.open(home=tmp_path) as store:
        project = create_project(store, "Birds", "image", ["robin", "wren"])
        first = list_classes(store, project.id)[0]
        with pytest.raises(Conflict, match="is used by an action"):
            style_class(store, project.id, first.id, key=key)
        with pytest.raises(InvalidInput, match="cannot be a key"):
            style_class(store, project.id, first.id, key="F1")
        assert list_classes(store, project.id)[0].key == "1"
        assert style_class(store, project.id, first.id, key="Q").key == "q"
