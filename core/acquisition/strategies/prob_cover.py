"""ProbCover: cover as much of the pool as possible with balls around the picks (Yehuda et al., 2022).

Greedy coverage with a top-hat kernel of radius delta. Labeled items cover their neighborhoods from the start; the score
is the share of items newly covered. delta is the largest radius at which 95 % of the balls are pure. A ball around x is
pure if it contains no item of another k-means cluster, so delta is the 5 % quantile of d_x, the distance from x to the
nearest item of another cluster. There are as many clusters as classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.acquisition.clustering import k_means
from core.acquisition.coverage import covered_by, greedy_cover, top_hat
from core.acquisition.geometry import centered_unit, squared_distances
from core.acquisition.pool_view import (
    candidate_rows,
    draft,
    generator,
    labeled_rows,
    on_device,
    sample,
    sampled_note,
    space,
    unlabeled_rows,
)
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore

PURITY = 0.95


def distance_to_other_cluster(x: Tensor, assigned: Tensor) -> Tensor:
    """(n,) distance to the nearest row of another cluster; infinite if there is only one cluster."""
    parts = []
    for rows, own in zip(x.split(1024), assigned.split(1024), strict=True):
        same = own.unsqueeze(1) == assigned.unsqueeze(0)
        parts.append(torch.where(same, torch.inf, squared_distances(rows, x)).amin(1).sqrt())
    return torch.cat(parts)


def pure_radius(x: Tensor, assigned: Tensor) -> float:
    """The largest radius at which a share PURITY of the balls contains only one cluster."""
    distances = distance_to_other_cluster(x, assigned)
    if not bool(torch.isfinite(distances).any()):
        return float(squared_distances(x, x.mean(0, keepdim=True)).sqrt().median())
    return float(torch.quantile(distances, 1 - PURITY))


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    x = centered_unit(on_device(space(request)))
    rows = candidate_rows(request)
    offered = sample(rows, config.max_pairwise, request, "prob_cover-candidates")
    pool = unlabeled_rows(request)
    evaluated = sample(pool, config.max_pairwise, request, "prob_cover-pool")
    n_clusters = max(2, min(request.n_classes, len(evaluated)))
    E, K = x[on_device(evaluated)], x[on_device(offered)]
    clusters = k_means(E, min(n_clusters, len(E)), generator(request, "prob_cover"))
    radius = pure_radius(E, clusters.assigned)

    def similar(a: Tensor, b: Tensor) -> Tensor:
        return top_hat(a, b, radius)

    covered = covered_by(similar, E, x[on_device(labeled_rows(request))])
    shares = torch.full_like(covered, 1.0 / len(E))
    m = request.batch_size
    covering = greedy_cover(similar(E, K), shares, covered, m, lambda done: report(Progress("select", done, m)))
    notes = sampled_note("Candidates", len(offered), len(rows)) + sampled_note("Coverage", len(evaluated), len(pool))
    if covering.exhausted is not None:
        notes += (f"All items were covered after {covering.exhausted} picks; the remaining picks cover them again.",)
    return draft(request, "prob_cover", offered[covering.positions], covering.gains, notes)
