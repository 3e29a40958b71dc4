"""Euclidean projection onto the simplex {w >= 0, sum w = total}, in O(n log n) (Duchi et al., 2008).

w_i = max(v_i - tau, 0),   tau = (sum of the rho largest v - total) / rho,
rho = the largest k for which the k-th largest v is above (sum of the k largest - total) / k
"""

from __future__ import annotations

import torch
from torch import Tensor

from core.errors import InvalidInput


def project_to_simplex(values: Tensor, total: float = 1.0) -> Tensor:
    """The nearest point to `values` (n,) with entries >= 0 that sum to `total` > 0."""
    if total <= 0 or values.ndim != 1 or not len(values):
        raise InvalidInput(f"Projection of shape {tuple(values.shape)} onto a simplex of total {total}: need n >= 1.")
    ordered = values.sort(descending=True).values
    excess = ordered.cumsum(0) - total
    counts = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    rho = int(torch.nonzero(ordered > excess / counts).max())
    return (values - excess[rho] / (rho + 1)).clamp_min(0.0)
