"""Unweighted coresets: forward one by one, forward in batches, exchange in batches, elimination in batches.

All rank rows by their influence -dG/dw_i at the current set (Borsos et al., 2021, Section 3.5.2 and Fig. 3):

    forward      add the `batch` rows outside the set with the largest influence, train again
    exchange     from a set of the final size: `batch` rows with the largest influence are added and the `batch` with
                 the smallest removed. As printed (`accept="every"`): for a number of rounds, also if the outer loss
                 rises. `accept="better"`: kept only if the outer loss falls, otherwise repeated with half as many
    elimination  from all rows: the `batch` rows with the smallest influence are removed, train again

A row in the set has weight 1, any other row has weight 0. Influence is a first-order estimate: for one added row it is
nearly exact, for a batch it ignores that similar rows repeat each other, which is what separates one by one from
batches at small sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from core.coresets.library.implicit import BilevelProblem
from core.errors import InvalidInput
from core.types import Progress, Report, ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """Rows in order, best first: a prefix of a forward or elimination order is its set of that size."""

    rows: Tensor  # (m,) int64
    outer: dict[int, float]  # size -> outer loss, at every size where the model was trained
    notes: tuple[str, ...] = ()


class _Trainer:
    """Trains on sets of rows, each from the last solution, and counts the solves that did not converge."""

    def __init__(self, problem: BilevelProblem) -> None:
        self.problem = problem
        self.parameters: Any = None
        self.trainings = self.unsolved = 0

    def train(self, rows: Tensor) -> float:
        """The outer loss after training on `rows` with weight 1."""
        self.weights = torch.zeros(self.problem.n_rows, dtype=torch.float64)
        self.weights[rows] = 1.0
        inner = self.problem.solve(self.weights, self.parameters)
        self.trainings += 1
        self.unsolved += not inner.converged
        self.parameters = inner.parameters
        return self.problem.outer(inner.parameters)

    def influence(self) -> Tensor:
        return self.problem.influence(self.parameters, self.weights).scores

    def notes(self) -> tuple[str, ...]:
        if not self.unsolved:
            return ()
        return (f"the inner solver stopped early for {self.unsolved} of {self.trainings} trainings",)


def forward(
    problem: BilevelProblem, size: int, *, start: Sequence[int], batch: int = 1, report: Report = ignore
) -> Subset:
    """Grow `start` (at least one row) to `size` rows, `batch` at a time. The start rows are first in the result."""
    _check(problem, size, batch)
    if not start:
        raise InvalidInput("Forward selection needs at least one start row, so that there is a model to improve.")
    trainer = _Trainer(problem)
    rows = torch.tensor(list(start))[:size]
    outer = {len(rows): trainer.train(rows)}
    while len(rows) < size:
        scores = trainer.influence().clone()
        scores[rows] = -torch.inf
        rows = torch.cat([rows, scores.topk(min(batch, size - len(rows))).indices])
        outer[len(rows)] = trainer.train(rows)
        report(Progress("forward", len(rows), size, f"outer loss {outer[len(rows)]:.4g}"))
    return Subset(rows=rows, outer=outer, notes=trainer.notes())


def exchange(
    problem: BilevelProblem,
    *,
    start: Sequence[int],
    batch: int,
    rounds: int = 20,
    accept: Literal["better", "every"] = "better",
    report: Report = ignore,
) -> Subset:
    """Exchange rows of the set `start` at its size: `rounds` times, or until no exchange lowers the outer loss. The
    paper takes 200 rounds of 1 % of the set with every exchange accepted. `outer` is that of the rows returned."""
    size = len(start)
    _check(problem, size, batch)
    trainer = _Trainer(problem)
    rows = torch.tensor(list(start))
    best = trainer.train(rows)
    count = min(batch, size, problem.n_rows - size)
    for done in range(rounds):
        if count == 0:
            break
        kept = (trainer.parameters, trainer.weights)
        proposal = _exchanged(rows, trainer.influence(), count)
        value = trainer.train(proposal)
        if accept == "every" or value < best:
            rows, best = proposal, value
        else:
            trainer.parameters, trainer.weights = kept
            count //= 2
        report(Progress("exchange", done + 1, rounds, f"outer loss {best:.4g}"))
    return Subset(rows=rows, outer={size: best}, notes=trainer.notes())


def _exchanged(rows: Tensor, scores: Tensor, count: int) -> Tensor:
    stay = rows[scores[rows].argsort(descending=True)][: len(rows) - count]
    outside = scores.clone()
    outside[rows] = -torch.inf
    return torch.cat([stay, outside.topk(count).indices])


def eliminate(problem: BilevelProblem, size: int, *, batch: int, report: Report = ignore) -> Subset:
    """Shrink all rows to `size`, `batch` at a time. `rows` holds all n: those eliminated come last, latest first."""
    _check(problem, size, batch)
    trainer = _Trainer(problem)
    rows = torch.arange(problem.n_rows)
    gone = torch.zeros(0, dtype=torch.int64)
    outer = {len(rows): trainer.train(rows)}
    while len(rows) > size:
        order = rows[trainer.influence()[rows].argsort(descending=True, stable=True)]
        count = min(batch, len(rows) - size)
        rows, gone = order[:-count], torch.cat([order[-count:], gone])
        outer[len(rows)] = trainer.train(rows)
        report(Progress("elimination", problem.n_rows - len(rows), problem.n_rows - size))
    return Subset(rows=torch.cat([rows, gone]), outer=outer, notes=trainer.notes())


def _check(problem: BilevelProblem, size: int, batch: int) -> None:
    if not 1 <= size <= problem.n_rows or batch < 1:
        raise InvalidInput(f"Asked for {size} of {problem.n_rows} rows in batches of {batch}; both start at 1.")
