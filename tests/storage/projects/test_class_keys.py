"""The key a new class gets by itself."""

from __future__ import annotations

from storage.database.store import Store
from storage.projects.classes import add_class, list_classes
from storage.projects.projects import create_project


def test_a_name_of_one_character_is_its_own_key_and_others_take_what_is_free(tmp_path):
    with Store.open(home=tmp_path) as store:
        digits = create_project(store, "Digits", "image", [*"0123456789"])
        assert [row.key for row in list_classes(store, digits.id)] == [*"0123456789"]
        mixed = create_project(store, "Mixed", "image", ["cat", "1", "x", "dog", "C"])
        assert [row.key for row in list_classes(store, mixed.id)] == ["1", "2", "x", "3", "4"]
        assert add_class(store, mixed.id, "X ").key == "5"
