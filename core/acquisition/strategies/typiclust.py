"""TypiClust: the most typical item of each cluster that has no label yet (Hacohen et al., 2022).

The pool and the labeled items are clustered into |labeled| + batch clusters (at most 500). Clusters are visited in the
order of their numbers of labeled or chosen items, fewest first, then of their sizes, largest first. Each gives its most
typical candidate:

    typicality(x) = 1 / mean distance to its 20 nearest neighbors in the cluster

which is also the score. Clusters of fewer than five items are visited last. Before the first model, distances are those
between kernel features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from core.acquisition.clustering import k_means
from core.acquisition.geometry import mean_neighbor_distance
from core.acquisition.pool_view import candidate_rows, draft, generator, on_device, sample, sampled_note, space
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore

NEIGHBORS, MAX_CLUSTERS, SMALL = 20, 500, 5


def typicality(x: Tensor, among: Tensor) -> Tensor:
    """(n,) the inverse of the mean distance to the nearest rows of `among`; bounded where rows coincide."""
    return 1.0 / (mean_neighbor_distance(x, among, NEIGHBORS) + 1e-5)


def next_cluster(sizes: NDArray[np.int64], held: NDArray[np.int64], left: NDArray[np.int64]) -> int:
    """The cluster with candidates `left` that has the fewest labeled or chosen items; the largest of these."""
    order = np.lexsort((-sizes, held, sizes < SMALL, left == 0))
    return int(order[0])


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    points = space(request)
    x = on_device(points)
    k = min(int(request.labeled.sum()) + request.batch_size, MAX_CLUSTERS, len(points))
    clusters = k_means(x, k, generator(request, "typiclust"))
    assigned = clusters.assigned.cpu().numpy()
    sizes = np.bincount(assigned, minlength=k)
    held = np.bincount(assigned[request.labeled], minlength=k)
    open_rows = np.zeros(len(points), bool)
    open_rows[candidate_rows(request)] = True
    left = np.bincount(assigned[open_rows], minlength=k)
    chosen: list[int] = []
    scores: list[float] = []
    largest = 0
    known: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    for step in range(request.batch_size):
        cluster = next_cluster(sizes, held, left)
        if cluster not in known:
            members = np.flatnonzero(assigned == cluster)
            among = sample(members, config.max_pairwise // 2, request, f"typiclust-{cluster}")
            largest = max(largest, len(members))
            inside = members[open_rows[members]]
            known[cluster] = inside, typicality(x[on_device(inside)], x[on_device(among)]).cpu().numpy()
        inside, values = known[cluster]
        best = int(np.argmax(np.where(open_rows[inside], values, -np.inf)))
        chosen.append(int(inside[best]))
        scores.append(float(values[best]))
        open_rows[inside[best]] = False
        held[cluster] += 1
        left[cluster] -= 1
        report(Progress("select", step + 1, request.batch_size))
    notes = sampled_note("Neighbors within the largest cluster", min(largest, config.max_pairwise // 2), largest)
    return draft(request, "typiclust", chosen, scores, notes)
