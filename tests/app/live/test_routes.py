"""Live predictions on cards, in the state of the labeling screen, over the API and on the map."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.live.current import live_layers
from app.live.process import Follower
from app.views.map_layers import map_layers
from storage.projects.classes import list_classes
from storage.projects.projects import get_project, update_project
from tests.app.live.test_follower import TRUTH, N, finish_round, label
from tests.app.web.api.callers import api_app, caller
from tests.storage.pools import Made, make_pool


@pytest.fixture
def made(page_store) -> Made:
    made = make_pool(page_store, N)
    finish_round(made)
    return made


def suggestions(made: Made, post) -> dict[int, int | None]:
    """Item number -> class position of the suggestion on its card."""
    cards = post(f"/api/projects/{made.project_id}/cards", {"items": made.items}).json()["cards"]
    assert all(card["suggestion"]["item_id"] == card["item_id"] for card in cards)
    place = {class_id: position for position, class_id in enumerate(made.classes)}
    return {made.items.index(card["item_id"]): place.get(card["suggestion"]["class_id"]) for card in cards}


def test_cards_state_api_and_map_follow_a_label(made, post, page_store):
    state = post(f"/api/projects/{made.project_id}/state").json()
    assert state["live"] == {"revision": 0, "n_new": 0, "n_changed": 0}
    assert set(suggestions(made, post).values()) == {0}, "the round's own"
    label(made, 0, 1, 2)
    Follower(page_store).look()
    state = post(f"/api/projects/{made.project_id}/state").json()
    shown = suggestions(made, post)
    assert state["live"]["n_new"] == 3 and state["live"]["revision"] > 0
    assert [shown[number] for number in range(3)] == [None] * 3, "never from the item's own label"
    right = [shown[number] == TRUTH[number] for number in range(3, N)]
    assert np.mean(right) > 0.75 and state["live"]["n_changed"] == sum(shown[number] != 0 for number in range(3, N))
    for order in ("outliers", "duplicates"):
        page = post(f"/api/projects/{made.project_id}/tiles", {"order": order}).json()
        assert sorted(tile["item_id"] for tile in page["tiles"]) == made.items[3:] and page["total"] == N - 3
        guesses = {made.items.index(tile["item_id"]): tile["class_id"] for tile in page["tiles"]}
        assert all(made.classes.index(class_id) == shown[number] for number, class_id in guesses.items())
    call = caller(api_app(), page_store)
    leased = call("POST", f"/projects/{made.project_id}/next", {"limit": 5}).json()["items"]
    for one in leased:
        best = one["predictions"][0]["class_id"]
        assert best == made.classes[shown[made.items.index(one["item"]["id"])]]  # type: ignore[index]
    stored = call("GET", f"/projects/{made.project_id}/predictions").json()["predictions"]
    assert {row["class_id"] for row in stored} == {made.classes[0]}, "the round's predictions do not change"


def test_the_setting_and_blind_labeling_hide_suggestions(made, post, page_store):
    label(made, 0, 1, 2)
    Follower(page_store).look()
    settings = get_project(page_store, made.project_id).settings
    update_project(page_store, made.project_id, settings=dataclasses.replace(settings, live=False))
    assert {value for number, value in suggestions(made, post).items() if number > 2} == {0}
    assert post(f"/api/projects/{made.project_id}/state").json()["live"] is None
    blind = dataclasses.replace(settings, labels_per_item=2, blind=True)
    update_project(page_store, made.project_id, settings=blind)
    assert set(suggestions(made, post).values()) == {None}


def test_the_map_of_the_newest_round_has_live_colors(made, page_store):
    label(made, 0, 1, 2)
    Follower(page_store).look()
    found = map_layers(page_store, made.project_id, 1)
    assert found is not None
    known = list_classes(page_store, made.project_id, include_inactive=True)
    live = live_layers(found, page_store, known)
    assert (found.predicted[3:] == 0).all() and (live.predicted[3:] == TRUTH[3:]).mean() > 0.75
    assert (live.predicted[:3] == -1).all() and (live.confidence[:3] == 0).all()
