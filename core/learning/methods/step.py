"""The input and output of a training method. A method is one file with one function, `loss(step) -> Losses`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from core.config import TrainingConfig
from core.learning.distributed import World
from core.media.feeds import Feed


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of the pool; each call draws a new augmentation. Returns this process's part (B / processes, C, H, W)."""

    rows: NDArray[np.int64]  # (B,) of the whole batch
    feed: Feed
    rng: np.random.Generator
    world: World

    def clean(self) -> Tensor:
        return self.feed.clean(self.world.part(self.rows))

    def weak(self) -> Tensor:
        return self.feed.weak(*self._drawn())

    def standard(self) -> Tensor:
        return self.feed.standard(*self._drawn())

    def strong(self) -> Tensor:
        return self.feed.strong(*self._drawn())

    def weak_and_strong(self) -> Tensor:
        """The first half of this process's part weakly augmented, the others strongly."""
        rows, draws = self._drawn()
        half = len(rows) // 2
        return torch.cat([self.feed.weak(rows[:half], draws[:half]), self.feed.strong(rows[half:], draws[half:])])

    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """This process's rows and their draws; drawn for the whole batch, so that all processes use the same draws."""
        draws = self.rng.random((len(self.rows), self.feed.n_draws), dtype=np.float32)
        return self.world.part(self.rows), self.world.part(draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The input of one training step."""

    network: Callable[[Tensor], Tensor]  # logits, in training mode
    layers: nn.Module  # the same network, for access to its layers
    labeled: Batch
    targets: Tensor  # (b, n_classes) one-hot, this process's part
    unlabeled: Batch
    config: TrainingConfig
    fraction: float  # of the training that is done, in [0, 1)
    prior: Tensor  # (n_classes,) estimated share of each class in the pool
    state: dict[str, Tensor]  # state of the method between steps; saved in checkpoints
    rng: np.random.Generator
    world: World
    given_targets: Tensor | None = None  # (b_u, n_classes) of the unlabeled batch, this process's part
    given_weights: Tensor | None = None  # (b_u,) of the losses on them

    @property
    def ramped_weight(self) -> float:
        """lambda_u, rising linearly from 0 over the first `ramp` of the training."""
        ramp = self.config.ramp
        return self.config.lambda_u * (min(1.0, self.fraction / ramp) if ramp > 0 else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Scalars on the device."""

    labeled: Tensor
    unlabeled: Tensor  # before its weight
    weight: float
    accuracy: Tensor  # on the labeled batch, as trained
    confidence: Tensor  # mean of the largest pseudo-label probability
    used: Tensor  # share of the unlabeled batch whose pseudo-label is used

    @property
    def total(self) -> Tensor:
        return self.labeled + self.weight * self.unlabeled


Method = Callable[[Step], Losses]


def accuracy_of(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == targets.argmax(1)).float().mean()
