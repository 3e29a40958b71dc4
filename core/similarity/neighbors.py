"""Exact nearest neighbors by blocks, and the fuzzy neighbor graph of UMAP.

Weights   v_ij = exp(-max(0, d_ij - rho_i) / sigma_i),   w = v + v^T - v * v^T      (McInnes et al., 2018)
rho_i     distance to the nearest other point;   sigma_i   solves  sum_j v_ij = log2(k)  over the k neighbors

umap-learn computes the same weights in functions that are compiled in every process (about six seconds of CPU time).
Tests compare this numpy implementation with it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix

from core.types import Progress, Report, ignore

BLOCK = 1024
HALVINGS = 64
MIN_SIGMA = 1e-3  # sigma is at least this share of the mean distance


def nearest(
    queries: NDArray[np.float32], among: NDArray[np.float32], k: int, report: Report = ignore
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Exact Euclidean neighbors, nearest first: rows of `among` (m, k) and distances (m, k), block by block."""
    base = torch.from_numpy(np.ascontiguousarray(among, np.float32))
    center = base.mean(0)
    base = base - center  # |x - y|^2 = |x|^2 + |y|^2 - 2xy loses digits far from the origin
    squares = (base * base).sum(1)
    indices = np.empty((len(queries), k), np.int64)
    distances = np.empty((len(queries), k), np.float32)
    for start in range(0, len(queries), BLOCK):
        block = torch.from_numpy(np.array(queries[start : start + BLOCK], np.float32)) - center
        gaps = torch.addmm(squares[None, :] + (block * block).sum(1, keepdim=True), block, base.T, alpha=-2.0)
        found = torch.topk(gaps, k, dim=1, largest=False, sorted=True)
        indices[start : start + BLOCK] = found.indices.numpy()
        distances[start : start + BLOCK] = found.values.clamp_min(0).sqrt().numpy()
        report(Progress("map", min(start + BLOCK, len(queries)), len(queries), "finding neighbors"))
    return indices, distances


def neighbor_graph(indices: NDArray[np.int64], distances: NDArray[np.float32]) -> coo_matrix:
    """(n, n) symmetric weights in (0, 1] from each row's k nearest rows (itself included) and their distances."""
    n, k = indices.shape
    rho, sigma = _local_scales(np.asarray(distances, np.float64))
    v = np.exp(-np.maximum(distances - rho[:, None], 0.0) / sigma[:, None])  # (n, k)
    v[indices == np.arange(n)[:, None]] = 0.0
    one_way = csr_matrix((v.ravel(), (np.repeat(np.arange(n), k), indices.ravel())), shape=(n, n))
    one_way.sum_duplicates()
    both = one_way + one_way.T - one_way.multiply(one_way.T)
    graph = coo_matrix(both)
    graph.eliminate_zeros()
    return graph


def _local_scales(d: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """rho (n,) and sigma (n,); sigma by doubling, then halving, for all rows at once."""
    positive = np.where(d > 0, d, np.inf)
    rho = positive.min(1)
    rho[~np.isfinite(rho)] = 0.0
    gaps = np.maximum(d[:, 1:] - rho[:, None], 0.0)
    target = np.log2(d.shape[1])
    low, high, sigma = np.zeros(len(d)), np.full(len(d), np.inf), np.ones(len(d))
    for _ in range(HALVINGS):
        too_wide = np.exp(-gaps / sigma[:, None]).sum(1) > target
        high = np.where(too_wide, sigma, high)
        low = np.where(too_wide, low, sigma)
        sigma = np.where(np.isfinite(high), (low + high) / 2, sigma * 2)
    floor = MIN_SIGMA * np.where(rho > 0, d.mean(1), d.mean())
    return rho, np.maximum(sigma, np.maximum(floor, 1e-12))
