"""More like this: exact cosine order, against a plain computation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from app.views import similar_items
from app.views.predictions import RoundPredictions
from app.views.similar_items import MOST, most_similar, neighborhoods


def predictions(features: np.ndarray) -> RoundPredictions:
    n = len(features)
    ids = np.arange(n, dtype=np.int64) * 3 + 5
    rows = np.full((n, 2), 0.5, np.float32)
    round_ = SimpleNamespace(id=1)
    return RoundPredictions(round_, ids, rows, features, (1, 2), np.arange(n), np.zeros(n, np.bool_))  # type: ignore[arg-type]


def test_the_order_is_that_of_the_cosine_for_every_block_size(monkeypatch):
    features = np.random.default_rng(0).normal(size=(900, 12)).astype(np.float32)
    features[17] *= 40.0  # long rows are not more similar
    features[18] = 0.0
    found = predictions(features)
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit[4]
    cosines[4] = np.inf
    expected = found.item_ids[np.argsort(-cosines, kind="stable")][:MOST]
    for block in (7, 4_096):
        monkeypatch.setattr(similar_items, "BLOCK", block)
        assert most_similar(found, int(found.item_ids[4]), found.item_ids).tolist() == expected.tolist()
    some = found.item_ids[10:40]
    within = [one for one in found.item_ids[np.argsort(-cosines, kind="stable")].tolist() if one in set(some.tolist())]
    assert most_similar(found, int(found.item_ids[4]), some).tolist() == within


def test_an_item_without_features_has_no_similar_ones():
    found = predictions(np.ones((4, 3), np.float32))
    assert len(most_similar(found, 999, found.item_ids)) == 0
    assert most_similar(found, 5, np.array([999], np.int64)).tolist() == []


def test_outliers_and_near_duplicates_are_those_of_all_pairs(monkeypatch):
    rng = np.random.default_rng(1)
    features = (rng.normal(size=(1, 8)) + 0.3 * rng.normal(size=(60, 8))).astype(np.float32)
    features[20] = -features[3]  # unlike all others
    features[41] = 2 * features[7] + 1e-4  # near-duplicates of each other
    found = predictions(features)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    expected = np.sort(cosines, axis=1)[:, -10:].mean(1)
    for block in (7, 512):
        monkeypatch.setattr(similar_items, "PAIR_BLOCK", block)
        similar_items._neighborhoods.clear()
        near = neighborhoods(found)
        assert near is not None and near.outliers[0] == 20 and set(near.duplicates[:2].tolist()) == {7, 41}
        assert np.allclose(expected[near.outliers], np.sort(expected), atol=1e-5)
        assert np.allclose(cosines.max(1)[near.duplicates], np.sort(cosines.max(1))[::-1], atol=2e-5)
    monkeypatch.setattr(similar_items, "MOST_COMPARED", 59)
    assert neighborhoods(found) is None
