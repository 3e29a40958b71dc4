"""Near-duplicates in a pool, so that a batch does not contain nearly equal items.

Two rows are near-duplicates if their distance is at most `share` times the typical distance between two rows of the
pool (the median over seeded pairs). Rows are projected onto a few orthonormal directions, which never increases a
distance. A tree finds the pairs that are close in the projection, and only their full rows are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from scipy.spatial import cKDTree

DIRECTIONS, SAMPLE, MAX_PAIRS, BLOCK = 8, 4_096, 5_000_000, 65_536


@dataclass(frozen=True, slots=True)
class NearDuplicates:
    """The near-duplicates among the rows of a pool."""

    group: NDArray[np.int64]  # (n,) one number per set of equal rows
    near: csr_matrix  # (g, g) sets whose rows are near-duplicates
    complete: bool  # False: the pool is too dense, and only equal rows were searched for

    def distinct(self, allowed: NDArray[np.bool_], taken: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) a subset of the `allowed` rows (n,) without near-duplicates of each other or of the `taken` rows.

        The subset is maximal: every other allowed row is a near-duplicate of a row in the subset or of a taken row.
        """
        blocked = np.zeros(self.near.shape[0], bool)
        for group in np.unique(self.group[taken]):
            blocked[group] = True
            blocked[self._neighbors(group)] = True
        rows = np.flatnonzero(allowed)
        groups, first = np.unique(self.group[rows], return_index=True)
        kept = np.zeros(len(allowed), bool)
        for group, row in zip(groups, rows[first], strict=True):
            if not blocked[group]:
                kept[row] = True
                blocked[self._neighbors(group)] = True
        return kept

    def _neighbors(self, group: int) -> NDArray[np.int32]:
        return np.asarray(self.near.indices[self.near.indptr[group] : self.near.indptr[group + 1]])


def find_near_duplicates(x: NDArray[np.floating], share: float, seed: int) -> NearDuplicates:
    """The near-duplicates among the rows of x (n, d); with share 0 only equal rows count."""
    equal = _equal_rows(x)
    firsts = np.unique(equal, return_index=True)[1]  # one row per set of equal rows
    none = csr_matrix((len(firsts), len(firsts)), dtype=bool)
    if share <= 0 or len(firsts) < 2 or x.shape[1] == 0:
        return NearDuplicates(equal, none, True)
    draw = np.random.default_rng(seed)
    radius = share * typical_distance(x, draw)
    projected = leading_projection(x, draw)[firsts]
    tree = cKDTree(projected)
    probes = projected[draw.choice(len(firsts), min(len(firsts), 1_000), replace=False)]
    close_by = float(np.mean(tree.query_ball_point(probes, radius, return_length=True))) - 1.0
    if radius <= 0 or close_by * len(firsts) > 2 * MAX_PAIRS:
        return NearDuplicates(equal, none, False)
    pairs = tree.query_pairs(radius, output_type="ndarray")
    blocks = np.array_split(pairs, len(pairs) // BLOCK + 1)
    kept = np.concatenate([block[_within(x, firsts, block, radius)] for block in blocks])
    both = np.concatenate([kept, kept[:, ::-1]])
    near = coo_matrix((np.ones(len(both), bool), (both[:, 0], both[:, 1])), shape=none.shape)
    return NearDuplicates(equal, near.tocsr(), True)


def typical_distance(x: NDArray[np.floating], draw: np.random.Generator) -> float:
    """The median distance between two rows, over seeded pairs."""
    first, second = draw.integers(len(x), size=(2, SAMPLE))
    apart = first != second
    return float(np.median(np.linalg.norm(x[first[apart]] - x[second[apart]], axis=1))) if apart.any() else 0.0


def leading_projection(x: NDArray[np.floating], draw: np.random.Generator) -> NDArray[np.floating]:
    """(n, k) coordinates along orthonormal directions of largest variance in a small sample."""
    rows = x[draw.choice(len(x), min(len(x), 256), replace=False)].astype(np.float64)
    _, _, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    return np.asarray(x @ directions[:DIRECTIONS].T.astype(x.dtype))


def _within(
    x: NDArray[np.floating], firsts: NDArray[np.int64], pairs: NDArray[np.int64], radius: float
) -> NDArray[np.bool_]:
    difference = x[firsts[pairs[:, 0]]] - x[firsts[pairs[:, 1]]]
    return np.asarray(np.linalg.norm(difference, axis=1) <= radius)


def _equal_rows(x: NDArray[np.floating]) -> NDArray[np.int64]:
    """(n,) one number per set of equal rows, found by their bytes in linear time, unlike by sorting whole rows."""
    if x.shape[1] == 0:
        return np.arange(len(x))
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in np.ascontiguousarray(x)], np.int64)
