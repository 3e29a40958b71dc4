"""The browser's routes check roles: others cannot find a closed project, and a viewer cannot label."""

from __future__ import annotations

import uuid

import pytest

from app.web.routes.media import media_path
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.roles import set_role
from tests.app import sample_store

PATHS = ("labels", "cards", "state", "recent", "release", "tiles")


@pytest.fixture
def project(page_store):
    made = sample_store.audio_project(page_store, n=4)
    set_role(page_store, made.id, annotator_named(page_store, "Olga").id, "owner")
    return made


@pytest.mark.parametrize("name", PATHS)
def test_a_project_with_members_is_not_found_by_others(post, project, name):
    path = f"/api/projects/{project.id}/{name}"
    assert post(path, {"events": [], "holder": "t"}, person="Ana").status == 404
    assert post(path, {"events": [], "holder": "t"}, person="Olga").status == 200


def test_a_viewer_gets_no_cards_and_no_label_is_stored(post, project, page_store):
    set_role(page_store, project.id, annotator_named(page_store, "Ana").id, "viewer")
    path = f"/api/projects/{project.id}"
    answer = post(f"{path}/cards", {"holder": "t"})
    assert answer.status == 403 and "viewer" in answer.json()["error"]
    item = Pool(page_store, project.id).items()[0]
    event = {"uuid": str(uuid.uuid4()), "item_id": item.id, "kind": "label"}
    event["class_id"] = list_classes(page_store, project.id)[0].id
    applied = post(f"{path}/labels", {"events": [event]}).json()["applied"]
    assert not applied[0]["accepted"] and "viewer" in applied[0]["reason"]
    assert Pool(page_store, project.id).history(item.id) == []


def test_media_of_a_closed_project_are_served_to_members_only(get, project, page_store):
    item = Pool(page_store, project.id).items()[0]
    assert get(media_path(item, "file")).status == 404
    set_role(page_store, project.id, annotator_named(page_store, "Ana").id, "viewer")
    assert get(media_path(item, "file")).status == 200
