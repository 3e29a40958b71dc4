"""*More like this*: exact cosine order, compared with a direct computation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from app.views.predictions import RoundPredictions
from app.views.similarity import neighbors, similar_index, similar_items
from app.views.similarity.similar_items import MOST, largest, most_similar, neighborhoods


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
        assert most_similar(found, int(found.item_ids[4]), np.ones(900, np.bool_)).tolist() == expected.tolist()
    some = np.isin(np.arange(900), np.arange(10, 40))
    ordered = np.argsort(-cosines, kind="stable")
    within = found.item_ids[ordered[some[ordered]]]
    assert most_similar(found, int(found.item_ids[4]), some).tolist() == within.tolist()


def test_an_item_without_features_has_no_similar_ones():
    found = predictions(np.ones((4, 3), np.float32))
    assert len(most_similar(found, 999, np.ones(4, np.bool_))) == 0
    assert most_similar(found, 5, np.zeros(4, np.bool_)).tolist() == []


@pytest.mark.parametrize("kept_rows", [0, 1_000])
def test_a_mapped_file_gives_the_order_of_the_array(tmp_path, monkeypatch, kept_rows):
    features = np.random.default_rng(3).normal(size=(700, 5)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    given: list[int] = []
    for module in (similar_items, similar_index, neighbors):
        monkeypatch.setattr(module, "give_back", lambda array: given.append(len(array)))
    monkeypatch.setattr(similar_index, "BLOCK", 64)
    for module, most in ((similar_index, 4_000), (neighbors, 1 << 13)):
        monkeypatch.setattr(module, "MOST_HELD", most)
    monkeypatch.setattr(neighbors, "READ_AROUND", 1 << 8)
    expected = most_similar(predictions(features), 5 + 3 * 9, np.ones(700, np.bool_))
    monkeypatch.setattr(similar_items, "MOST_KEPT_ROWS", kept_rows)
    given.clear()
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    found = predictions(mapped)
    for _ in range(2):
        assert most_similar(found, 5 + 3 * 9, np.ones(700, np.bool_)).tolist() == expected.tolist()
    assert len(given) >= 30 if not kept_rows else given == [700], "a large round frees memory during the search"


def test_a_large_round_is_searched_by_an_index_that_finds_nearly_all(monkeypatch):
    """Clusters in 16 of 48 dimensions, like those of networks; the reference is a comparison with all rows."""
    rng = np.random.default_rng(7)
    n, mixing = 30_000, rng.normal(size=(16, 48))
    features = 2 * rng.normal(size=(10, 48))[rng.integers(0, 10, n)] + 0.5 * rng.normal(size=(n, 16)) @ mixing
    features = (features + 0.2 * rng.normal(size=(n, 48))).astype(np.float32)
    features[100] = features[7_000] = features[29_999] = 3 * features[55]  # as similar as can be
    features[8] = 0.0
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    found = predictions(features)
    among = rng.random(n) < 0.9
    few = np.zeros(n, np.bool_)
    few[rng.permutation(n)[:300]] = True
    asked = [55, *rng.integers(0, n, 8).tolist()]
    for rows, least in ((among, 0.97), (few, 1.0)):
        complete = [most_similar(found, int(found.item_ids[one]), rows).tolist() for one in asked]
        with monkeypatch.context() as patch:
            patch.setattr(similar_items, "MOST_KEPT_ROWS", 1_000)
            patch.setattr(similar_index, "SEARCHED", 6_000)
            indexed = [most_similar(found, int(found.item_ids[one]), rows).tolist() for one in asked]
        shares = [len(set(one) & set(other)) / len(other) for one, other in zip(indexed, complete, strict=True)]
        assert np.mean(shares) >= least and min(shares) > least - 0.1
        for one, row in zip(indexed, asked, strict=True):
            rows_found = (np.array(one) - 5) // 3
            cosines = unit[rows_found] @ unit[row]
            assert len(set(one)) == len(one) and rows[rows_found].all() and (np.diff(cosines) <= 1e-6).all()
        assert all(one[0] == found.item_ids[row] for one, row in zip(indexed, asked, strict=True) if rows[row])
        assert indexed[0][:4] == complete[0][:4]


@pytest.mark.parametrize("n", [1, 499, 500, 501, 32 * 500, 32 * 501 + 17, 40_003])
def test_the_largest_values_are_those_of_a_full_sort(n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    values[: n // 5] = -np.inf
    assert sorted(values[largest(values, 500)].tolist()) == sorted(values.tolist())[-500:]


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
    monkeypatch.setattr(similar_items, "MOST_COMPARED", 40)
    monkeypatch.setattr(similar_items, "MOST_IN_CELLS", 59)
    similar_items._neighborhoods.clear()
    assert neighborhoods(found) is None


@pytest.mark.parametrize("largest", [2_000, 150], ids=["whole cells", "cut cells"])
def test_large_pools_find_near_duplicates_and_outliers_within_cells(largest, monkeypatch):
    rng = np.random.default_rng(2)
    n, groups = 6_000, rng.integers(0, 12, 6_000)
    features = (rng.normal(size=(12, 32))[groups] + 0.5 * rng.normal(size=(n, 32))).astype(np.float32)
    copies = rng.permutation(n)[:90].reshape(45, 2)
    features[copies[:, 1]] = 1.5 * features[copies[:, 0]] + 2e-3 * rng.normal(size=(45, 32))
    alone = np.setdiff1d(np.arange(n), copies)[:6]
    features[alone] = rng.normal(size=(6, 32))
    found = predictions(features)
    monkeypatch.setattr(similar_items, "MOST_COMPARED", 1_000)
    monkeypatch.setattr(similar_items, "MOST_IN_CELL", largest)
    similar_items._neighborhoods.clear()
    near = neighborhoods(found)
    assert near is not None and sorted(near.outliers.tolist()) == sorted(near.duplicates.tolist()) == list(range(n))
    first = near.duplicates[:90].tolist()
    assert len(set(first) & set(copies.ravel().tolist())) >= 86
    places = {row: place for place, row in enumerate(first)}
    together = [abs(places.get(a, -9) - places.get(b, -99)) == 1 for a, b in copies.tolist()]
    assert np.mean(together) > 0.9
    assert set(near.outliers[:6].tolist()) == set(alone.tolist())
