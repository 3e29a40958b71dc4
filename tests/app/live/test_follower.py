"""Live predictions: they follow labels, never an item's own label, never test labels, and end with the setting."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest

from app.live import process
from app.live.current import current_predictions, live_state
from app.live.process import Follower
from app.live.results import live_path, read_result
from app.views.predictions import newest_predictions
from app.views.review_cases import cases
from core.config import RoundConfig
from core.types import Selection
from storage.labeling.test_sets import draw_test_set, own_test_items
from storage.projects.classes import list_classes
from storage.projects.projects import get_project, update_project
from storage.rounds.log import RoundLog
from tests.storage.pools import Made, event, make_pool

N = 60
TRUTH = np.arange(N) % 3


def finish_round(made: Made, seed: int = 0, **metrics: object) -> int:
    """A round whose features are three clusters and whose predictions say class 0 with 0.4 for every item."""
    rng = np.random.default_rng(seed)
    features = (3 * rng.normal(size=(3, 16))[TRUTH] + rng.normal(size=(N, 16))).astype(np.float32)
    log, snapshot = RoundLog(made.store, made.project_id), made.pool.snapshot()
    probabilities = np.full((N, 3), 0.3, np.float32)
    probabilities[:, 0] = 0.4
    buffer = io.BytesIO()
    np.savez(buffer, labels=snapshot.labels)
    row = log.request(RoundConfig())
    log.finish(
        row.id,
        arrays={
            "item_ids": snapshot.item_ids,
            "probabilities": probabilities,
            "embeddings": features,
            "map": features[:, :2],
            "snapshot": made.store.artifacts.put_bytes(buffer.getvalue(), ".npz"),
        },
        selection=Selection(item_ids=np.array(made.items[:1]), scores=np.ones(1), strategy="uniform"),
        metrics={"has_model": True} | metrics,
    )
    return row.id


@pytest.fixture
def made(sqlite_store) -> Made:
    return make_pool(sqlite_store, N)


def label(made: Made, *numbers: int) -> list[str]:
    events = [event(made.items[one], class_id=made.classes[one % 3]) for one in numbers]
    made.pool.apply(events, annotator=made.ann)
    return [one.uuid for one in events]


def predicted(made: Made) -> np.ndarray:
    """The class position that a page shows for each item, -1 without a prediction."""
    found = current_predictions(made.store, made.project_id)
    assert found is not None
    best = found.best_classes(list_classes(made.store, made.project_id, include_inactive=True))
    assert best is not None
    return np.where(found.seen, -1, best.predicted)


def test_labels_change_the_predictions_of_similar_items(made):
    follower = Follower(made.store)
    assert follower.look() == 0, "there is no round yet"
    finish_round(made)
    assert follower.look() == 0
    assert live_state(made.store, made.project_id) == {"revision": 0, "n_new": 0, "n_changed": 0}
    assert (predicted(made) == 0).all(), "without new labels: the round's own"
    label(made, 0, 1, 2)
    assert follower.look() == 1 and follower.look() == 0
    shown = predicted(made)
    assert (shown[:3] == -1).all() and (shown[3:] == TRUTH[3:]).mean() > 0.75
    live = read_result(made.store.home, made.project_id)
    assert live is not None and live.fit.n_changed == (shown[3:] != 0).sum() >= 30
    assert (live.fit.n_labels, live.fit.n_new) == (3, 3) and np.allclose(live.probabilities.sum(1), 1, atol=1e-5)
    assert newest_predictions(made.store, made.project_id).probabilities[4, 0] == np.float32(0.4), "the round stays"


def test_an_undone_label_has_no_prediction_until_the_head_no_longer_uses_it(made):
    follower = Follower(made.store)
    finish_round(made)
    label(made, 0, 1, 2)
    follower.look()
    before = read_result(made.store.home, made.project_id)
    given = label(made, 30)
    follower.look()
    made.pool.apply([event(made.items[30], "undo", undoes=given[0])], annotator=made.ann)
    assert predicted(made)[30] == -1, "the head still has its label"
    follower.look()
    after = read_result(made.store.home, made.project_id)
    assert before is not None and after is not None and predicted(made)[30] >= 0
    assert np.allclose(before.probabilities, after.probabilities, atol=1e-5)


def test_test_labels_change_nothing(made):
    follower = Follower(made.store)
    finish_round(made)
    label(made, 0, 1, 2)
    draw_test_set(made.store, made.project_id, 20, seed=0)
    tests = own_test_items(made.store, made.project_id).item_ids
    follower.look()
    before = read_result(made.store.home, made.project_id)
    made.pool.apply([event(int(one), class_id=made.classes[0]) for one in tests], annotator=made.ann)
    assert follower.look() == 0
    after = read_result(made.store.home, made.project_id)
    assert before is not None and after is before and not np.isin(after.item_ids, tests).any()


def test_wrong_labels_are_suspected_in_review_and_none_is_changed(made):
    """Only if features do not depend on labels; a label with a decision is not listed again."""
    finish_round(made, settings={"encoder": {"name": "efficientnet-lite0", "identity": "0" * 64}})
    label(made, *range(30))
    wrong = {made.items[31]: 0, made.items[35]: 0, made.items[39]: 1}  # classes 1, 2 and 0
    events = [event(item, class_id=made.classes[given]) for item, given in wrong.items()]
    made.pool.apply(events, annotator=made.ann)
    follower = Follower(made.store)
    follower.look()
    live = read_result(made.store.home, made.project_id)
    assert live is not None and live.fit.n_checked == 33 and 25 <= live.fit.n_agreeing <= 30
    assert {one.item_id for one in live.suspects[:3]} == set(wrong)
    found = {case.item_id: case for case in cases(made.store, made.project_id)}
    assert set(wrong) <= set(found) and found[made.items[31]].prediction == made.classes[1]
    assert found[made.items[31]].labels == {0: made.classes[0]}
    made.pool.apply([event(made.items[31], "decide", class_id=made.classes[0])], annotator=made.ann)
    assert made.items[31] not in {case.item_id for case in cases(made.store, made.project_id)}
    finish_round(made)
    follower.look()
    label(made, 45)
    follower.look()
    later = read_result(made.store.home, made.project_id)
    assert later is not None and later.suspects == () and later.fit.n_checked == 0, "trained on the labels"


def test_a_project_that_failed_is_retried_later_and_at_once_when_it_changes(made, monkeypatch):
    finish_round(made)
    label(made, 0, 1, 2)
    attempts, passed, read = [], [0.0], process.live_pool

    def unreadable(*arguments: object) -> None:
        attempts.append(passed[0])
        raise OSError("the disk does not answer")

    monkeypatch.setattr(process, "live_pool", unreadable)
    follower = Follower(made.store, clock=lambda: passed[0])
    for second in range(200):
        passed[0] = float(second)
        assert follower.look() == 0
    assert attempts == [0, 2, 6, 14, 30, 62, 122, 182], "the pauses double up to a minute"
    label(made, 3)
    follower.look()
    assert attempts[-2:] == [182, 199], "a change is followed at once"
    monkeypatch.setattr(process, "live_pool", read)
    passed[0] = 200.0
    assert follower.look() == 0 and read_result(made.store.home, made.project_id) is None
    passed[0] = 201.0
    assert follower.look() == 1, "the same labels, when the disk responds again"
    assert read_result(made.store.home, made.project_id) is not None
    assert follower.look() == 0


def test_a_new_round_starts_over_and_the_setting_ends_it(made):
    follower = Follower(made.store)
    finish_round(made)
    label(made, 0, 1, 2)
    follower.look()
    path = live_path(made.store.home, made.project_id)
    assert path.exists()
    finish_round(made, seed=1)
    assert (predicted(made)[3:] == 0).all(), "a fit of another round is not used"
    assert follower.look() == 0 and not path.exists()
    label(made, 3)
    follower.look()
    state = live_state(made.store, made.project_id)
    assert path.exists() and state is not None and state["n_new"] == 1
    path.write_bytes(path.read_bytes()[:100])
    assert read_result(made.store.home, made.project_id) is None, "a damaged file is no result"
    label(made, 4)
    follower.look()
    settings = get_project(made.store, made.project_id).settings
    update_project(made.store, made.project_id, settings=dataclasses.replace(settings, live=False))
    assert live_state(made.store, made.project_id) is None
    follower.look()
    assert not path.exists()
