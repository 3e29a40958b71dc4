"""`python -m app token` and `python -m app role`."""

from __future__ import annotations

import json

import pytest

from app.cli.main import main
from storage.database.store import Store
from storage.projects.projects import create_project
from storage.projects.tokens import redeem


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    with Store.open() as store:
        create_project(store, "Birds", "audio")
    return tmp_path / "home"


def said(capsys) -> object:
    return json.loads(capsys.readouterr().out)


def test_a_token_is_printed_once_listed_without_its_text_and_revoked(home, capsys):
    assert main(["token", "new", "--name", "ci", "--role", "annotator"]) == 0
    text = capsys.readouterr().out.strip()
    with Store.open() as store:
        token = redeem(store, text)
    assert (token.name, token.role, token.annotator) == ("ci", "annotator", "ci")
    assert main(["token", "list", "--json"]) == 0
    listed = said(capsys)
    assert [(row["id"], row["name"], row["role"]) for row in listed] == [(token.id, "ci", "annotator")]
    assert listed[0]["last_used_at"] is not None and text not in json.dumps(listed)
    assert main(["token", "revoke", str(token.id)]) == 0
    with Store.open() as store:
        assert redeem(store, text) is None
    assert main(["token", "new", "--name", "x", "--role", "admin"]) == 2


def test_roles_are_given_listed_and_removed(home, capsys):
    assert main(["role", "Birds"]) == 0
    assert "everyone is an owner" in capsys.readouterr().out
    assert main(["role", "Birds", "Ben", "editor"]) == 1
    assert "no owner" in capsys.readouterr().err
    assert main(["role", "Birds", "Ana", "owner", "--json"]) == 0
    assert said(capsys) == [{"annotator": "Ana", "role": "owner"}]
    assert main(["role", "Birds", "Ben", "annotator", "--json"]) == 0
    assert said(capsys) == [{"annotator": "Ana", "role": "owner"}, {"annotator": "Ben", "role": "annotator"}]
    assert main(["role", "Birds", "Ben", "none", "--json"]) == 0
    assert said(capsys) == [{"annotator": "Ana", "role": "owner"}]


def test_annotators_are_listed_removed_and_restored_and_changes_of_access_are_in_the_audit_log(home, capsys):
    assert main(["role", "Birds", "Ana", "owner"]) == 0
    capsys.readouterr()
    for option, removed in (("--remove", True), ("--restore", False)):
        assert main(["people", option, "Ana", "--json"]) == 0
        assert {row["name"]: row["removed"] for row in said(capsys)}["Ana"] is removed
    assert main(["people", "--remove", "Nobody"]) == 1
    assert "no annotator called 'Nobody'" in capsys.readouterr().err
    assert main(["audit", "Birds", "--json"]) == 0
    entries = said(capsys)
    assert len(entries) == 1 and "role" in entries[0]["kind"] and entries[0]["by"] == ""
    assert main(["audit", "Birds"]) == 0
    assert "command line" in capsys.readouterr().out
