"""Estimates how many more labels an accuracy takes: a power law fitted to the measured errors, with its uncertainty.

Model        error(labels) = exp(a) labels^-b, fitted by weighted least squares to the logarithm of the measured error
             rates; the weights are the inverse variances of the logarithms (delta method).
Uncertainty  the fit is repeated on resampled test items (bootstrap). All rounds are measured on the same items, so the
             items are resampled together for all rounds. The interval covers the uncertainty of the sample of test
             items. It does not cover deviations from a power law: learning curves often flatten, so the lower end is
             more reliable than the upper end.
Unbounded    there is no upper end if more than a tenth of the fits do not reach the target within HORIZON times the
             present labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST_ROUNDS = 3  # rounds with different numbers of labels
FEWEST_ITEMS = 30
HORIZON = 20.0
DRAWS = 400
LOW, HIGH = 0.1, 0.9  # an 80 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The number of labels needed in addition to those of the newest round; `low` to `high` is an 80 % interval."""

    target: float
    labels: int  # labels of the newest round
    more: int | None  # None: the fitted curve does not reach the target
    low: int | None
    high: int | None  # None: no upper end
    reached: bool = False  # the newest round has reached the target


def forecast(
    labels: NDArray[np.int64],
    correct: NDArray[np.bool_],
    target: float,
    seed: int = 0,
    groups: NDArray[np.int64] | None = None,
) -> Forecast | None:
    """Estimate the labels for the accuracy `target` from `correct` (items, rounds) at `labels` (rounds,).

    With `groups` (items,), whole groups are resampled instead of items. None if there are too few rounds or items.
    """
    n_items = correct.shape[0]
    if len(np.unique(labels[labels > 0])) < FEWEST_ROUNDS or n_items < FEWEST_ITEMS or not 0 < target < 1:
        return None
    now, usable = int(labels[-1]), labels > 0
    labels, correct = labels[usable], correct[:, usable]
    if correct[:, -1].mean() >= target:
        return Forecast(target=target, labels=now, more=0, low=0, high=0, reached=True)
    resampled = _resampled_errors(correct, groups, np.random.default_rng(seed))
    errors = np.concatenate([(~correct).mean(0)[None], resampled])  # the first row is that of all items
    found = np.maximum(_labels_at(labels, errors, n_items, 1 - target) - now, 0)
    low, high = np.quantile(found[1:], [LOW, HIGH], method="higher")
    return Forecast(
        target=target,
        labels=now,
        more=_rounded(found[0]),
        low=_rounded(low),
        high=_rounded(high) if high < HORIZON * now else None,
    )


def _resampled_errors(
    correct: NDArray[np.bool_], groups: NDArray[np.int64] | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(DRAWS, rounds) error rates of bootstrap samples of the items or of their groups."""
    n_items = len(correct)
    if groups is None:
        picks = rng.integers(0, n_items, (DRAWS, n_items))
        errors: NDArray[np.float64] = 1 - correct[picks].mean(1)
        return errors
    group = np.unique(groups, return_inverse=True)[1]
    n_groups = int(group.max()) + 1
    times = rng.multinomial(n_groups, np.full(n_groups, 1 / n_groups), DRAWS)[:, group]  # (DRAWS, items)
    found: NDArray[np.float64] = times @ (~correct) / times.sum(1, keepdims=True)
    return found


def _labels_at(
    labels: NDArray[np.int64], errors: NDArray[np.float64], n_items: int, wanted: float
) -> NDArray[np.float64]:
    """(draws,) the number of labels at which each fitted curve has the error `wanted`; infinity if it never does."""
    smoothed = (errors * n_items + 0.5) / (n_items + 1)  # avoids the logarithm of 0
    weights = smoothed * n_items / (1 - smoothed)  # 1 / var(log error)
    x, y = np.log(labels.astype(np.float64)), np.log(smoothed)
    total = weights.sum(1, keepdims=True)
    middle_x, middle_y = (weights * x).sum(1, keepdims=True) / total, (weights * y).sum(1, keepdims=True) / total
    slope = (weights * (x - middle_x) * (y - middle_y)).sum(1) / (weights * (x - middle_x) ** 2).sum(1)
    with np.errstate(divide="ignore", over="ignore"):
        at = np.exp((np.log(wanted) - middle_y[:, 0]) / slope + middle_x[:, 0])
    return np.where(slope < -1e-9, at, np.inf)


def _rounded(value: float) -> int | None:
    """Round to two significant digits, because the estimate is not more exact than that."""
    if not np.isfinite(value) or value > 1e9:
        return None
    digits = 10 ** max(0, len(str(int(value))) - 2)
    return int(round(value / digits) * digits)
