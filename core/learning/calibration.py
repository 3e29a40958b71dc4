"""Temperature scaling (Guo et al., 2017): probabilities are softmax(logits / temperature), so the predicted class does
not change.

With at least MIN_LABELS test labels the temperature minimizes their cross-entropy. With fewer, overconfidence cannot be
measured (the model fits its few training labels perfectly), and the temperature is DEFAULT_TEMPERATURE: the typical
fitted value in experiments.laptop_learner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

MIN_LABELS = 30
DEFAULT_TEMPERATURE = 1.5
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.25, 10.0


def mean_cross_entropy(logits: NDArray[np.floating], labels: NDArray[np.int64], temperature: float) -> float:
    """Mean cross-entropy in nats of softmax(logits / temperature), logits (n, C), at labels (n,)."""
    scaled = logits / temperature
    return float(np.mean(logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]))


def fitted_temperature(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """The temperature in [0.25, 10] under which `labels` (n,) are most likely given `logits` (n, C)."""
    wide = np.asarray(logits, np.float64)
    found = minimize_scalar(
        lambda log_t: mean_cross_entropy(wide, labels, float(np.exp(log_t))),
        bounds=(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE)),
        method="bounded",
    )
    return float(np.exp(found.x))
