"""Quadrature of a mean over pairs of positions: which offsets represent all of them, and with which weights.

The tangent kernel of a network with global average pooling is the mean of f(p, p + d) over positions p and offsets d.
As a function of the offset, the mean over positions is smooth, except for a peak near zero if the items are similar.
Bayesian quadrature models it as a draw from a Gaussian process with the covariance

    k(d, e) = 10 + M(|d - e|) + 0.3 exp(-(|d| + |e|) / 4) (exp(-|d - e| / 4) + exp(-|d + e| / 4)) / 2
              + 0.01 exp(-|d - e| / 4)

where M is the Matern covariance of smoothness 3/2 and length 1.25 sides. The terms are the level, the smooth part, an
even peak at zero, and rough detail. Until the budget is spent, the offset that reduces the variance of the mean most
for its cost (its number of positions) is added. The weights of the nodes are those of the posterior mean. Often only
one of d and -d is chosen, so exchanging the two items changes an entry within the error of the quadrature. The
covariance and the order of ties were chosen by the largest error on 150 pairs each of clips of Spoken Digit, pictures
of CIFAR-10 and digits of MNIST, 32 x 32: an item with itself, with another item, and with a shifted and noisy copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEVEL, PEAK, DETAIL, LENGTH = 10.0, 0.3, 0.01, 4.0
JITTER = 1e-7
MOST_NODES = 400
TIES = 2  # the seed that orders equally useful offsets, such as d and -d


def nodes(height: int, width: int, share: float) -> tuple[NDArray[np.int64], Values]:
    """Offsets (k, 2) between positions of a map, zero first, and the weights (k,) of their mean values in the mean over
    all pairs of positions. `share` is the part of all pairs that the offsets may cover."""
    offsets = np.stack(np.meshgrid(np.arange(1 - height, height), np.arange(1 - width, width), indexing="ij"), 2)
    area = (height - np.abs(offsets[..., 0])) * (width - np.abs(offsets[..., 1]))
    points, a = offsets.reshape(-1, 2).astype(np.float64), area.ravel() / area.sum()
    smooth_length = 1.25 * max(height, width)
    target = _mean_covariance(offsets, area / area.sum(), smooth_length)
    variance = np.full(len(points), LEVEL + 1.0 + DETAIL + JITTER)
    variance += PEAK * np.exp(-np.hypot(*points.T) / (LENGTH / 2)) * (1 + np.exp(-np.hypot(*points.T) * 2 / LENGTH)) / 2
    factors, rest, chosen, spent = np.zeros((MOST_NODES, len(points))), target.copy(), list[int](), 0.0
    order = 1 + 1e-3 * np.random.default_rng(TIES).random(len(points))
    best = len(points) // 2  # offset zero
    while len(chosen) < MOST_NODES:
        column = _covariance(points, points[best], smooth_length)
        column[best] += JITTER
        known = factors[: len(chosen)]
        column = (column - known[:, best] @ known) / np.sqrt(variance[best])
        rest -= column * (rest[best] / np.sqrt(variance[best]))
        factors[len(chosen)] = column
        variance -= column * column
        chosen.append(best)
        spent += a[best]
        gain = order * rest**2 / np.maximum(variance, 1e-9) / a
        gain[chosen] = 0.0
        gain[spent + a > share] = 0.0
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
    inside = np.stack([_covariance(points[chosen], points[row], smooth_length) for row in chosen])
    weights = np.linalg.solve(inside + JITTER * np.eye(len(chosen)), target[chosen])
    return points[chosen].astype(np.int64), np.asarray(weights, np.float64)


def _covariance(points: Values, point: Values, smooth_length: float) -> Values:
    """(n,) k(d, point) for the offsets d in `points` (n, 2)."""
    between, across = np.hypot(*(points - point).T), np.hypot(*(points + point).T)
    peak = np.exp(-(np.hypot(*points.T) + np.hypot(*point)) / LENGTH)
    even = (np.exp(-between / LENGTH) + np.exp(-across / LENGTH)) / 2
    total = LEVEL + _matern(between, smooth_length) + PEAK * peak * even + DETAIL * np.exp(-between / LENGTH)
    return np.asarray(total)


def _matern(distance: Values, length: float) -> Values:
    scaled = np.sqrt(3.0) * distance / length
    return np.asarray((1 + scaled) * np.exp(-scaled))


def _mean_covariance(offsets: NDArray[np.int64], a: Values, smooth_length: float) -> Values:
    """(n,) covariance of each offset with the mean over all, the sum of k(d, e) a(e) over e. These are convolutions,
    because k is stationary except for the envelope of the peak."""
    reach = [np.arange(2 - 2 * n, 2 * n - 1) for n in ((a.shape[0] + 1) // 2, (a.shape[1] + 1) // 2)]
    distance = np.hypot(*np.meshgrid(*reach, indexing="ij"))
    near = np.exp(-distance / LENGTH)
    envelope = np.exp(-np.hypot(offsets[..., 0], offsets[..., 1]) / LENGTH)

    def convolved(values: Values, kernel: Values) -> Values:
        """(n, m) sums of the kernel times the values (n, m), by Fourier transforms."""
        size = [k + v - 1 for k, v in zip(kernel.shape, values.shape, strict=True)]
        both = np.fft.irfft2(np.fft.rfft2(kernel, size) * np.fft.rfft2(values, size), size)
        return both[values.shape[0] - 1 : kernel.shape[0], values.shape[1] - 1 : kernel.shape[1]]

    total = LEVEL + convolved(a, _matern(distance, smooth_length)) + DETAIL * convolved(a, near)
    total = total + PEAK * envelope * convolved(a * envelope, near)
    return np.asarray(total.ravel() + JITTER * a.ravel())
