"""The exponential moving average of the weights, used for prediction instead of the last weights.

    average <- decay_t average + (1 - decay_t) weights,   decay_t = min(decay, (1 + t) / (10 + t)) at t = 0, 1, ...

Departures and details: the decay rises in the first steps, so that the random start has little weight after a short
run; the running statistics of batch normalization are averaged in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def decay_at(step: int, decay: float) -> float:
    return min(decay, (1 + step) / (10 + step))


def averaged_tensors(network: nn.Module) -> list[Tensor]:
    """Parameters and running statistics; counters are left out."""
    return [tensor.detach() for tensor in network.state_dict(keep_vars=True).values() if tensor.is_floating_point()]


@torch.no_grad()
def move_average(average: list[Tensor], current: list[Tensor], decay: float) -> None:
    """Update `average` in place, all tensors in one call."""
    torch._foreach_lerp_(average, current, 1 - decay)
