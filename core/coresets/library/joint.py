"""One coreset for several models (Borsos et al., 2021, eq. 11).

    sum          min over w   sum_k a_k G_k(w):  the models share the rows and weights, each has its own parameters
    alternating  the next row is the argmax of the influence on the current model; models alternate

`JointProblem` is a `BilevelProblem`, so every construction works on it; `alternate` is cheaper, because one model is
trained per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.coresets.library.implicit import BilevelProblem, Influence, Inner
from core.coresets.library.variants import Subset
from core.errors import InvalidInput
from core.types import Progress, Report, ignore


@dataclass(slots=True)
class JointProblem:
    """The weighted sum of problems over the same rows."""

    problems: Sequence[BilevelProblem]
    shares: Sequence[float] | None = None  # a_k; all 1 when None

    def __post_init__(self) -> None:
        sizes = {problem.n_rows for problem in self.problems}
        if len(sizes) != 1:
            raise InvalidInput(f"Joint problems need the same rows; these have {sorted(sizes)}.")
        if self.shares is not None and len(self.shares) != len(self.problems):
            raise InvalidInput(f"{len(self.shares)} shares were given for {len(self.problems)} problems.")

    @property
    def n_rows(self) -> int:
        return self.problems[0].n_rows

    def _shares(self) -> Sequence[float]:
        return self.shares if self.shares is not None else [1.0] * len(self.problems)

    def solve(self, weights: Tensor, start: Any = None) -> Inner:
        starts = start if start is not None else [None] * len(self.problems)
        found = [problem.solve(weights, begin) for problem, begin in zip(self.problems, starts, strict=True)]
        return Inner(tuple(inner.parameters for inner in found), all(inner.converged for inner in found))

    def outer(self, parameters: Any) -> float:
        parts = zip(self._shares(), self.problems, parameters, strict=True)
        return sum(share * problem.outer(theta) for share, problem, theta in parts)

    def influence(self, parameters: Any, weights: Tensor) -> Influence:
        found = [problem.influence(theta, weights) for problem, theta in zip(self.problems, parameters, strict=True)]
        scores = torch.stack([a * f.scores.double() for a, f in zip(self._shares(), found, strict=True)]).sum(0)
        return Influence(scores, all(f.converged for f in found))


def alternate(
    problems: Sequence[BilevelProblem], size: int, *, start: Sequence[int], batch: int = 1, report: Report = ignore
) -> Subset:
    """Unweighted forward selection, `batch` rows at a time, by the influence for each problem in turn."""
    n = JointProblem(problems).n_rows
    if not start or not len(start) <= size <= n:
        raise InvalidInput(f"Asked for {size} of {n} rows from {len(start)} start rows; give at least one start row.")
    rows = torch.tensor(list(start))
    solutions: list[Any] = [None] * len(problems)
    outer: dict[int, float] = {}
    turn = 0
    while len(rows) < size:
        k = turn % len(problems)
        weights = torch.zeros(n, dtype=torch.float64)
        weights[rows] = 1.0
        solutions[k] = problems[k].solve(weights, solutions[k]).parameters
        outer[len(rows)] = problems[k].outer(solutions[k])
        scores = problems[k].influence(solutions[k], weights).scores.clone()
        scores[rows] = -torch.inf
        rows = torch.cat([rows, scores.topk(min(batch, size - len(rows))).indices])
        turn += 1
        report(Progress("alternate", len(rows), size))
    return Subset(rows=rows, outer=outer)
