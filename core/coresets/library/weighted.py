"""Weighted coresets by generalized matching pursuit over the cone of weights (Borsos et al., 2021, Algorithm 1).

    repeat until |S| = m
        w_S <- argmin G(w) over w >= 0 supported on S        (corrective step: projected gradient, from the current w)
        S   <- S + argmax_k -dG/dw_k                          (Proposition 1: the row of the largest influence)

G(w) = g(theta*(w)) is the outer loss after training on the weighted rows; its gradient is the implicit one.

Departures and details: step lengths of the projected gradient are those of Barzilai and Borwein with backtracking, so a
corrective step never raises G. An added row starts at the mean of the current weights, if that is no worse than
weight 0. Losses averaged over the rows with weight make G discontinuous where a weight leaves 0, which can end the
search: use summed losses, with `rescale` for their total. `project` may be another convex set than w >= 0 (the simplex
makes this fully corrective Frank-Wolfe). With a `shortlist` above 1 the first-order estimate for the most influential
rows is checked against the true G before one is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from core.coresets.library.implicit import BilevelProblem
from core.errors import InvalidInput
from core.types import Progress, Report, ignore

Projection = Callable[[Tensor], Tensor]


def nonnegative(weights: Tensor) -> Tensor:
    return weights.clamp_min(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coreset:
    """Rows in the order chosen, their weights, and the outer loss after each correction."""

    rows: Tensor  # (m,) int64
    weights: Tensor  # (m,)
    outer: tuple[float, ...]  # G at the start and after every correction
    notes: tuple[str, ...] = ()

    def full_weights(self, n_rows: int) -> Tensor:
        """(n,) weights with zeros at rows that were not chosen."""
        return torch.zeros(n_rows, dtype=self.weights.dtype, device=self.weights.device).index_put(
            (self.rows,), self.weights, accumulate=True
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PursuitConfig:
    """`corrections` projected-gradient steps after each added row; `initial_weight` is that of the start rows."""

    size: int
    corrections: int = 10
    initial_weight: float = 1.0
    first_step: float = 1.0  # length of the first step, as a share of the largest weight
    shortlist: int = 1  # number of most influential candidates that are tried; the one that lowers G most is added
    batch: int = 1  # number of rows that are added between two corrections
    project: Projection = nonnegative
    rescale: bool = False  # added rows reduce the weight of the others, corrections first scale all; for summed losses
    relative: bool = False  # steps in proportion to the weights (a diagonal metric; for the cone w >= 0 only)

    def __post_init__(self) -> None:
        if self.batch < 1 or self.shortlist < 1 or (self.batch > 1 and self.shortlist > 1):
            raise InvalidInput(f"batch {self.batch}, shortlist {self.shortlist}: both start at 1, one of them stays 1.")


@dataclass(slots=True)
class _Point:
    """One point of the search: weights (n,), the solution for them, G, and -dG/dw once computed."""

    weights: Tensor
    parameters: Any
    outer: float
    influence: Tensor | None = None


def build_coreset(
    problem: BilevelProblem,
    start: Sequence[int] | Coreset,
    config: PursuitConfig,
    *,
    candidates: Callable[[int], Tensor] | None = None,
    report: Report = ignore,
) -> Coreset:
    """Grow `start` (rows, or a coreset with its weights) to `config.size` rows.

    `candidates(size)` may limit the rows that can be added to a set of that size.
    """
    rows = [int(row) for row in (start.rows if isinstance(start, Coreset) else start)]
    if not rows or config.size > problem.n_rows:
        raise InvalidInput(
            f"A coreset of {config.size} of {problem.n_rows} rows was requested, from {len(rows)} start rows. "
            "Give at least one start row and a size of at most all rows."
        )
    weights = torch.zeros(problem.n_rows, dtype=torch.float64)
    given = start.weights.to(weights.dtype) if isinstance(start, Coreset) else config.initial_weight
    weights[rows] = given
    search = _Search(problem, config)
    point = search.correct(search.visit(search.project(weights)), rows)
    history = [point.outer]
    while len(rows) < config.size:
        scores = search.influence(point).clone()
        scores[rows] = -torch.inf
        if candidates is not None:
            allowed = torch.full_like(scores, -torch.inf)
            allowed[candidates(len(rows))] = 0.0
            scores = scores + allowed
        count = min(max(config.shortlist, config.batch), problem.n_rows - len(rows))
        best = [int(row) for row in scores.topk(count).indices if scores[row] > -torch.inf]
        groups = [best[: config.size - len(rows)]] if config.batch > 1 else [[row] for row in best]
        joined = [(search.join(point, rows, group), group) for group in groups]
        point, group = min(joined, key=lambda pair: pair[0].outer)
        rows.extend(group)
        point = search.correct(point, rows)
        history.append(point.outer)
        report(Progress("coreset", len(rows), config.size, f"outer loss {point.outer:.4g}"))
    kept = torch.tensor(rows)
    return Coreset(rows=kept, weights=point.weights[kept], outer=tuple(history), notes=search.notes())


def correct_weights(problem: BilevelProblem, coreset: Coreset, config: PursuitConfig) -> Coreset:
    """The same rows with weights improved by `config.corrections` more steps. `outer` holds before and after."""
    search = _Search(problem, config)
    before = search.visit(coreset.full_weights(problem.n_rows).to(torch.float64))
    after = search.correct(before, [int(row) for row in coreset.rows])
    return Coreset(
        rows=coreset.rows,
        weights=after.weights[coreset.rows],
        outer=(before.outer, after.outer),
        notes=search.notes(),
    )


class _Search:
    """Evaluates points and counts solves that did not converge."""

    def __init__(self, problem: BilevelProblem, config: PursuitConfig) -> None:
        self.problem, self.config = problem, config
        self.unsolved = self.inexact = self.visits = 0

    def visit(self, weights: Tensor, near: _Point | None = None) -> _Point:
        inner = self.problem.solve(weights, None if near is None else near.parameters)
        self.visits += 1
        self.unsolved += not inner.converged
        return _Point(weights, inner.parameters, self.problem.outer(inner.parameters))

    def influence(self, point: _Point) -> Tensor:
        if point.influence is None:
            found = self.problem.influence(point.parameters, point.weights)
            self.inexact += not found.converged
            point.influence = found.scores.to(point.weights.dtype)
        return point.influence

    def join(self, point: _Point, rows: list[int], group: list[int]) -> _Point:
        """`group` is added at the mean weight of `rows`, halved until the outer loss does not rise, at most 4 times.

        With `rescale`, the total weight is kept if that does not raise the outer loss.
        """
        weight = float(point.weights[rows].mean())
        if self.config.rescale:
            weights = point.weights.clone()
            weights[group] = weight
            tried = self.visit(weights * (len(rows) / (len(rows) + len(group))), point)
            if tried.outer <= point.outer:
                return tried
        for _ in range(5):
            weights = point.weights.clone()
            weights[group] = weight
            tried = self.visit(self.project(weights), point)
            if tried.outer <= point.outer:
                return tried
            weight /= 2
        return point

    def correct(self, point: _Point, rows: list[int]) -> _Point:
        """At most `corrections` projected-gradient steps on the weights of `rows`, each of which lowers G."""
        support = torch.tensor(rows)
        point = self._scaled(point) if self.config.rescale else point
        length = None
        for _ in range(self.config.corrections):
            downhill = torch.zeros_like(point.weights)
            downhill[support] = self.influence(point)[support] * self._metric(point.weights[support])
            steepest = float(downhill.abs().max())
            if steepest == 0.0:
                break
            if length is None:
                length = self.config.first_step * float(point.weights.max()) / steepest
            moved = self._line_search(point, downhill, length)
            if moved is None:
                break
            shift = moved.weights - point.weights
            turn = self.influence(point)[support] - self.influence(moved)[support]
            curvature = float((shift[support] * turn).sum())
            squared = float((shift[support] ** 2 / self._metric(point.weights[support])).sum())
            length = squared / curvature if curvature > 0 else 2 * length
            point = moved
        return point

    def _scaled(self, point: _Point) -> _Point:
        """All weights doubled or halved, in the direction of descent, as long as that lowers G."""
        factor = 2.0 if float((self.influence(point) * point.weights).sum()) > 0 else 0.5
        for _ in range(8):
            tried = self.visit(point.weights * factor, point)
            if tried.outer >= point.outer:
                break
            point = tried
        return point

    def _metric(self, weights: Tensor) -> Tensor:
        """The squared length scale of every weight: all equal, or the weight's own (a tenth of the mean or more)."""
        if not self.config.relative:
            return torch.ones_like(weights)
        mean = weights.mean().clamp_min(torch.finfo(weights.dtype).tiny)
        return (weights / mean).clamp_min(0.1) ** 2

    def _line_search(self, point: _Point, downhill: Tensor, length: float) -> _Point | None:
        """Project(w + length * downhill) for the first halving of `length` that lowers G enough, else None."""
        for _ in range(12):
            weights = self.project(point.weights + length * downhill, downhill)
            shift = weights - point.weights
            gain = float((shift * self.influence(point)).sum())
            if gain <= 0:
                return None
            tried = self.visit(weights, point)
            if tried.outer <= point.outer - 1e-4 * gain:
                return tried
            length /= 4
        return None

    def project(self, weights: Tensor, moving: Tensor | None = None) -> Tensor:
        """Onto the set, within the rows that have weight or are `moving`: all others keep weight 0."""
        inside = weights != 0 if moving is None else (weights != 0) | (moving != 0)
        projected = torch.zeros_like(weights)
        projected[inside] = self.config.project(weights[inside])
        return projected

    def notes(self) -> tuple[str, ...]:
        found = []
        if self.unsolved:
            found.append(f"the inner solver stopped early for {self.unsolved} of {self.visits} trainings")
        if self.inexact:
            found.append(f"the inverse Hessian was not applied to its tolerance {self.inexact} times")
        return tuple(found)
