"""Continual learning with a replay memory of coresets (Borsos et al., 2021, Section 4.2).

Tasks arrive one after another and are not available again. After each, a summary of it is added to a memory of
fixed capacity, in which all tasks have equal slots; earlier summaries shrink to their first rows (every method orders
its rows, best first). While a task is learned, every earlier slot is replayed in every step:

    loss = mean over the batch of CE + beta * sum over slots of (mean over the slot's rows of w_i CE_i)

Slots store inputs and labels, because the rows of a past task are not available.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from core.coresets.library.linear import SoftmaxProblem, kernel_factor
from core.coresets.library.summaries import Evidence, RowArray
from core.coresets.library.variants import forward
from core.errors import InvalidInput
from core.types import Progress, Report, ignore


@dataclass(frozen=True, slots=True)
class MemorySlot:
    """Rows of one task, best first."""

    inputs: Tensor  # (k, ...)
    labels: Tensor  # (k,)
    weights: Tensor  # (k,)

    def first(self, size: int) -> MemorySlot:
        return MemorySlot(self.inputs[:size], self.labels[:size], self.weights[:size])


@dataclass(slots=True)
class ReplayMemory:
    """At most `capacity` rows, shared equally by the tasks so far."""

    capacity: int
    slots: list[MemorySlot] = field(default_factory=list)

    @property
    def next_slot_size(self) -> int:
        """The number of rows for the next task."""
        return self.capacity // (len(self.slots) + 1)

    def add(self, inputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """The next task's summary, best row first; all slots shrink to the same size."""
        size = self.next_slot_size
        if size < 1:
            raise InvalidInput(f"{len(self.slots) + 1} tasks do not fit into a memory of {self.capacity} rows.")
        weights = torch.ones(len(labels)) if weights is None else weights
        self.slots = [slot.first(size) for slot in (*self.slots, MemorySlot(inputs, labels, weights))]

    def loss(self, model: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over slots of the weighted mean loss. One forward pass for all of them."""
        if not self.slots:
            return torch.zeros(())
        inputs = torch.cat([slot.inputs for slot in self.slots])
        labels = torch.cat([slot.labels for slot in self.slots])
        shares = torch.cat([slot.weights / len(slot.labels) for slot in self.slots])
        return (cross_entropy(model(inputs), labels, reduction="none") * shares).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Adam on batches of the task, with the memory replayed in every step with the factor `beta`."""

    beta: float
    epochs: int = 400
    batch_size: int = 256
    learning_rate: float = 5e-4


def learn_task(
    model: torch.nn.Module,
    task: tuple[Tensor, Tensor],
    memory: ReplayMemory,
    config: ReplayConfig,
    *,
    generator: torch.Generator,
    report: Report = ignore,
) -> None:
    """Train `model` in place on (inputs, labels) while the memory is replayed."""
    inputs, labels = task
    optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    model.train()
    for epoch in range(config.epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(config.batch_size):
            loss = cross_entropy(model(inputs[rows]), labels[rows])
            if memory.slots:
                loss = loss + config.beta * memory.loss(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        report(Progress("replay", epoch + 1, config.epochs))
    model.eval()


def evidence_of(model: torch.nn.Module, inputs: Tensor, labels: Tensor, seed: int) -> Evidence:
    """The input of the baselines. `model.embed(inputs)` must return the input of the last layer."""
    model.eval()
    with torch.no_grad():
        embeddings = model.embed(inputs)  # type: ignore[operator]
        probabilities = torch.softmax(model(inputs), 1)
    return Evidence(
        features=inputs.flatten(1).double().numpy(),
        embeddings=embeddings.double().numpy(),
        probabilities=probabilities.double().numpy(),
        labels=labels.numpy(),
        seed=seed,
    )


def bilevel_summary(
    kernel: Tensor,
    targets: Tensor,
    size: int,
    *,
    penalty: float = 1e-4,
    outer_weights: Tensor | None = None,
) -> RowArray:
    """`size` rows, best first, by forward selection one by one for softmax regression on a kernel proxy (n, n).

    `targets` (n, C) have a column for every class of the learner, also for those that are not among
    these rows: with the columns of a task alone the border between its classes determines the result, while a memory
    has to separate them from the classes of other tasks too. `outer_weights` (n,) are the numbers of rows that each
    represents (streams). The first row has the largest influence on a model without training data.
    """
    problem = SoftmaxProblem(
        features=kernel_factor(kernel),
        targets=targets.double(),
        penalty=penalty,
        mean=True,
        outer_weights=outer_weights,
        tolerance=1e-4,
    )
    untrained = torch.zeros(targets.shape[1], problem.features.shape[1], dtype=torch.float64)
    first = int(problem.influence(untrained, torch.zeros(len(targets))).scores.argmax())
    return forward(problem, size, start=[first]).rows.numpy()
