"""Predictions that follow labels, on the labeling screen: the effect is shown, and the card on screen stays."""

from __future__ import annotations

import io

import numpy as np
from playwright.sync_api import expect

from app.live.process import Follower
from core.config import RoundConfig
from core.types import Selection
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog
from tests.browser.conftest import at_rest, current_item, saved, wait_for_card


def finish_round(store: Store, project: ProjectRow) -> None:
    """A round without labels whose features are two clusters of every second item; it predicts the first class."""
    snapshot, log = Pool(store, project.id).snapshot(), RoundLog(store, project.id)
    n, n_classes = len(snapshot.item_ids), snapshot.n_classes
    rng = np.random.default_rng(0)
    features = 4 * rng.normal(size=(2, 12))[np.arange(n) % 2] + rng.normal(size=(n, 12))
    probabilities = np.full((n, n_classes), 0.5 / (n_classes - 1), np.float32)
    probabilities[:, 0] = 0.5
    buffer = io.BytesIO()
    np.savez(buffer, labels=snapshot.labels)
    log.finish(
        log.request(RoundConfig()).id,
        arrays={
            "item_ids": snapshot.item_ids,
            "probabilities": probabilities,
            "embeddings": features.astype(np.float32),
            "snapshot": store.artifacts.put_bytes(buffer.getvalue(), ".npz"),
        },
        selection=Selection(item_ids=snapshot.item_ids[:4], scores=np.ones(4), strategy="uniform"),
        metrics={"has_model": True},
    )


def test_a_label_says_how_many_predictions_it_changed_and_the_card_stays(open_browser, images, store):
    finish_round(store, images)
    user = open_browser(images)
    page = user.label_tab()
    follower = Follower(store)
    follower.look()
    for row in user.classes[1:3]:  # the first two picks belong to different clusters
        page.keyboard.press(row.key)
        saved(page)
        wait_for_card(page)
    item = current_item(page)
    assert follower.look() == 1
    # The sentence appears when the next cards have their new suggestions.
    expect(page.locator(".given")).to_have_text("The last 2 labels changed 28 predictions", timeout=20_000)
    assert current_item(page) == item
    at_rest(page)
    page.keyboard.press("Enter")  # accepts what the card shows
    saved(page)
    wait_for_card(page)
    page.keyboard.press("Enter")
    saved(page)
    shown, followed = user.events()[-2:]
    assert (shown.item_id, shown.class_id) == (item, user.classes[0].id), "the card on screen keeps its suggestion"
    assert followed.class_id in {row.id for row in user.classes[1:3]}, "the next card has that of the new labels"
