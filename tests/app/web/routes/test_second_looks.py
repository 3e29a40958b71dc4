"""The card of a second look: why it is shown, and neither the label it is about nor a suggestion."""

from __future__ import annotations

from tests.app import sample_store
from tests.app.finished_rounds import ask_again
from tests.app.web.routes.test_blind_labeling import LabelingSetup


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
