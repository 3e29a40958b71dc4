"""Temperature scaling (Guo et al., 2017): probabilities are softmax(logits / temperature), so the guess never changes.

With at least `ENOUGH` held-out labels the temperature minimizes their cross-entropy. Without them nothing measures how
overconfident the model is (it fits its few labels perfectly), so it is taken to be as overconfident as such models
usually are: `USUAL`, the typical fitted value of experiments.laptop_learner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

ENOUGH = 30
USUAL = 1.5
LOWEST, HIGHEST = 0.25, 10.0


def mean_cross_entropy(logits: NDArray[np.floating], labels: NDArray[np.int64], temperature: float) -> float:
    scaled = logits / temperature
    return float(np.mean(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))


def fitted_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The temperature in [0.25, 10] under which `labels` (n,) are most likely given `logits` (n, C)."""
    wide = np.asarray(logits, np.float64)
    found = minimize_scalar(
        lambda log_t: mean_cross_entropy(wide, labels, float(np.exp(log_t))),
        bounds=(np.log(LOWEST), np.log(HIGHEST)),
        method="bounded",
    )
    return float(np.exp(found.x))
