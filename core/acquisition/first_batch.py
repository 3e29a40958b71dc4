"""The first batch of a round with an encoder, before any label: one typical item from each cluster of the pool.

1. Space. Each space of the items (the encoder's features; gradient histograms of pictures) gets a neighbor graph as
   in `core.learning.head`. The one whose graph is more clustered is used:

       clusteredness = mean of the C largest eigenvalues of S,   S = D^-1/2 A D^-1/2

   It is 1 if the graph falls into C parts without edges between them. The features of an encoder that was trained on
   photographs are poor for handwriting, where neighbors in shape have the same class more often. For photographs it is
   the other way round.
2. Features: the head's space joined with FEATURES diffusion features of the graph, each of length 1.
3. Clusters: k-means that starts from the rows of a Bayesian V-optimal design (`core.coresets.design`), not at random.
4. Picks: the row nearest to the center of each cluster, the largest cluster first.

Symbols: A edge weights (n, n), D their row sums, C the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from core.acquisition.clustering import lloyd
from core.acquisition.geometry import unit_rows
from core.config import HeadConfig
from core.coresets import design
from core.learning.head import prepare
from core.similarity.diffusion import leading_eigenpairs, resolvent_of
from core.types import Report, ignore

FEATURES, DAMPING = 40, 0.99  # of the diffusion features
PRIOR = design.Prior(penalty=1.0, noise=0.01)

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """The chosen rows in order, the share of the pool in the cluster of each, and the space that was used."""

    rows: NDArray[np.int64]  # (m,)
    shares: NDArray[np.float64]  # (m,)
    space: int


def cluster_features(vectors: Vectors, n_classes: int, report: Report = ignore) -> tuple[Vectors, float]:
    """(n, q) features of vectors (n, d), rows of length 1, and the clusteredness of their neighbor graph."""
    pool = prepare(vectors, n_classes, HeadConfig())
    assert pool.affinity is not None
    n_leading = max(n_classes, 2)
    values, U = leading_eigenpairs(pool.affinity, max(FEATURES, n_leading), report)
    phi = resolvent_of(values[-FEATURES:], U[:, -FEATURES:], DAMPING)
    joined = np.concatenate([unit_rows(pool.z), phi], 1) * np.float32(0.5**0.5)
    return joined, float(values[-n_leading:].mean())


def first_batch(
    spaces: Sequence[Vectors], n_classes: int, m: int, candidates: NDArray[np.bool_], report: Report = ignore
) -> FirstBatch:
    """m of the `candidates` (n,), by the steps in the module's docstring. `spaces` are vectors (n, d) of the items; the
    first one is used if two are equally clustered."""
    found = [cluster_features(vectors, n_classes, report) for vectors in spaces]
    best = int(np.argmax([clusteredness for _, clusteredness in found]))
    Z = torch.as_tensor(found[best][0])
    starts = design.greedy(Z, m, PRIOR, candidates=candidates, report=report).rows
    clusters = lloyd(Z, Z[torch.as_tensor(starts)])
    nearness = (Z @ clusters.centers.T).numpy()  # (n, m)
    assigned, open_rows = clusters.assigned.numpy(), candidates.copy()
    sizes = np.bincount(assigned, minlength=m)
    order = np.argsort(-sizes, kind="stable")
    rows = []
    for cluster in order:
        inside = open_rows & (assigned == cluster)
        allowed = inside if inside.any() else open_rows
        rows.append(int(np.where(allowed, nearness[:, cluster], -np.inf).argmax()))
        open_rows[rows[-1]] = False
    return FirstBatch(np.array(rows, np.int64), sizes[order] / len(Z), best)
