"""The greedy 2-approximation of k-center on the last layer (Sener and Savarese, 2018).

Each pick is the candidate farthest from all labeled items and all earlier picks; its score is that distance. If nothing
is labeled, the first pick is the candidate nearest to the mean of the pool. Before the first model, distances are those
between kernel features.
"""

from __future__ import annotations

import torch

from core.acquisition.geometry import distance_with_center, nearest
from core.acquisition.pool_view import candidate_rows, draft, labeled_rows, on_device, space
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    points = space(request)
    rows = candidate_rows(request)
    x = on_device(points[rows])
    centers = labeled_rows(request)
    chosen, scores = [], []
    if len(centers):
        distance, _ = nearest(x, on_device(points[centers]))
    else:
        mean = x.mean(0, keepdim=True)
        distance = -(x - mean).norm(dim=1)
    blocked = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
    for step in range(request.batch_size):
        position = int(torch.where(blocked, -torch.inf, distance).argmax())
        chosen.append(int(rows[position]))
        scores.append(float(distance[position]))
        blocked[position] = True
        first = step == 0 and not len(centers)
        before = torch.full_like(distance, torch.inf) if first else distance
        distance = distance_with_center(x, before, position)
        report(Progress("select", step + 1, request.batch_size))
    if not len(centers):
        scores[0] = max(scores[1:], default=0.0)
    return draft(request, "k_center", chosen, scores)
