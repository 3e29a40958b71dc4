"""BADGE: k-means++ sampling on hypothetical gradients of the last layer (Ash et al., 2020).

    g_i = (p_i - e_y) (x) h_i,   |g_i - g_j|^2 = |a_i|^2 |h_i|^2 + |a_j|^2 |h_j|^2 - 2 <a_i, a_j> <h_i, h_j>

with y the most probable class of i, a_i = p_i - e_y (C,) and h_i the embedding (e,). The (C e)-dimensional gradients
are never formed. The first pick has the longest gradient. Each further pick is drawn with probability proportional to
its squared distance to the nearest pick, which is its score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.acquisition.clustering import weighted_draw
from core.acquisition.pool_view import candidate_rows, draft, generator, is_cold, on_device
from core.acquisition.strategies import uniform
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore


def gradient_factors(P: Tensor) -> Tensor:
    """(n, C) a = p - e_y for probabilities P (n, C)."""
    return P.scatter_add(1, P.argmax(1, keepdim=True), -torch.ones_like(P.narrow(1, 0, 1)))


def squared_norms(a: Tensor, h: Tensor) -> Tensor:
    """(n,) |g_i|^2, the squared length of each hypothetical gradient."""
    return (a * a).sum(1) * (h * h).sum(1)


def squared_distances_to(a: Tensor, h: Tensor, norms: Tensor, row: int) -> Tensor:
    """(n,) |g_i - g_row|^2."""
    inner = (a @ a.narrow(0, row, 1).T).squeeze(1) * (h @ h.narrow(0, row, 1).T).squeeze(1)
    return (norms + norms.narrow(0, row, 1) - 2 * inner).clamp_min(0)


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    if is_cold(request):
        return uniform.without_model(request, config, "badge")
    rows = candidate_rows(request)
    a, h = gradient_factors(on_device(request.probabilities[rows])), on_device(request.embeddings[rows])
    norms = squared_norms(a, h)
    draw = generator(request, "badge")
    position = int(norms.argmax())
    positions, scores = [position], [float(norms[position])]
    nearest = squared_distances_to(a, h, norms, position)
    blocked = torch.zeros(len(rows), dtype=torch.bool, device=norms.device)
    blocked[position] = True
    for step in range(1, request.batch_size):
        weights = torch.where(blocked, 0.0, nearest)
        if not bool((weights > 0).any()):
            weights = (~blocked).to(norms.dtype)
        position = weighted_draw(weights, draw.random())
        positions.append(position)
        scores.append(float(nearest[position]))
        blocked[position] = True
        nearest = torch.minimum(nearest, squared_distances_to(a, h, norms, position))
        report(Progress("select", step + 1, request.batch_size))
    return draft(request, "badge", rows[positions], scores)
