"""Several dense networks that learn the same task at the same time, each with its own weights, rows and memory.

The networks share only the calls: in a step of one such network, calls take more time than arithmetic. The gradient of
the sum of the losses in the weights of a network is that of its own loss, and Adam is elementwise. Every network
therefore learns as in a separate training (`core.coresets.library.replay.learn_task`), up to rounding and the draws of
dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from core.coresets.library.replay import ReplayConfig, ReplayMemory, learn_task
from experiments.replay.digit_networks import Dense, dropped


@dataclass
class Learner:
    """A network with the memory that it replays with the factor `beta`."""

    network: nn.Module
    memory: ReplayMemory
    beta: float
    generator: torch.Generator  # of the order of rows


def learner(make: type[nn.Module], capacity: int, beta: float, seed: int) -> Learner:
    torch.manual_seed(seed)
    return Learner(make(), ReplayMemory(capacity), beta, torch.Generator().manual_seed(seed))


class DenseStack:
    """Networks of linear layers with ReLU and dropout in between; (k, b, d) -> (k, b, C)."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self.layers = [[part for part in one.modules() if isinstance(part, nn.Linear)] for one in networks]
        self.drop = [part.p for part in networks[0].modules() if isinstance(part, nn.Dropout)]
        with torch.no_grad():
            self.weights = [torch.stack([one.weight.T for one in level]) for level in zip(*self.layers, strict=True)]
            self.biases = [torch.stack([one.bias[None] for one in level]) for level in zip(*self.layers, strict=True)]
        self.parameters = [part.requires_grad_() for part in (*self.weights, *self.biases)]

    def __call__(self, x: Tensor) -> Tensor:
        for level, p in enumerate(self.drop):
            x = dropped(torch.baddbmm(self.biases[level], x, self.weights[level]).relu_(), p)
        return torch.baddbmm(self.biases[-1], x, self.weights[-1])

    def give_back(self) -> None:
        """Copy the weights back into the networks."""
        with torch.no_grad():
            for position, layers in enumerate(self.layers):
                for level, own in enumerate(layers):
                    own.weight.copy_(self.weights[level][position].T)
                    own.bias.copy_(self.biases[level][position, 0])

    def cosines(self, x: Tensor, labels: Tensor) -> Tensor:
        """(k, b, b) cosines of the loss gradients of rows x (k, b, d), without dropout.

        The gradient of a layer is the product of its input and its error, so inner products need no gradient.
        """
        inputs = [x]
        with torch.no_grad():
            for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
                inputs.append(torch.baddbmm(bias, inputs[-1], weight).relu_())
            outputs = torch.baddbmm(self.biases[-1], inputs[-1], self.weights[-1])
            error = outputs.softmax(2) - one_hot(labels, outputs.shape[2])
            products = torch.zeros(())
            for level in reversed(range(len(inputs))):
                own = inputs[level]
                products = products + (error @ error.mT) * (own @ own.mT + 1)
                error = (error @ self.weights[level].mT) * (own > 0)
            norms = products.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().clamp_min(1e-12)
        return products / norms[:, :, None] / norms[:, None, :]


def learn_together(learners: Sequence[Learner], inputs: Tensor, labels: Tensor, config: ReplayConfig) -> None:
    """Train every learner's network in place; `config.beta` is replaced by their own. All memories have one size."""
    if not all(isinstance(one.network, Dense) for one in learners):
        for one in learners:
            own = ReplayConfig(
                beta=one.beta, epochs=config.epochs, batch_size=config.batch_size, learning_rate=config.learning_rate
            )
            learn_task(one.network, (inputs, labels), one.memory, own, generator=one.generator)
        return
    stack, n, k = DenseStack([one.network for one in learners]), len(labels), len(learners)
    optimizer = torch.optim.Adam(stack.parameters, lr=config.learning_rate, fused=True)
    held_x, held_y, shares = _held(learners, inputs[0].numel())
    x, y = torch.cat([inputs.flatten(1), held_x]), torch.cat([labels, held_y])
    held = n + torch.arange(len(held_y)).view(k, -1)
    for _ in range(config.epochs):
        orders = torch.stack([torch.randperm(n, generator=one.generator) for one in learners])
        for own in orders.split(config.batch_size, 1):
            rows, size = torch.cat([own, held], 1), own.shape[1]
            weights = torch.cat([torch.full((k, size), 1 / size), shares], 1)
            found = cross_entropy(stack(x[rows]).flatten(0, 1), y[rows].flatten(), reduction="none")
            optimizer.zero_grad()
            (found * weights.flatten()).sum().backward()
            optimizer.step()
    stack.give_back()
    for one in learners:
        one.network.eval()


def _held(learners: Sequence[Learner], n_inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and labels of all memories, one after the other, and their factors in the loss (k, m)."""
    if not learners[0].memory.slots:
        return torch.zeros(0, n_inputs), torch.zeros(0, dtype=torch.int64), torch.zeros(len(learners), 0)
    slots = [slot for one in learners for slot in one.memory.slots]
    shares = [torch.cat([one.beta * slot.weights / len(slot.labels) for slot in one.memory.slots]) for one in learners]
    return torch.cat([s.inputs.flatten(1) for s in slots]), torch.cat([s.labels for s in slots]), torch.stack(shares)
