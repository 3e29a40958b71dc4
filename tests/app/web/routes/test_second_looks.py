"""The card of a second look: why it is shown, and neither the label it is about nor a suggestion."""

from __future__ import annotations

import pytest

from app.views.cards.pick_table import pick_table
from app.views.map_layers import NONE, blinded, map_layers
from app.views.review_cases import Case, cases
from storage.projects.roles import Actor, acting_as, set_role
from storage.rounds.log import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import ask_again
from tests.app.web.routes.test_blind_labeling import LabelingSetup, finish_round


@pytest.fixture
def asked(page_store) -> LabelingSetup:
    """Ana has labeled items 1, 2 and 3, and a round requests a second look at item 2."""
    setup = LabelingSetup(page_store, sample_store.audio_project(page_store, n=6))
    for item in (1, 2, 3):
        setup.label(item, 4, setup.ana)
    ask_again(page_store, setup.project.id, setup.items[2])
    finish_round(page_store, setup.project)
    return setup


def test_the_grid_shows_the_first_label_to_those_who_gave_it_alone(asked, post):
    path = f"/api/projects/{asked.project.id}/tiles"

    def found(person: str, **query: object) -> dict[int, dict]:
        answer = post(path, {"limit": 60, "show": "all"} | query, person=person).json()
        return {asked.items.index(tile["item_id"]): tile for tile in answer["tiles"]}

    tile = found("Ben")[2]
    assert [tile[name] for name in ("label", "label_id", "labeled_by", "labeled_at", "guess")] == [None] * 5
    assert found("Ben")[1]["label"] is not None and found("Ana")[2]["label"] is not None
    for query in ({"show": "labeled"}, {"label_id": asked.classes[4]}, {"annotator_id": asked.ana}):
        assert set(found("Ben", **query)) == {1, 3} and set(found("Ana", **query)) == {1, 2, 3}
    asked.label(2, 5, asked.ben)
    assert found("Ben")[2]["label"] is not None


def test_map_picks_and_nearest_items_do_not_show_the_first_label(asked, post):
    store, project = asked.store, asked.project.id
    log = RoundLog(store, project)
    asking, newest = (row.id for row in reversed(log.list()))
    layers = map_layers(store, project, newest)
    at = layers.item_ids.tolist().index(asked.items[2])
    assert layers.label[at] != NONE and blinded(layers, store, asked.ana).label[at] != NONE
    assert blinded(layers, store, asked.ben).label[at] == NONE
    assert "label" in pick_table(store, project, asking, asked.ana)[0]
    assert "label" not in pick_table(store, project, asking, asked.ben)[0]
    for person, shown in (("Ana", True), ("Ben", False)):
        near = {one["item_id"] for one in asked.card(post, 5, person)["nearest"]}
        assert (asked.items[2] in near) is shown and asked.items[3] in near


def test_review_shows_the_first_label_to_owners_and_to_those_who_gave_it(asked, monkeypatch):
    store, project, item = asked.store, asked.project.id, asked.items[2]
    case = Case(item_id=item, kind="conflict", labels={0: asked.classes[4]}, confidence=0.9)
    monkeypatch.setattr("app.views.review_cases.conflicts", lambda store, project: [case])
    set_role(store, project, asked.ana, "owner")
    set_role(store, project, asked.ben, "editor")
    with acting_as(Actor(asked.ben)):
        assert cases(store, project, asked.ben) == []
    set_role(store, project, asked.ben, "owner")
    with acting_as(Actor(asked.ben)):
        assert cases(store, project, asked.ben) == [case]
    with acting_as(Actor(asked.ana)):
        assert cases(store, project, asked.ana) == [case]


def test_a_second_look_says_so_and_does_not_show_the_label(page_store, post):
    setup = LabelingSetup(page_store, sample_store.audio_project(page_store, n=6))
    setup.label(2, 1, setup.ana)
    item = setup.items[2]
    ask_again(page_store, setup.project.id, item)
    path = f"/api/projects/{setup.project.id}"
    card = post(f"{path}/cards", {"holder": "tab", "limit": 1}, person="Ana").json()["cards"][0]
    assert card["item_id"] == item and card["pick"]["second_look"] and card["why"].startswith("A second look:")
    assert card["mine"] is None and card["suggestion"]["class_id"] is None
    setup.label(2, 0, setup.ana)
    after = post(f"{path}/cards", {"holder": "tab", "limit": 6}, person="Ana").json()["cards"]
    assert item not in {one["item_id"] for one in after}
