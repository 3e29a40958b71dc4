"""The first batch of a round with an encoder: the space is chosen by its graph; each cluster gives a typical item."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from core.acquisition.first_batch import cluster_features, first_batch
from core.acquisition.registry import select
from core.config import HeadConfig, MediaConfig, SelectionConfig
from core.learning.head import prepare
from core.rounds.candidates import picture_vectors
from core.rows import MemoryRowCache
from core.similarity.gradient_histograms import gradient_histograms
from core.types import ignore

HEAD = SelectionConfig(proxy="head", uncertainty_power=1.0, near_duplicate=0.0)
N, C = 160, 4


def blobs(spread: float = 0.4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(N, 12) rows around four centers, and the center of each."""
    draw = np.random.default_rng(seed)
    classes = np.arange(N) % C
    return (3 * np.eye(C, 12)[classes] + spread * draw.normal(size=(N, 12))).astype(np.float32), classes


def noise() -> np.ndarray:
    return np.random.default_rng(9).normal(size=(N, 12)).astype(np.float32)


def test_clusteredness_is_the_mean_of_the_largest_eigenvalues_of_the_graph():
    for vectors in (blobs()[0], noise()):
        S = prepare(vectors, C, HeadConfig()).affinity.toarray()
        features, found = cluster_features(vectors, C)
        assert found == pytest.approx(np.linalg.eigvalsh(S)[-C:].mean(), abs=1e-6)
        np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, rtol=1e-5)
    assert cluster_features(blobs()[0], C)[1] > cluster_features(noise(), C)[1] + 0.05


def test_the_more_clustered_space_is_used_and_every_cluster_gives_an_item():
    vectors, classes = blobs()
    for spaces, expected in (([vectors, noise()], 0), ([noise(), vectors], 1), ([vectors, vectors], 0)):
        found = first_batch(spaces, C, C, np.ones(N, bool))
        assert found.space == expected
        assert sorted(classes[found.rows]) == list(range(C))


def test_picks_are_distinct_candidates_and_the_shares_are_those_of_the_clusters():
    vectors, _ = blobs(spread=1.0)
    candidates = np.arange(N) % 3 == 0
    found = first_batch([vectors], C, 12, candidates)
    assert len(set(found.rows.tolist())) == 12 and candidates[found.rows].all()
    assert found.shares.sum() == pytest.approx(1.0)
    assert (np.diff(found.shares) <= 0).all()
    every = first_batch([vectors], C, int(candidates.sum()), candidates)
    assert sorted(every.rows) == np.flatnonzero(candidates).tolist()


def test_a_pick_is_nearer_to_its_center_than_most_items_of_the_cluster():
    vectors, classes = blobs()
    centers = np.stack([vectors[classes == position].mean(0) for position in range(C)])
    distance = np.linalg.norm(vectors - centers[classes], axis=1)
    for row in first_batch([vectors], C, C, np.ones(N, bool)).rows:
        assert distance[row] < np.quantile(distance[classes == classes[row]], 0.25)


def test_bico_reads_pictures_before_the_first_label_and_says_so(cold_request_of):
    vectors, classes = blobs()
    asked: list[int] = []

    def pictures(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return vectors[rows]

    request = cold_request_of(
        n=N, n_classes=C, batch_size=C, embeddings=noise(), features=noise(), eligible=np.ones(N, bool),
        picture_vectors=pictures,
    )  # fmt: skip
    found = select(request, HEAD)
    rows = [request.item_ids.tolist().index(one) for one in found.item_ids]
    assert sorted(classes[rows]) == list(range(C))
    assert found.notes[0].endswith("a typical item from each of 4 clusters of the shapes in the pictures.")
    assert asked == [N]
    by_encoder = select(cold_request_of(batch_size=C), HEAD)
    assert by_encoder.notes[0].endswith("clusters of the encoder's features.")


def test_pictures_of_candidates_are_those_of_a_network_from_scratch():
    draw = np.random.default_rng(0)
    pixels = {name: draw.integers(0, 256, (8, 8, 3), np.uint8) for name in "abcd"}

    def read(name: str) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels[name]).save(file, "PNG")
        return file.getvalue()

    context = SimpleNamespace(
        snapshot=SimpleNamespace(hashes=tuple("abcd")), read=read, cache=MemoryRowCache(), report=ignore,
        config=SimpleNamespace(media=MediaConfig(image_size=8)),
    )  # fmt: skip
    found = picture_vectors(context, np.array([0, 2, 3]))(np.array([1, 2]))
    raw = np.stack([pixels[name] for name in "cd"]) / 255.0
    mean, scale = raw.mean((0, 1, 2)).round(2), raw.std((0, 1, 2)).round(2)
    np.testing.assert_allclose(found, gradient_histograms((raw - mean) / scale), atol=1e-3)
