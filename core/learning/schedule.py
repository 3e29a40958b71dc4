"""The optimizer and its learning rate, the same for every phase of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from core.config import TrainingConfig


def learning_rate_at(step: int, n_steps: int, config: TrainingConfig) -> float:
    """Linear warm-up, then half a cosine to 0."""
    warm = min(1.0, (step + 1) / (config.warmup_steps + 1))
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / n_steps))


def optimizer_of(shares: Mapping[float, Iterable[nn.Parameter]], config: TrainingConfig) -> torch.optim.Optimizer:
    """AdamW for parameters grouped by their factor of the learning rate; biases and the scales of batch normalization
    are not decayed."""
    groups = []
    for share, parameters in shares.items():
        own = list(parameters)
        decayed, free = [p for p in own if p.dim() > 1], [p for p in own if p.dim() <= 1]
        groups += [{"params": decayed, "weight_decay": config.weight_decay, "share": share},
                   {"params": free, "weight_decay": 0.0, "share": share}]  # fmt: skip
    return torch.optim.AdamW(groups, lr=config.learning_rate, foreach=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]
