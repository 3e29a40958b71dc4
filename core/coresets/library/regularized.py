"""Weighted coresets by sparsity: start from all rows and drive weights to 0 (Borsos et al., Algorithm 2).

    min over w in the simplex   G(w) + beta * sum_i sqrt(w_i)
    repeat   w <- project(w - eta (dG/dw + beta / (2 sqrt(w))))  on the active rows;   beta <- 2 beta
    until    m rows are active

On the simplex the L1 norm is constant, so the penalty is L_1/2: concave, with a slope that grows without bound towards
0, so a row whose weight reaches 0 stays at 0. Doubling beta reaches any size m without knowing beta beforehand.

Departures and details: eta is such that a step changes weights by about `step` of their mean; it is halved where a step
would leave fewer than m rows. At m rows the penalty is dropped and the weights are corrected for G alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from core.coresets.library.implicit import BilevelProblem
from core.coresets.library.weighted import Coreset, PursuitConfig, correct_weights
from core.errors import InvalidInput
from core.types import Progress, Report, ignore


def project_to_simplex(values: Tensor, total: float = 1.0) -> Tensor:
    """The nearest point to `values` (n,) with entries >= 0 that sum to `total` > 0, in O(n log n) (Duchi et al., 2008).

    w_i = max(v_i - tau, 0),   tau = (sum of the rho largest v - total) / rho,
    rho = the largest k for which the k-th largest v is above (sum of the k largest - total) / k
    """
    if total <= 0 or values.ndim != 1 or not len(values):
        raise InvalidInput(f"Projection of shape {tuple(values.shape)} onto a simplex of total {total}: need n >= 1.")
    ordered = values.sort(descending=True).values
    excess = ordered.cumsum(0) - total
    counts = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    rho = int(torch.nonzero(ordered > excess / counts).max())
    return (values - excess[rho] / (rho + 1)).clamp_min(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkConfig:
    """`total` is the sum of all weights; beta starts at `first_beta` times the scale where both gradients have equal
    size."""

    size: int
    total: float = 1.0
    first_beta: float = 0.1
    steps_per_beta: int = 8
    step: float = 0.2
    corrections: int = 20  # weight steps without the penalty, at the end
    max_doublings: int = 40


def shrink_coreset(problem: BilevelProblem, config: ShrinkConfig, *, report: Report = ignore) -> Coreset:
    """At most `config.size` weighted rows. `outer` holds G at all rows, at m rows, and after the last correction."""
    n = problem.n_rows
    if not 1 <= config.size <= n:
        raise InvalidInput(f"Asked for {config.size} of {n} rows; give 1 to {n}.")
    weights = torch.full((n,), config.total / n, dtype=torch.float64)
    inner = problem.solve(weights)
    outer = [problem.outer(inner.parameters)]
    active = torch.arange(n)
    beta, steps = None, 0
    while len(active) > config.size and steps < config.steps_per_beta * config.max_doublings:
        influence = problem.influence(inner.parameters, weights).scores.to(weights.dtype)[active]
        pull = 0.5 / weights[active].sqrt()
        if beta is None:
            beta = config.first_beta * float(influence.std() / pull.mean())
        weights = _step(weights, active, influence - beta * pull, config)
        active = torch.nonzero(weights).flatten()
        inner = problem.solve(weights, inner.parameters)
        steps += 1
        if steps % config.steps_per_beta == 0:
            beta *= 2
        report(Progress("shrink", n - len(active), n - config.size))
    notes: tuple[str, ...] = ()
    if len(active) > config.size:
        notes = (
            f"{len(active)} rows were active after {config.max_doublings} doublings; the largest weights were kept",
        )
        active = weights.topk(config.size).indices
    return _finish(problem, weights, active, config, outer, notes)


def _step(weights: Tensor, active: Tensor, downhill: Tensor, config: ShrinkConfig) -> Tensor:
    """One projected step on the active rows; shorter where it would leave fewer than `size` of them."""
    spread = float(downhill.std()) or 1.0
    length = config.step * float(weights[active].mean()) / spread
    for _ in range(30):
        moved = project_to_simplex(weights[active] + length * downhill, config.total)
        if int((moved > 0).sum()) >= config.size:
            return torch.zeros_like(weights).index_put((active,), moved)
        length /= 2
    return weights


def _finish(
    problem: BilevelProblem,
    weights: Tensor,
    active: Tensor,
    config: ShrinkConfig,
    outer: list[float],
    notes: tuple[str, ...],
) -> Coreset:
    order = active[weights[active].argsort(descending=True)]
    kept = project_to_simplex(weights[order], config.total)
    plain = Coreset(rows=order, weights=kept, outer=())
    correction = PursuitConfig(
        size=config.size, corrections=config.corrections, project=partial(project_to_simplex, total=config.total)
    )
    better = correct_weights(problem, plain, correction)
    return Coreset(rows=order, weights=better.weights, outer=(*outer, *better.outer), notes=(*notes, *better.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedConfig:
    """Algorithm 2 with the constants of the paper. With `size`, beta doubles whenever the number of rows above the cut
    has not fallen for `patience` iterations, until at most `size` are left (the paper's rule for reaching a size m)."""

    iterations: int  # T
    beta: float = 1e-7
    learning_rate: float = 1e-3  # of the weights; the paper states none
    epsilon: float = 1e-8
    cut: float = 1e-4
    size: int | None = None
    patience: int = 5


def shrink_as_printed(problem: BilevelProblem, config: PrintedConfig, *, report: Report = ignore) -> Coreset:
    """Algorithm 2 line by line: gradient step, projection to the simplex, mixing with epsilon, and the cut at the end.

    w = 1/n;  repeat T times  w <- w - eta (dG/dw + beta / (2 sqrt(w)));  w <- project(w);  w <- (1 - eps) w + eps 1
    at the end  w[w < 1e-4] = 0.  The weights that are left are not scaled again, so they may sum to less than 1.
    """
    n = problem.n_rows
    weights = torch.full((n,), 1.0 / n, dtype=torch.float64)
    beta, parameters, counts, outer = config.beta, None, [n], []
    for done in range(config.iterations):
        inner = problem.solve(weights, parameters)
        parameters = inner.parameters
        outer.append(problem.outer(parameters))
        influence = problem.influence(parameters, weights).scores.to(weights.dtype)
        moved = weights + config.learning_rate * (influence - 0.5 * beta / weights.sqrt())
        weights = (1 - config.epsilon) * project_to_simplex(moved, 1.0) + config.epsilon
        counts.append(int((weights >= config.cut).sum()))
        if config.size is not None and counts[-1] <= config.size:
            break
        if config.size is not None and min(counts[:-1]) <= min(counts[-config.patience :]):
            beta *= 2 if len(counts) > config.patience else 1
        report(Progress("shrink", done + 1, config.iterations, f"{counts[-1]} rows, beta {beta:.2g}"))
    rows = torch.nonzero(weights >= config.cut).flatten()
    rows = rows[weights[rows].argsort(descending=True)]
    notes = () if config.size is None or len(rows) <= config.size else (f"{len(rows)} rows were left at the end",)
    return Coreset(rows=rows, weights=weights[rows], outer=tuple(outer), notes=notes)
