"""Members over the API and the client: owners give and remove roles, and own what they create if sign-in is used."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.jobs import jobs, process
from app.jobs.requests import ImportRequest
from app.web import resources
from storage.projects import audit
from storage.projects.annotators import annotator_named
from storage.projects.projects import get_project
from storage.projects.roles import Actor, acting_as, list_members
from storage.projects.tokens import create_token
from tests.app import sample_store
from tests.app.web.api.callers import BOTH_DATABASES, api_app, caller
from tests.app.web.api.servers import serving
from winnow_client.client import Client
from winnow_client.errors import ApiError

pytestmark = BOTH_DATABASES


def test_an_owner_gives_and_removes_roles_and_others_may_not(page_store):
    project = sample_store.audio_project(page_store, n=2)
    app, path = api_app(), f"/projects/{project.id}/members"
    olga, ben, eve = (caller(app, page_store, person=name) for name in ("Olga", "Ben", "Eve"))
    assert olga("GET", path).json() == []
    refused = olga("PUT", path, {"person": "Ben", "role": "viewer"})
    assert refused.status == 409 and "no owner" in refused.json()["error"]
    assert olga("PUT", path, {"person": "Olga", "role": "owner"}).json()["role"] == "owner"
    assert ben("GET", path).status == 404 and eve("GET", f"/projects/{project.id}").status == 404
    assert olga("PUT", path, {"person": "Ben", "role": "editor"}).json()["name"] == "Ben"
    assert [(row["name"], row["role"]) for row in ben("GET", path).json()] == [("Olga", "owner"), ("Ben", "editor")]
    assert ben("PUT", path, {"person": "Eve", "role": "viewer"}).status == 403
    olga_id, ben_id = (annotator_named(page_store, name).id for name in ("Olga", "Ben"))
    assert ben("DELETE", f"{path}/{olga_id}").status == 403
    assert olga("DELETE", f"{path}/{olga_id}").status == 409
    assert olga("PUT", path, {"person": "Nobody", "role": "viewer"}).status == 404
    assert olga("PUT", path, {"person": "import", "role": "viewer"}).status == 404
    assert olga("PUT", path, {"person": "Ben", "role": "admin"}).status == 422
    assert olga("DELETE", f"{path}/{ben_id}").status == 204 and ben("GET", path).status == 404
    kinds = [(entry.kind, entry.annotator_id) for entry in audit.list_entries(page_store, project.id)]
    assert kinds == [("set_role", olga_id)] * 3


@pytest.mark.parametrize("signs_in", [True, False])
def test_a_project_of_a_token_belongs_to_its_person_where_people_sign_in(page_store, monkeypatch, signs_in):
    monkeypatch.setattr(resources, "sign_in", lambda: signs_in)
    app = api_app()
    olga, eve = (caller(app, page_store, person=name) for name in ("Olga", "Eve"))
    made = olga("POST", "/projects", {"name": "Birds", "kind": "audio"}).json()
    members = olga("GET", f"/projects/{made['id']}/members").json()
    assert [(row["name"], row["role"]) for row in members] == ([("Olga", "owner")] if signs_in else [])
    assert [row["name"] for row in eve("GET", "/projects").json()] == ([] if signs_in else ["Birds"])


def test_an_import_that_creates_a_project_makes_its_person_the_owner(page_store, tmp_path, monkeypatch):
    """The process of a job has the rights of the person who started it."""
    olga = annotator_named(page_store, "Olga").id
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "one.wav").write_bytes(sample_store.clip(1))
    monkeypatch.setattr(jobs.child, "start", lambda command, *_, **__: run_here(Path(command[-2])))
    with acting_as(Actor(olga, owns_new=True)):
        jobs.start(page_store.home, "Import", ImportRequest(source=str(tmp_path / "birds"), project="Birds"))
    made = get_project(page_store, "Birds")
    assert [(row.name, row.role) for row in list_members(page_store, made.id)] == [("Olga", "owner")]


def run_here(folder: Path) -> SimpleNamespace:
    """Run the job without a separate process."""
    with acting_as(None):
        assert process.main(folder, os.open(folder / "job.json", os.O_RDONLY)) == 0
    return SimpleNamespace(wait=lambda: 0)


def test_the_client_lists_gives_and_removes_roles(page_store):
    project = sample_store.audio_project(page_store, n=2)
    annotator_named(page_store, "Ben")
    _, token = create_token(page_store, "ci", "owner", person="Olga")
    with serving() as address, Client(address, token) as client:
        digits = client.project(project.name)
        digits.set_role("Olga", "owner")
        digits.set_role("Ben", "annotator")
        assert [(row.name, row.role) for row in digits.members()] == [("Olga", "owner"), ("Ben", "annotator")]
        digits.set_role("Ben", None)
        assert [row.name for row in digits.members()] == ["Olga"]
        with pytest.raises(ApiError, match="no annotator called"):
            digits.set_role("Nobody", "viewer")


def test_a_name_that_contains_a_class_is_shown_as_a_number(page_store):
    project = sample_store.audio_project(page_store, n=2)
    call = caller(api_app(), page_store)
    call("POST", f"/projects/{project.id}/classes", {"name": "clip"})
    for item in call("GET", f"/projects/{project.id}/items").json()["items"]:
        assert item["name"].startswith("clip_") and item["shown_name"] == f"Item {item['id']}"
