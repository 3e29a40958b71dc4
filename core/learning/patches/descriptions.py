"""Descriptions of pictures by patches that are frequent in a pool, found without labels (Coates, Lee and Ng, 2011).

    z   = V (c(p) - m),   c(p) = (p - mean of p) / sqrt(variance of p + CONTRAST)
    f_k = max(0, mean_j |z - z_j| - |z - z_k|)
    x   = (sqrt(sum of f over the patches of each quarter) - mean) / deviation,   of the picture and its mirror image

Symbols: p the values of a patch; m, V mean and whitening of c over the pool's patches (ZCA, WHITENING is added to the
variances); z_k the centers of k-means over z, the kinds of patches; f (kinds,); x (4 kinds,) the description of a
picture. Mean and deviation are those of the pool's descriptions.

Departures and details: sums are means over the patches of a quarter. Pictures above LARGEST pixels are reduced to it.
Everything is computed from the rows given to `fit_patches`; test items must not be among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from core.media.inputs import Inputs
from core.runtime import Runtime

SIDE, STRIDE, QUARTERS = 6, 2, 2  # of a patch, between patches; quarters along each side
LARGEST = 32  # pixels of a side
CONTRAST, WHITENING = 0.01, 0.05
SAMPLE_PICTURES, SAMPLE_PATCHES = 1_000, 20_000
TURNS = 8  # of k-means
BLOCK = 64  # pictures
LEAST_DEVIATION = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Patches:
    """The kinds of patches of a pool."""

    mean: Tensor  # m (d,)
    whitening: Tensor  # V (d, d)
    centers: Tensor  # (kinds, d)

    def describe(self, pictures: Tensor) -> Tensor:
        """(B, 4 kinds) of pictures (B, C, H, W) with values in [0, 1]: square roots of sums, not standardized."""
        return (self._sums(pictures) + self._sums(pictures.flip(3))).sqrt()

    def _sums(self, pictures: Tensor) -> Tensor:
        rows, columns = ((side - SIDE) // STRIDE + 1 for side in pictures.shape[2:])
        z = (patches_of(pictures, STRIDE) - self.mean) @ self.whitening
        distances = torch.cdist(z, self.centers, compute_mode="use_mm_for_euclid_dist")
        nearer = (distances.mean(1, keepdim=True) - distances).clamp_min(0)
        maps = nearer.reshape(len(pictures), rows, columns, -1).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(maps, QUARTERS).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptions:
    """Descriptions of some rows of a pool, standardized over these, and of others on the same scale."""

    patches: Patches
    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]
    x: NDArray[np.float32]  # (len(rows), 4 kinds) of the rows they were fitted on

    def of(self, inputs: Inputs, rows: NDArray[np.int64], runtime: Runtime) -> NDArray[np.float32]:
        """(len(rows), 4 kinds) of rows that fit into memory."""
        return (_described(self.patches, inputs, rows, runtime) - self.mean) / self.deviation


def fit_patches(inputs: Inputs, rows: NDArray[np.int64], n_kinds: int, runtime: Runtime) -> Patches:
    """The kinds of patches of pictures at `rows`; there are fewer where the rows have fewer patches."""
    generator = np.random.default_rng(runtime.seed_for("patches"))
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE_PICTURES)).round().astype(np.int64))]
    c = torch.cat([patches_of(block, STRIDE + 1) for block in _pictures(inputs, some, runtime)])
    chosen = generator.permutation(len(c))[:SAMPLE_PATCHES]
    c = c[torch.from_numpy(chosen).to(c.device)]
    mean = c.mean(0)
    covariance = np.cov((c - mean).double().cpu().numpy().T)
    values, vectors = np.linalg.eigh(covariance)
    whitening = (vectors / np.sqrt(np.maximum(values, 0) + WHITENING)) @ vectors.T
    V = torch.from_numpy(whitening.astype(np.float32)).to(c.device)
    z = (c - mean) @ V
    start = generator.permutation(len(z))[: min(n_kinds, len(z))]
    return Patches(mean=mean, whitening=V, centers=k_means(z, z[torch.from_numpy(start).to(z.device)]))


def k_means(z: Tensor, centers: Tensor) -> Tensor:
    """Centers (k, d) after TURNS turns of Lloyd's algorithm on z (n, d); one without items does not move."""
    for _ in range(TURNS):
        nearest = (centers.square().sum(1) - 2 * z @ centers.T).argmin(1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, z)
        counts = torch.bincount(nearest, minlength=len(centers))[:, None]
        centers = torch.where(counts > 0, sums / counts.clamp_min(1), centers)
    return centers


def patches_of(pictures: Tensor, stride: int) -> Tensor:
    """c(p) (patches, d) of all patches of pictures (B, C, H, W), picture by picture and row by row."""
    p = F.unfold(pictures, SIDE, stride=stride).permute(0, 2, 1).flatten(0, 1)
    centered = p - p.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True) + CONTRAST).sqrt()


def describe_pool(inputs: Inputs, rows: NDArray[np.int64], n_kinds: int, runtime: Runtime) -> Descriptions:
    """Patches and descriptions of the pictures at `rows`."""
    patches = fit_patches(inputs, rows, n_kinds, runtime)
    found = _described(patches, inputs, rows, runtime)
    mean, deviation = found.mean(0), np.maximum(found.std(0), LEAST_DEVIATION)
    return Descriptions(patches=patches, mean=mean, deviation=deviation, x=(found - mean) / deviation)


def _described(patches: Patches, inputs: Inputs, rows: NDArray[np.int64], runtime: Runtime) -> NDArray[np.float32]:
    blocks = _pictures(inputs, rows, runtime)
    return np.concatenate([patches.describe(block).cpu().numpy() for block in blocks])


def _pictures(inputs: Inputs, rows: NDArray[np.int64], runtime: Runtime) -> Iterator[Tensor]:
    """Blocks (B, C, H, W) with values in [0, 1], on the device."""
    for start in range(0, len(rows), BLOCK):
        taken = torch.from_numpy(np.ascontiguousarray(inputs.sources.take(rows[start : start + BLOCK])))
        pictures = taken.to(runtime.device).permute(0, 3, 1, 2).float() / 255
        height, width = (min(side, LARGEST) for side in pictures.shape[2:])
        yield F.adaptive_avg_pool2d(pictures, (height, width)) if pictures.shape[2:] != (height, width) else pictures
