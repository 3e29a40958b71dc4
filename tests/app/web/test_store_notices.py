"""Notices about the store that everyone sees: damage that the background check found, and a failed backup."""

from __future__ import annotations

from app.web import resources
from storage.database.health import note_backup


def test_damage_and_a_failed_backup_are_shown_until_they_are_over(page_store):
    assert resources.store_warnings() == []
    note_backup(page_store.home, "The backup was not made: the disk is full.")
    resources.store_check().problem = "The database is damaged."
    assert resources.store_warnings() == [
        "The database is damaged.",
        "The daily backup failed. The backup was not made: the disk is full.",
    ]
    note_backup(page_store.home, "")
    assert resources.store_warnings() == ["The database is damaged."]
