"""Contrastive pretraining on the pool without labels (SimCLR, Chen et al., 2020).

    z = normalize(g(embed(view))) for two views of each of b items;  s_ij = z_i . z_j / T
    L = mean over the 2 b views i of  -log( exp s_ij / sum over k != i of exp s_ik ),   j the other view of i's item

The loss brings the two views of an item close together. Training then starts from features of the pool instead of from
random weights, which helps when a few labels are not enough to learn features, as for photographs (CIFAR-10 in
docs/reproduction.md).

Details: g is one hidden layer with batch normalization, discarded afterwards; views are the feed's `varied` ones, and
the network's head is not trained. All randomness of step t comes from a generator seeded with (seed, t). Processes that
train together perform the same steps.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from core.config import TrainingConfig
from core.learning.networks.layers import SLOPE, Linear, Network, draw_weights, to_device
from core.learning.sampling import Shuffled
from core.learning.schedule import learning_rate_at, optimizer_of, set_rate
from core.media.feeds import Feed
from core.runtime import Runtime
from core.types import Progress, Report, ignore

TEMPERATURE = 0.2
LEARNING_RATE = 2e-3
HIDDEN, PROJECTED = 256, 64
REPORT_SECONDS = 0.5


def contrastive_loss(projected: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """L of unit vectors (2 b, d): rows i and i + b are the two views of item i."""
    n_items = len(projected) // 2
    itself = torch.eye(2 * n_items, dtype=torch.bool, device=projected.device)
    similarities = (projected @ projected.T / temperature).masked_fill(itself, -torch.inf)
    other = torch.arange(2 * n_items, device=projected.device).roll(n_items)
    return F.cross_entropy(similarities, other)


class Projection(nn.Module):
    """g: (B, width) -> unit vectors (B, 64)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN), Linear(HIDDEN, PROJECTED)

    def forward(self, embedded: Tensor) -> Tensor:
        return F.normalize(self.out(F.leaky_relu(self.norm(self.hidden(embedded)), SLOPE)), dim=1)


class Pretraining:
    """Trains `network` in place; `advance` makes one of `config.pretrain_steps` steps."""

    def __init__(
        self, network: Network, feed: Feed, rows: NDArray[np.int64], config: TrainingConfig, runtime: Runtime
    ) -> None:
        self.network, self.feed = network, feed
        self.config = dataclasses.replace(config, learning_rate=LEARNING_RATE)
        self.size = min(config.pretrain_batch, len(rows))
        projection = Projection(network.width)
        draw_weights(projection, torch.Generator().manual_seed(runtime.seed_for("projection")))
        self.projection = to_device(projection, runtime.device)
        self.optimizer = optimizer_of({1.0: [*network.parameters(), *self.projection.parameters()]}, self.config)
        self.step = 0
        self._rows = Shuffled(rows, runtime.seed_for("contrast order"))
        self._seed = runtime.seed_for("contrast steps")

    def advance(self) -> Tensor:
        """The loss of this step, on the device."""
        rng = np.random.default_rng((self._seed, self.step))
        rows = self._rows.batch(self.step, self.size)
        set_rate(self.optimizer, learning_rate_at(self.step, self.config.pretrain_steps, self.config))
        views = [self.feed.varied(rows, rng.random((self.size, self.feed.n_draws), dtype=np.float32)) for _ in range(2)]
        loss = contrastive_loss(self.projection(self.network.embed(torch.cat(views))))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.detach()


def pretrain(
    network: Network,
    feed: Feed,
    rows: NDArray[np.int64],
    config: TrainingConfig,
    runtime: Runtime,
    report: Report = ignore,
) -> None:
    """All pretraining steps, in place; none when there are no steps or fewer than two items."""
    if len(rows) < 2:
        return
    run, reported = Pretraining(network, feed, rows, config, runtime), 0.0
    while run.step < config.pretrain_steps:
        run.advance()
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(Progress("train", run.step, config.pretrain_steps, "pretraining without labels"))
