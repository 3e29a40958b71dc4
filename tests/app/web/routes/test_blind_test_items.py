"""The items of a test set are labeled blind everywhere, in a project that shows suggestions."""

from __future__ import annotations

import numpy as np
import pytest

from app.views.map_layers import NONE, blinded, map_layers
from app.views.review_cases import cases
from storage.labeling.test_sets import draw_test_set, own_test_items
from tests.app import sample_store
from tests.app.web.api.callers import api_app, caller
from tests.app.web.routes.test_blind_labeling import LabelingSetup, finish_round


@pytest.fixture
def setup(page_store) -> LabelingSetup:
    return LabelingSetup(page_store, sample_store.audio_project(page_store, n=14))


def test_no_card_tile_point_pick_or_answer_shows_a_prediction_of_a_test_item(setup, post, page_store):
    """The draw comes after a round whose predictions and orders are in memory, so nothing stale may be shown."""
    setup.label(0, 1, setup.ana)
    setup.label(1, 1, setup.ana)
    finish_round(setup.store, setup.project, picks=range(2, 12), confidence=0.95)
    path, base = f"/api/projects/{setup.project.id}", f"/projects/{setup.project.id}"
    assert all(tile["class_id"] for tile in post(f"{path}/tiles").json()["tiles"])
    assert setup.card(post, 5, "Ana")["suggestion"]["state"] == "shown" and setup.card(post, 5, "Ana")["nearest"]
    draw_test_set(page_store, setup.project.id, 5, seed=1)
    tests = set(own_test_items(page_store, setup.project.id).item_ids.tolist())
    first = post(f"{path}/cards", {"holder": "tab", "limit": 5}).json()["cards"]
    assert {card["item_id"] for card in first} == tests
    for card in first:
        assert card["suggestion"]["state"] == "none" and card["suggestion"]["class_id"] is None
        assert card["test"] and card["nearest"] == [] and card["pick"] is None and "test item" in card["why"]
    seen = {tile["item_id"]: tile["class_id"] for tile in post(f"{path}/tiles").json()["tiles"]}
    assert {item for item, class_id in seen.items() if class_id is None} == tests and len(seen) == 12
    ordered = list(seen)
    assert set(ordered[-5:]) == tests, "their position in the order also reveals nothing"
    only = post(f"{path}/tiles", {"class_id": setup.classes[1]}).json()["tiles"]
    assert not tests & {tile["item_id"] for tile in only}
    layers = blinded(map_layers(page_store, setup.project.id, 1), page_store, setup.ana)
    at = np.isin(layers.item_ids, list(tests))
    assert (layers.predicted[at] == NONE).all() and (layers.predicted[~at] != NONE).sum() == 7
    call = caller(api_app(), page_store, person="Ana")
    shown = {row["item_id"] for row in call("GET", f"{base}/predictions").json()["predictions"]}
    assert not shown & tests and len(shown) == 7
    picks = call("GET", f"{base}/rounds/1/picks").json()
    assert all("pick_guess" not in pick["reason"] for pick in picks if pick["item_id"] in tests)
    leased = call("POST", f"{base}/next", {"limit": 5, "holder": "program"}).json()["items"]
    assert all(one["predictions"] == [] for one in leased if one["item"]["id"] in tests)


def test_a_labeled_test_item_is_neither_a_neighbor_nor_a_case_for_review(setup, post, page_store):
    setup.label(0, 1, setup.ana)
    draw_test_set(page_store, setup.project.id, 5, seed=1)
    tests = own_test_items(page_store, setup.project.id).item_ids.tolist()
    finish_round(setup.store, setup.project, confidence=0.95)
    for item in tests:
        setup.label(setup.items.index(item), 3, setup.ana)
    assert [case.item_id for case in cases(page_store, setup.project.id, setup.ana)] == []
    other = next(k for k, item in enumerate(setup.items) if k and item not in tests)
    near = setup.card(post, other, "Ana")["nearest"]
    assert near and not {one["item_id"] for one in near} & set(tests)
    labeled = setup.card(post, setup.items.index(tests[0]), "Ana")
    assert labeled["suggestion"]["state"] == "none" and labeled["mine"] == setup.classes[3], "still no suggestion"
