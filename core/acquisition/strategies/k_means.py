"""The candidates nearest to the centers of a k-means clustering with as many clusters as picks.

Picks are in the order of cluster size, largest first; a pick's score is its cluster's share of the candidates. Before
the first model, kernel features are clustered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.acquisition.clustering import Clusters, k_means
from core.acquisition.geometry import squared_distances
from core.acquisition.pool_view import candidate_rows, draft, generator, on_device, space
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore


def distinct_nearest(x: Tensor, clusters: Clusters, order: Tensor) -> list[int]:
    """For each cluster in `order`, the row of x nearest to its center that is not selected yet."""
    taken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    positions = []
    for center in clusters.centers[order].split(1):
        distance = squared_distances(x, center).squeeze(1)
        position = int(torch.where(taken, torch.inf, distance).argmin())
        positions.append(position)
        taken[position] = True
    return positions


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    rows = candidate_rows(request)
    x = on_device(space(request)[rows])
    clusters = k_means(x, request.batch_size, generator(request, "k_means"))
    sizes = torch.bincount(clusters.assigned, minlength=request.batch_size)
    order = torch.argsort(sizes, descending=True, stable=True)
    notes = () if clusters.converged else ("k-means stopped before it converged.",)
    positions = distinct_nearest(x, clusters, order)
    return draft(request, "k_means", rows[positions], (sizes[order] / len(rows)).tolist(), notes)
