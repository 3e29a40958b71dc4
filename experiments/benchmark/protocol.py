"""One trial: first labels that all strategies share; then repeatedly a head fitted on all labels, a batch, its labels.

The accuracy is that of the fitted head on test items. They are used for nothing else: not for the principal
components, the neighbor graph, or the unlabeled items of the fit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.acquisition import registry
from core.acquisition.strategies.bico import GRAPH_FEATURES
from core.config import HeadConfig, SelectionConfig
from core.learning.head import SPREAD, Head, Prepared, fit_head, prepare
from core.similarity.diffusion import resolvent_features
from core.types import UNLABELED, SelectionRequest
from experiments.benchmark.sets import FeatureSet

HEAD = HeadConfig()
SELECTION = SelectionConfig(proxy="head", uncertainty_power=1.0)


@dataclass(frozen=True)
class Pool:
    """A set with the values that all trials on it share."""

    data: FeatureSet
    prepared: Prepared
    spread: NDArray[np.float32]  # (n, q) diffusion features

    @classmethod
    def of(cls, data: FeatureSet) -> Pool:
        prepared = prepare(data.features, data.n_classes, HEAD)
        return cls(data, prepared, resolvent_features(prepared.affinity, GRAPH_FEATURES, SPREAD))

    def fit(self, labels: NDArray[np.int64]) -> Head:
        return fit_head(self.data.features, labels, self.data.n_classes, HEAD, self.prepared)

    def accuracy(self, head: Head) -> float:
        predicted = head.probabilities(self.data.test_features).argmax(1)
        return float((predicted == self.data.test_classes).mean())

    def ceiling(self) -> float:
        """The accuracy of the head with all labels of the pool."""
        return self.accuracy(self.fit(self.data.classes))


def first_labels(classes: NDArray[np.int64], n_labels: int, seed: int) -> NDArray[np.int64]:
    """Rows of one random item per class, and of random other items up to `n_labels`."""
    rng = np.random.default_rng((seed, 1))
    rows = [int(rng.choice(np.flatnonzero(classes == position))) for position in range(int(classes.max()) + 1)]
    rest = rng.permutation(np.setdiff1d(np.arange(len(classes)), rows))
    return np.array([*rows, *rest[: max(0, n_labels - len(rows))]])


def request_of(pool: Pool, head: Head, labels: NDArray[np.int64], batch_size: int, seed: int) -> SelectionRequest:
    labeled = labels != UNLABELED
    probabilities = head.probabilities(pool.data.features)
    probabilities[labeled] = np.eye(pool.data.n_classes, dtype=np.float32)[labels[labeled]]
    z = pool.prepared.z.astype(np.float32)
    return SelectionRequest(
        item_ids=np.arange(len(labels)),
        labeled=labeled,
        eligible=~labeled,
        probabilities=probabilities,
        embeddings=z,
        features=z,
        batch_size=batch_size,
        seed=seed,
        similarity_features=lambda: pool.spread,
    )


def run_trial(pool: Pool, strategy: str, seed: int, counts: tuple[int, ...]) -> dict[str, list[float]]:
    """The accuracy at each number of labels in `counts`, and the CPU seconds of each selection and fit."""
    classes = pool.data.classes
    labels = np.full(len(classes), UNLABELED)
    first = first_labels(classes, counts[0], seed)
    labels[first] = classes[first]
    accuracies: list[float] = []
    select_seconds: list[float] = []
    fit_seconds: list[float] = []
    config = SelectionConfig(strategy=strategy, proxy=SELECTION.proxy, uncertainty_power=SELECTION.uncertainty_power)
    for step, count in enumerate(counts):
        began = time.process_time()
        head = pool.fit(labels)
        fit_seconds.append(time.process_time() - began)
        accuracies.append(pool.accuracy(head))
        if step + 1 == len(counts):
            break
        began = time.process_time()
        request = request_of(pool, head, labels, counts[step + 1] - count, seed=1_000 * seed + step)
        picked = registry.select(request, config, explain=False).item_ids
        select_seconds.append(time.process_time() - began)
        labels[picked] = classes[picked]
    return {"accuracy": accuracies, "select_seconds": select_seconds, "fit_seconds": fit_seconds}
