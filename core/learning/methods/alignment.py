"""Distribution alignment (Berthelot et al., 2020): pseudo-labels whose average follows the class prior.

    q = normalize(p * prior / average),   average = moving average of the model's p over batches

The prior is uniform unless the labels indicate otherwise: with n_c labels of class c it is the smoothed share
(n_c + 1) / (n + C) when a chi-square test finds equal classes implausible (p < 0.01).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc
from torch import Tensor

from core.learning.distributed import World

IMPLAUSIBLE = 0.01
DECAY = 0.99  # of the moving average, per batch


def class_prior(
    labels: NDArray[np.int64], n_classes: int, align: Literal["auto", "uniform", "off"] = "auto"
) -> NDArray[np.float32]:
    """(n_classes,) class prior estimated from labels (n,); uniform unless they contradict it."""
    uniform = np.full(n_classes, 1 / n_classes, np.float32)
    if align != "auto" or n_classes < 2 or len(labels) < n_classes:
        return uniform
    counts = np.bincount(labels, minlength=n_classes)
    expected = len(labels) / n_classes
    statistic = float(((counts - expected) ** 2).sum()) / expected  # chi-squared with C - 1 degrees
    if chdtrc(n_classes - 1, statistic) >= IMPLAUSIBLE:
        return uniform
    return np.asarray((counts + 1) / (counts.sum() + n_classes), np.float32)


def align(probabilities: Tensor, prior: Tensor, state: dict[str, Tensor], world: World) -> Tensor:
    """(B, C) -> (B, C) aligned; `state["average"]` moves with the whole batch's mean."""
    mean = world.mean(probabilities.mean(0))
    average = state.get("average")
    state["average"] = mean.clone() if average is None else average.lerp(mean, 1 - DECAY)
    aligned = probabilities * (prior / state["average"].clamp_min(1e-6))
    return aligned / aligned.sum(1, keepdim=True)
