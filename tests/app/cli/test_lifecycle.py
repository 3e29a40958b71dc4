"""Commands that manage projects."""

from __future__ import annotations

import json

import pytest

from app.cli.main import main
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import list_projects
from tests.app import sample_store


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    with Store.open() as store:
        return sample_store.audio_project(store, "Birds", 4)


def said(capsys):
    return json.loads(capsys.readouterr().out)


def names() -> list[str]:
    with Store.open() as store:
        return [row.name for row in list_projects(store, include_archived=True)]


def test_delete_lists_what_it_removes_and_deletes_only_when_confirmed(project, capsys):
    assert main(["delete", "Birds"]) == 0
    output = capsys.readouterr()
    assert "4 items" in output.err and "will be deleted for good" in output.err and "--confirm 'Birds'" in output.out
    assert main(["delete", "Birds", "--confirm", "birds"]) == 1
    assert names() == ["Birds"]
    item = said_items()[0]
    assert main(["delete", "Birds", "--item", str(item), "--confirm", "Birds", "--json"]) == 0
    assert said(capsys) == [{"project": "Birds", "items": 1}] and len(said_items()) == 3
    assert main(["delete", "Birds", "--confirm", "Birds"]) == 0 and names() == []
    assert main(["delete", "--resume"]) == 0
    assert "no interrupted deletion" in capsys.readouterr().out


def said_items() -> list[int]:
    with Store.open() as store:
        return [item.id for item in Pool(store, list_projects(store)[0].id).items()]


def test_duplicate_test_items_history_disk_and_clean(project, capsys):
    assert main(["duplicate", "Birds", "Birds 2", "--json"]) == 0
    assert said(capsys)["name"] == "Birds 2" and names() == ["Birds", "Birds 2"]
    first, second = said_items()[:2]
    with Store.open() as store:
        class_id = list_classes(store, project.id)[0].id
        Pool(store, project.id).label(first, class_id, annotator=annotator_named(store, "Ann").id)
    assert main(["history", "Birds", str(first), "--json"]) == 0
    assert [(row["annotator"], row["kind"], row["class"]) for row in said(capsys)] == [("Ann", "label", "zero")]
    assert main(["history", "Birds", str(first)]) == 0 and "Ann  label  zero" in capsys.readouterr().out
    assert main(["test-items", "Birds", str(first), str(second), "--json"]) == 0
    assert said(capsys)["moved"] == 2
    assert main(["test-items", "Birds", str(first), "--back"]) == 0
    output = capsys.readouterr()
    assert "1 item moved" in output.out and "may train" in output.err
    assert main(["disk", "--json"]) == 0
    assert [(row["name"], row["media_files"]) for row in said(capsys)] == [("Birds", 4), ("Birds 2", 0)]
    assert main(["clean"]) == 0
    assert "Nothing was changed" in capsys.readouterr().out
    assert main(["clean", "--yes", "--json"]) == 0
    assert said(capsys)["removed"] == 0
