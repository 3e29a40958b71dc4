"""Watching a folder in a real browser: start it, see the imported and the refused files, stop it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.worker.folder_watcher import FolderWatcher, WatchThread
from storage.importing import watches
from storage.projects.projects import create_project, get_project
from tests.app.sample_store import picture


@pytest.fixture
def watcher(store):
    """The folder watcher that a worker runs beside its rounds."""
    thread = WatchThread(store, seconds=0.2)
    thread.watcher = FolderWatcher(store, settle_seconds=0.2)
    thread.start()
    yield thread
    thread.end()


def arrive(path: Path, whole: bytes) -> None:
    """Add a complete file: one half written for longer than the watcher's settle_seconds would count as damaged."""
    draft = path.parent.with_name(f"{path.parent.name}-draft")
    draft.write_bytes(whole)
    draft.replace(path)


def test_a_folder_is_watched_from_the_data_screen_which_shows_its_counts(open_browser, store, watcher, tmp_path):
    project = create_project(store, "A stream of pictures", "image", ["a", "b"])
    (tmp_path / "first.png").write_bytes(picture(1))
    page = open_browser(project).tab("data")
    card = page.locator(".st-key-card-watch")
    field = card.get_by_label("Folder on the server", exact=True)
    field.fill(str(store.home))
    field.press("Enter")
    card.get_by_role("button", name="Start watching").click()
    expect(card.get_by_text("own files")).to_be_visible(timeout=60_000)
    field.fill(str(tmp_path))
    field.press("Enter")
    card.get_by_role("button", name="Start watching").click()
    expect(card.locator(".winnow-figure").get_by_text("1", exact=True)).to_be_visible(timeout=60_000)
    arrive(tmp_path / "second.png", picture(2))
    arrive(tmp_path / "<b>page<b>.png", b"<html>" * 9)
    expect(card.locator(".winnow-figure").get_by_text("2", exact=True)).to_be_visible(timeout=60_000)
    expect(card.get_by_text("<b>page<b>.png")).to_be_visible(timeout=60_000)
    card.get_by_role("button", name="Stop watching").click()
    expect(card.get_by_role("button", name="Start watching")).to_be_visible(timeout=60_000)
    row = watches.get(store, get_project(store, project.id).id)
    assert row is not None and not row.active
