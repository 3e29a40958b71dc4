"""Scores of predictions, and the highest-scoring candidates with ties broken at random by the seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from core.acquisition.pool_view import candidate_rows, draft, generator
from core.types import Selection, SelectionRequest


def entropy(P: Tensor) -> Tensor:
    """(n,) -sum_c p log p in nats, with 0 log 0 = 0. P (n, C)."""
    negative: Tensor = torch.special.xlogy(P, P).sum(1)
    return -negative


def margin_uncertainty(P: Tensor) -> Tensor:
    """(n,) 1 - (p_first - p_second), the two most probable classes. With one class: 0."""
    if P.shape[1] < 2:
        return torch.zeros_like(P).sum(1)
    top = P.topk(2, 1).values
    return 1.0 - (top.narrow(1, 0, 1) - top.narrow(1, 1, 1)).squeeze(1)


def take_highest(request: SelectionRequest, strategy: str, scores: Tensor, notes: tuple[str, ...] = ()) -> Selection:
    """The batch of candidates with the highest scores (n,), best first."""
    rows = candidate_rows(request)
    values = scores.cpu().numpy()[rows]
    shuffle = generator(request, f"{strategy}-ties").permutation(len(rows))
    order = shuffle[np.argsort(-values[shuffle], kind="stable")][: request.batch_size]
    return draft(request, strategy, rows[order], values[order], notes)
