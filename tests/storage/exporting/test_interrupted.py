"""Exports during other work: the same bytes each time, one moment of a busy store, no partial result after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile

import pytest

from core.errors import Cancelled, Conflict
from core.types import Progress
from storage.exporting.rows import ExportOptions
from storage.exporting.run import export_project
from tests.storage.export_shop import ROOT, Shop

pytestmark = pytest.mark.usefixtures("examined_here")


def test_two_exports_of_the_same_state_are_the_same_bytes(shop, tmp_path):
    for name in ("a.zip", "b.zip"):
        export_project(shop.store, shop.project, tmp_path / name, ExportOptions(format="folders"))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None


def test_an_export_shows_one_moment_while_people_label(sqlite_store, tmp_path, monkeypatch):
    """Labels given while rows are written belong to the next export."""
    monkeypatch.setattr("storage.exporting.rows.CHUNK", 2)
    (tmp_path / "in").mkdir()
    shop = Shop(sqlite_store, tmp_path / "in", [f"{k}.png" for k in range(9)], ["cat", "dog"], wanted=1)
    for item in range(8):
        shop.label(item, 0)
    changed = []

    def interfere(progress: Progress) -> None:
        if not changed:
            changed.append(True)
            thread = threading.Thread(target=lambda: [shop.label(item, 1, "bob") for item in range(9)])
            thread.start()
            thread.join()

    monkeypatch.setattr("storage.exporting.run.REPORT_EVERY", 1)
    report = export_project(sqlite_store, shop.project, tmp_path / "out", report=interfere)
    assert changed and report.labels == {"cat": 8}
    assert export_project(sqlite_store, shop.project, tmp_path / "next").labels == {"dog": 9}


def test_an_existing_target_is_overwritten_only_on_request_and_only_if_it_is_an_export(shop, tmp_path):
    """A folder that is not an export is never replaced."""
    target = tmp_path / "out"
    export_project(shop.store, shop.project, target)
    before = (target / "labels.csv").read_bytes()
    with pytest.raises(Conflict, match="already exists"):
        export_project(shop.store, shop.project, target)
    shop.label(3, 0)
    export_project(shop.store, shop.project, target, ExportOptions(overwrite=True))
    assert (target / "labels.csv").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    with pytest.raises(Conflict, match="was not changed"):
        export_project(shop.store, shop.project, tmp_path / "mine", ExportOptions(overwrite=True))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_cancelled_export_leaves_nothing(shop, tmp_path):
    def stop(progress: Progress) -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        export_project(shop.store, shop.project, tmp_path / "x" / "out", report=stop)
    assert list((tmp_path / "x").iterdir()) == []


def test_two_exports_at_once_give_one_whole_result(shop, tmp_path):
    """One of them succeeds, the other is refused with a message."""
    results: list[str] = []

    def export() -> None:
        try:
            export_project(shop.store, shop.project, tmp_path / "out")
            results.append("made")
        except Conflict:
            results.append("refused")

    threads = [threading.Thread(target=export) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("made") == 1 and len(results) == 4
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]["rows"] == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from storage.exporting import run as exporting
from storage.database.store import Store
exporting.REPORT_EVERY = 1
def report(progress):
    if progress.done >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
exporting.export_project(Store.open(home=Path(sys.argv[1])), int(sys.argv[2]), Path(sys.argv[3]), report=report)
"""


@pytest.mark.slow
def test_kill_9_during_an_export_leaves_no_half_file_and_the_next_one_clears_up(shop, tmp_path):
    """The process is really killed."""
    target = tmp_path / "x" / "out"
    command = [sys.executable, "-c", KILLED, str(shop.store.home), str(shop.project), str(target)]
    assert subprocess.run(command, cwd=ROOT).returncode == -9
    assert not target.exists() and len(list(target.parent.iterdir())) == 1
    export_project(shop.store, shop.project, target)
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_missing_and_changed_files_are_counted_and_never_replaced_by_other_bytes(shop, tmp_path):
    first, second = shop.pool.items()[:2]
    shop.store.media.path(first.sha256).unlink()
    shop.store.media.path(second.sha256).write_bytes(b"other")
    report = export_project(shop.store, shop.project, tmp_path / "out", ExportOptions(format="jsonl", media=True))
    assert (report.rows, report.media_files, report.media_missing) == (3, 1, 2)
    assert len(os.listdir(tmp_path / "out" / "media")) == 1
    assert [item.condition for item in shop.pool.items()] == ["missing", "changed", "ok", "ok"]
