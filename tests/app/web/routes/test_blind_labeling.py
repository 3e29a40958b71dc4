"""No label is shown as a suggestion of the model, and with several labels per item annotators label independently."""

from __future__ import annotations

import dataclasses
import uuid

import numpy as np
import pytest

from app.views.cards.pick_table import pick_table
from app.views.map_layers import NONE, blinded, map_layers
from app.views.predictions import newest_predictions
from app.views.review_cases import cases
from core.config import RoundConfig
from core.types import PickReason, Selection
from storage.labeling.pool import LabelInput, Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, get_project, update_project
from storage.rounds.log import RoundLog
from tests.app import sample_store


def finish_round(store, project, picks=(), confidence=0.6) -> None:
    """A finished round in the form of the pipeline: one-hot on labeled rows, class 1 with `confidence` elsewhere."""
    log, pool = RoundLog(store, project.id), Pool(store, project.id)
    row = log.request(RoundConfig())
    log.start(row.id)
    snapshot = pool.snapshot()
    n = len(snapshot.item_ids)
    probabilities = np.full((n, snapshot.n_classes), (1 - confidence) / (snapshot.n_classes - 1), np.float32)
    probabilities[:, 1] = confidence
    labeled = np.flatnonzero(snapshot.labeled)
    probabilities[labeled] = np.eye(snapshot.n_classes, dtype=np.float32)[snapshot.labels[labeled]]
    chosen = snapshot.item_ids[list(picks)] if picks else np.empty(0, np.int64)
    reasons = tuple(PickReason(order=k + 1, score=1.0, guess=1, confidence=confidence) for k in range(len(chosen)))
    selection = Selection(item_ids=chosen, scores=np.ones(len(chosen), np.float32), strategy="bico", reasons=reasons)
    arrays = {"item_ids": snapshot.item_ids, "probabilities": probabilities, "map": np.zeros((n, 2), np.float32)}
    arrays["embeddings"] = np.arange(n, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    log.finish(row.id, arrays=arrays, selection=selection, metrics={"has_model": True})


class LabelingSetup:
    def __init__(self, store, project) -> None:
        self.store, self.project, self.pool = store, project, Pool(store, project.id)
        self.items = [item.id for item in self.pool.items()]
        self.classes = [row.id for row in list_classes(store, project.id)]
        self.ana, self.ben = (annotator_named(store, name).id for name in ("Ana", "Ben"))

    def label(self, item: int, class_: int, who: int) -> str:
        given = {"item_id": self.items[item], "kind": "label", "class_id": self.classes[class_]}
        event = LabelInput(uuid=str(uuid.uuid4()), **given)
        assert self.pool.apply([event], annotator=who)[0].accepted
        return event.uuid

    def card(self, post, item: int, person: str) -> dict:
        path = f"/api/projects/{self.project.id}/cards"
        return post(path, {"items": [self.items[item]]}, person=person).json()["cards"][0]


@pytest.fixture
def setup(page_store) -> LabelingSetup:
    return LabelingSetup(page_store, sample_store.audio_project(page_store, n=12, labels_per_item=2))


def open_suggestions(setup: LabelingSetup) -> None:
    settings = dataclasses.replace(get_project(setup.store, setup.project.id).settings, blind=False)
    update_project(setup.store, setup.project.id, settings=settings)


@pytest.mark.parametrize("blind", [True, False])
def test_the_label_of_another_annotator_is_never_a_suggestion(setup, post, blind):
    setup.label(0, 7, setup.ana)
    finish_round(setup.store, setup.project)
    if not blind:
        open_suggestions(setup)
    for person in ("Ana", "Ben"):
        suggestion = setup.card(post, 0, person)["suggestion"]
        assert (suggestion["state"], suggestion["class_id"], suggestion["confidence"]) == ("none", None, None)
        assert suggestion["guesses"] == []
    tiles = post(f"/api/projects/{setup.project.id}/tiles", {}, person="Ben").json()["tiles"]
    mine = next(tile for tile in tiles if tile["item_id"] == setup.items[0])
    assert (mine["guess"], mine["class_id"], mine["confidence"]) == (None, None, None)
    found = newest_predictions(setup.store, setup.project.id)
    assert found.most_probable(setup.items[0], list_classes(setup.store, setup.project.id)) == []
    assert found.most_probable(setup.items[1], list_classes(setup.store, setup.project.id))[0].probability == 0.6


def test_a_label_counts_as_seen_after_it_is_undone_unless_no_round_used_it(setup, post):
    open_suggestions(setup)
    seen, unseen = setup.label(0, 7, setup.ana), setup.label(1, 7, setup.ana)

    def undo(item: int, what: str) -> None:
        event = LabelInput(uuid=str(uuid.uuid4()), item_id=setup.items[item], kind="undo", undoes=what)
        assert setup.pool.apply([event], annotator=setup.ana)[0].accepted

    undo(1, unseen)
    finish_round(setup.store, setup.project)
    undo(0, seen)
    states = [setup.card(post, item, "Ben")["suggestion"]["state"] for item in (0, 1)]
    assert states == ["none", "shown"]
    finish_round(setup.store, setup.project)  # its model continues from the one that used the label
    states = [setup.card(post, item, "Ben")["suggestion"]["state"] for item in (0, 1)]
    assert states == ["none", "shown"]


def test_with_several_labels_per_item_suggestions_are_hidden_until_the_own_label(setup, post):
    finish_round(setup.store, setup.project)
    before = setup.card(post, 3, "Ben")["suggestion"]
    assert (before["state"], before["blind"], before["guesses"]) == ("hidden", True, [])
    setup.label(3, 2, setup.ben)
    after = setup.card(post, 3, "Ben")["suggestion"]
    assert (after["state"], after["confidence"]) == ("shown", 0.6)
    assert setup.card(post, 3, "Ana")["suggestion"]["state"] == "hidden"
    tiles = post(f"/api/projects/{setup.project.id}/tiles", {}, person="Ben").json()
    assert tiles["guessed"] is False and {tile["guess"] for tile in tiles["tiles"]} == {None}
    open_suggestions(setup)
    assert setup.card(post, 4, "Ben")["suggestion"]["state"] == "shown"


def test_nearest_items_show_only_own_labels_in_a_blind_project(setup, post):
    finish_round(setup.store, setup.project)
    for item in (4, 5, 6):
        setup.label(item, 7, setup.ana)
    setup.label(6, 2, setup.ben)
    names = [row.name for row in list_classes(setup.store, setup.project.id)]
    near = setup.card(post, 5, "Ben")["nearest"]
    assert [(one["item_id"], one["name"]) for one in near] == [(setup.items[6], names[2])]
    open_suggestions(setup)
    near = setup.card(post, 5, "Ben")["nearest"]
    assert setup.items[5] not in [one["item_id"] for one in near] and len(near) == 2


def test_the_map_of_a_blind_project_hides_what_is_still_to_label(setup):
    setup.label(0, 7, setup.ana)
    setup.label(1, 7, setup.ana)
    setup.label(1, 3, setup.ben)
    finish_round(setup.store, setup.project)
    layers = map_layers(setup.store, setup.project.id, 1)
    assert layers.predicted[:3].tolist() == [NONE, NONE, 1]
    assert layers.confidence[:2].tolist() == [0, 0]
    for who, labels in ((setup.ben, [NONE, 3]), (setup.ana, [7, 3])):
        seen = blinded(layers, setup.store, who)
        assert seen.label[:2].tolist() == labels
        assert seen.predicted[2] == NONE and seen.confidence[2] == 0
        assert (seen.annotator[:1] == NONE).tolist() == [labels[0] == NONE]


def test_projects_of_one_label_per_item_and_stored_settings_keep_their_suggestions(page_store):
    assert not ProjectSettings().is_blind
    assert ProjectSettings(labels_per_item=2).is_blind
    assert not ProjectSettings(labels_per_item=2, blind=False).is_blind


def test_review_and_picks_of_a_blind_project_leave_out_what_is_still_to_label(setup):
    finish_round(setup.store, setup.project, picks=[0, 1], confidence=0.95)
    setup.label(0, 7, setup.ana)
    setup.label(1, 7, setup.ana)
    setup.label(1, 3, setup.ben)

    def seen_by(who: int | None) -> tuple[list[int], list[str | None]]:
        found = cases(setup.store, setup.project.id, who)
        return [setup.items.index(one.item_id) for one in found], [
            line["label"] for line in pick_table(setup.store, setup.project.id, 1, who)
        ]

    names = [row.name for row in list_classes(setup.store, setup.project.id)]
    assert seen_by(setup.ben) == ([1], [None, names[3]])
    assert seen_by(setup.ana) == seen_by(None) == ([1, 0], [names[7], names[3]])
    assert pick_table(setup.store, setup.project.id, 1, setup.ben)[0]["prediction"] is None
    open_suggestions(setup)
    assert seen_by(setup.ben) == seen_by(None)


@pytest.mark.parametrize("hidden_by", ["blind", "hide", "random"])
def test_a_hidden_suggestion_is_not_in_the_card_and_is_stored_with_the_label(page_store, post, hidden_by):
    """The card names the round; also after a later round, what that round suggested is stored."""
    settings = {"blind": {"labels_per_item": 2}, "hide": {"suggestions": "hide"}, "random": {"suggestions": "random"}}
    more = {"hidden_share": 1.0} if hidden_by == "random" else {}
    project = sample_store.audio_project(page_store, n=6, **settings[hidden_by], **more)
    setup = LabelingSetup(page_store, project)
    finish_round(page_store, project, confidence=0.6)
    shown = setup.card(post, 0, "Ana")["suggestion"]
    assert (shown["state"], shown["class_id"], shown["confidence"], shown["guesses"]) == ("hidden", None, None, [])
    finish_round(page_store, project, confidence=0.9)
    for round_id, stored in ((shown["round_id"], (setup.classes[1], 0.6)), (10**9, (None, None)), (None, (None, None))):
        event = {"uuid": str(uuid.uuid4()), "item_id": setup.items[0], "kind": "label", "class_id": setup.classes[4]}
        event |= {"suggestion": "hidden", "suggestion_round": round_id}
        answer = post(f"/api/projects/{project.id}/labels", {"events": [event]}, person="Ana").json()
        assert answer["applied"][0]["accepted"]
        newest = setup.pool.history(setup.items[0])[-1]
        assert (newest.suggestion, newest.suggested_class_id, newest.suggested_confidence) == (
            "hidden",
            stored[0],
            pytest.approx(stored[1]) if stored[1] else None,
        )
