"""A small pool in the form of a request: clusters per class, some labeled, views, kernel features."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import SelectionRequest

MakeRequest = Callable[..., SelectionRequest]


def make_request(
    *,
    n: int = 120,
    n_classes: int = 4,
    n_labeled: int = 8,
    batch_size: int = 6,
    seed: int = 0,
    data_seed: int = 0,
    **changes: object,
) -> SelectionRequest:
    draw = np.random.default_rng(data_seed)
    classes = draw.integers(0, n_classes, n)
    centers = 3 * draw.normal(size=(n_classes, 10))
    embeddings = (centers[classes] + draw.normal(size=(n, 10))).astype(np.float32)
    features = np.tanh(embeddings @ draw.normal(size=(10, 24)) / 6).astype(np.float32)
    logits = 2 * np.eye(n_classes)[classes] + draw.normal(size=(n, n_classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labeled = np.zeros(n, bool)
    labeled[draw.choice(n, n_labeled, replace=False)] = True
    probabilities[labeled] = np.eye(n_classes)[classes[labeled]]
    eligible = ~labeled
    eligible[np.flatnonzero(eligible)[:5]] = False  # skipped by people
    noise = np.exp(0.3 * draw.normal(size=(5, n, n_classes)))
    views = probabilities * noise / (probabilities * noise).sum(2, keepdims=True)

    def view_features(row: int) -> np.ndarray:
        return features[row] + 0.05 * np.random.default_rng(row).normal(size=(3, 24)).astype(np.float32)

    fields: dict[str, object] = {
        "item_ids": draw.permutation(1000)[:n].astype(np.int64),
        "labeled": labeled,
        "eligible": eligible,
        "probabilities": probabilities.astype(np.float32),
        "embeddings": embeddings,
        "features": features,
        "batch_size": batch_size,
        "seed": seed,
        "view_features": view_features,
        "view_probabilities": views.astype(np.float32),
    }
    return SelectionRequest(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def request_of() -> MakeRequest:
    return make_request


@pytest.fixture
def cold_request_of() -> MakeRequest:
    def make(**changes: object) -> SelectionRequest:
        n = int(changes.get("n", 120))  # type: ignore[call-overload]
        defaults: dict[str, object] = {
            "n_labeled": 0,
            "has_model": False,
            "embeddings": np.zeros((n, 0), np.float32),
            "view_probabilities": None,
        }
        return make_request(**(defaults | changes))  # type: ignore[arg-type]

    return make
