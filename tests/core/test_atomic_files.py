"""A file is visible complete or not at all, and no temporary file remains."""

from __future__ import annotations

import os

import pytest

from core import atomic_files
from core.atomic_files import replace_durably, temporary_path, write_file


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("data", [b"\x00\xff", "zwölf"])
def test_write_file_creates_and_replaces(tmp_path, durable, data):
    target = tmp_path / "result.json"
    target.write_text("old")
    write_file(target, data, durable)
    assert target.read_bytes() == (data if isinstance(data, bytes) else data.encode("utf-8"))
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("durable", [False, True])
def test_a_write_that_fails_keeps_the_old_content(tmp_path, monkeypatch, durable):
    target = tmp_path / "result.json"
    target.write_text("old")
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(OSError, match="No space"):
        write_file(target, "new", durable)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_replace_durably_syncs_the_content_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    rename, sync = os.replace, atomic_files.sync_path
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), rename(a, b)))
    monkeypatch.setattr(atomic_files, "sync_path", lambda path: (calls.append(path.name), sync(path)))
    source = tmp_path / "new"
    source.write_bytes(b"content")
    replace_durably(source, tmp_path / "target")
    assert calls == ["new", "rename", tmp_path.name]
    assert (tmp_path / "target").read_bytes() == b"content"


def test_temporary_paths_of_one_target_differ(tmp_path):
    with temporary_path(tmp_path / "a") as first, temporary_path(tmp_path / "a") as second:
        assert first != second
        assert first.parent == second.parent == tmp_path
