"""The live head gives the predictions of a round's head on the same labels."""

from __future__ import annotations

import numpy as np
import pytest

from app.live.head import FROZEN, LiveHead
from core.config import HeadConfig
from core.learning.head import fit_head, prepare
from core.types import UNLABELED

N_CLASSES, N = 6, 480
CLASSES = np.arange(N) % N_CLASSES


def encoded(seed: int = 0) -> np.ndarray:
    """Overlapping clusters in 40 dimensions."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(N_CLASSES, 40))
    return (centers[CLASSES] + 1.1 * rng.normal(size=(N, 40))).astype(np.float32)


def labels_of(rows: list[int]) -> np.ndarray:
    found = np.full(N, UNLABELED)
    found[rows] = CLASSES[rows]
    return found


def rows_of(*counts: int) -> list[int]:
    """The first items of each class: `counts[c]` of class c."""
    return [c + N_CLASSES * k for c, count in enumerate(counts) for k in range(count)]


class Round:
    """A finished round with an encoder on some labels, and the live head that follows it."""

    def __init__(self, rows: list[int], temperature: float = 1.0) -> None:
        self.features = encoded()
        self.pool = prepare(self.features, N_CLASSES, HeadConfig())
        logits = fit_head(self.features, labels_of(rows), N_CLASSES, prepared=self.pool).logits(self.features)
        shares = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
        self.stored = (shares / shares.sum(1, keepdims=True)).astype(np.float32)
        embeddings = self.pool.z.astype(np.float32)
        self.live = LiveHead(embeddings, self.stored, labels_of(rows), FROZEN, temperature)

    def next_round(self, rows: list[int]) -> np.ndarray:
        head = fit_head(self.features, labels_of(rows), N_CLASSES, prepared=self.pool)
        return np.asarray(head.probabilities(self.features).argmax(1))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_without_new_labels_the_predictions_are_those_of_the_round(temperature):
    rows = rows_of(2, 1, 0, 2, 1, 0)
    made = Round(rows, temperature)
    np.testing.assert_allclose(made.live.predict(labels_of(rows)).probabilities, made.stored, atol=1e-5)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rows_of(2, 2, 2, 2, 0, 0), rows_of(2, 2, 2, 2, 2, 2)),  # two classes had no label in the round
        (rows_of(3, 0, 0, 0, 0, 0), rows_of(3, 2, 2, 2, 2, 2)),  # the round had one class
        (rows_of(1, 1, 1, 1, 1, 1), rows_of(3, 3, 3, 3, 3, 3)),
    ],
    ids=["new classes", "one class", "more labels"],
)
def test_new_labels_give_the_predictions_of_the_next_round(before, after):
    made = Round(before)
    predicted = made.live.predict(labels_of(after)).probabilities.argmax(1)
    open_ = labels_of(after) == UNLABELED
    right, right_of_round = ((one == CLASSES)[open_].mean() for one in (predicted, made.next_round(after)))
    assert right_of_round > 0.85, "the clusters are easy enough to be learned"
    assert right > right_of_round - 0.03
    assert (predicted == made.next_round(after))[open_].mean() > 0.9


def test_a_calibrated_round_gives_new_labels_the_same_weight():
    rows, more = rows_of(2, 2, 2, 2, 2, 2), rows_of(4, 4, 4, 4, 4, 4)
    plain, calibrated = (Round(rows, t).live.predict(labels_of(more)).probabilities for t in (1.0, 2.0))
    assert (plain.argmax(1) == calibrated.argmax(1)).mean() > 0.98
    assert calibrated.max(1).mean() < plain.max(1).mean()
