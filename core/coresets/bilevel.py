"""Greedy bilevel coresets for softmax regression on fixed features (Borsos et al., 2021, Algorithm 1 and eqs. 5, 12).

    Inner   W*(w) = argmin_W  1/N [sum over base rows CE + sum_i w_i CE_i] + lambda/2 |W|^2
    Outer   G(w)  = mean over pool rows of CE(Y_i, softmax(W*(w) z_i)), weighted by `Settings.outer_weights` if given
    Step    add the candidate with the largest  -dG/dw_i = 1/N <P_i - Y_i, V z_i>,   V = H^-1 dG/dW
            as rows of weight 1 (its augmented views, where given), then solve the inner problem again

Symbols: z features (q,), with a 1 appended when there is a bias; Y soft labels (C,); W weights (C, q) or (C, d), d > q;
P = softmax(W z); H the Hessian of the inner objective at W*; lambda = penalty; N rows in the inner problem.

Departures and details
- The outer loss runs over the given pool rows. In the paper's batch active learning (eq. 12) the outer set is
  D_train u D_u: the labeled rows are then also in the pool, one-hot, but not in `Settings.candidates`, as in
  `core.acquisition.strategies.bico`. The authors' experiments use the unlabeled pool alone.
- `Objective()` is the authors' setting: mean losses, so that N grows with every added row while a weight varies at
  fixed N, and a bias that is penalized like the other weights. The alternative is sums without a bias.
- The candidate's gradient uses its own features. Its views are added after it was chosen, all with its soft label.
- The inner problem is solved by truncated Newton in the span of its rows (`core.coresets.span`) instead of thousands of
  first-order steps. It starts at the previous optimum and ends at `tolerance` times the gradient norm at W = 0.
- Of several rows with equal features, at most one is chosen while others remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.coresets.products import matmul
from core.coresets.softmax import cross_entropy
from core.coresets.solvers import Solved
from core.coresets.span import InnerProblem
from core.errors import InvalidInput
from core.types import Progress, Report, ignore

BLOCK_BYTES = 2**22  # of features in a block of the pool
LINE, LONG = 16, 256  # features of a cache line, and of a row that is padded to whole lines
ViewFeatures = Callable[[int], Any]
"""Pool row -> (A, q) features of its augmented views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The form of the two losses."""

    mean: bool = True  # averaged over rows; False: summed
    bias: bool = True  # a penalized bias; False: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the greedy search. Tolerances that are None follow the precision of the features."""

    objective: Objective = field(default_factory=Objective)
    candidates: NDArray[np.bool_] | None = None  # (n,) rows that may be chosen, all when None
    outer_weights: NDArray[np.floating] | None = None  # (n,) of the pool rows in the outer loss; all 1 when None
    ranked: NDArray[np.bool_] | None = None  # (n,) rows among which ranks are counted, the candidates when None
    tolerance: float | None = None  # inner gradient, relative to the gradient at W = 0
    system_tolerance: float | None = None  # residual of H V = dG/dW, relative
    cutoff: float | None = None  # see core.coresets.span
    max_newton_steps: int = 50
    max_cg_steps: int = 100
    keep_scores: bool = False  # also return every row's score at every step
    report: Report = ignore

    def precision(self, dtype: torch.dtype) -> tuple[float, float, float]:
        """(tolerance, system tolerance, cutoff) for features of `dtype`."""
        defaults = (1e-12, 1e-8, 0.0) if dtype == torch.float64 else (1e-5, 2e-4, 0.05)
        given = (self.tolerance, self.system_tolerance, self.cutoff)
        return tuple(d if g is None else g for g, d in zip(given, defaults, strict=True))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class SolverStatus:
    """How a solve ended."""

    steps: int
    converged: bool
    residual: float

    @classmethod
    def of(cls, solved: Solved) -> SolverStatus:
        return cls(solved.steps, solved.converged, solved.residual)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The path of a greedy search, in the order chosen."""

    rows: NDArray[np.int64]  # (m,) pool rows
    scores: NDArray[np.float64]  # (m,) -dG/dw when it was chosen
    ranks: NDArray[np.int64]  # (m,) rank of that score then, 1 = best
    first_ranks: NDArray[np.int64]  # (m,) rank by the scores before the first pick
    outer_losses: NDArray[np.float64]  # (m + 1,) before the first pick and after each
    inner: tuple[SolverStatus, ...]  # (m + 1,) inner problems
    systems: tuple[SolverStatus, ...]  # (m,) systems H V = dG/dW
    all_scores: NDArray[np.float64] | None = None  # (m, n) with `keep_scores`

    def problems(self) -> tuple[str, ...]:
        """A sentence for each kind of solve that stopped short of its tolerance."""
        sentences = []
        for name, statuses in (("The inner problem", self.inner), ("The implicit gradient", self.systems)):
            short = [status for status in statuses if not status.converged]
            if short:
                worst = max(status.residual for status in short)
                sentences.append(
                    f"{name} stopped before its tolerance for {len(short)} of {len(statuses)} solves "
                    f"(largest residual {worst:.1e})."
                )
        return tuple(sentences)


class OuterProblem:
    """The outer loss, its gradient and the candidates' scores over the pool rows."""

    def __init__(self, features: Tensor, targets: Tensor, objective: Objective, weights: Tensor | None = None) -> None:
        self.features = features  # (n, q)
        self.targets = targets  # (C, n)
        self.bias = objective.bias
        self.weights = weights  # (n,) in the outer loss, or None
        total = len(features) if weights is None else float(weights.sum())
        self.scale = 1.0 / total if objective.mean else 1.0

    def slices(self) -> Iterator[slice]:
        """Blocks of rows that stay in cache between two products; all rows at once on a GPU."""
        n, q = self.features.shape
        step = n if self.features.is_cuda else max(1, BLOCK_BYTES // (q * self.features.element_size()))
        return (slice(begin, begin + step) for begin in range(0, n, step))

    def applied(self, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """W z (C, k) for each block of rows."""
        q = self.features.shape[1]
        own, shift = W[:, :q].contiguous(), W[:, q : q + 1] if self.bias else 0.0
        return ((rows, matmul(self.features[rows], own.T).T + shift) for rows in self.slices())

    def outer(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """G (), dG/dW as W, and P - Y (C, n), in one pass over the features."""
        loss, gradient = W.new_zeros((), dtype=torch.float64), torch.zeros_like(W)
        errors = torch.empty_like(self.targets)
        q = self.features.shape[1]
        for rows, logits in self.applied(W):
            targets, log_P = self.targets[:, rows], torch.log_softmax(logits, 0)
            found = torch.sub(log_P.exp(), targets, out=errors[:, rows])
            gradient[:, :q] += matmul(self._counted(found, rows), self.features[rows])
            loss -= self._counted(targets * log_P, rows).sum(dtype=torch.float64)
        if self.bias:
            gradient[:, q] = self._counted(errors, slice(None)).sum(1)
        return self.scale * loss, self.scale * gradient, errors

    def loss(self, W: Tensor) -> Tensor:
        """G () at weights W, without its gradient."""
        loss = W.new_zeros((), dtype=torch.float64)
        for rows, logits in self.applied(W):
            losses = cross_entropy(logits, self.targets[:, rows])
            loss += self._counted(losses, rows).sum(dtype=torch.float64)
        return self.scale * loss

    def _counted(self, columns: Tensor, rows: slice) -> Tensor:
        """Columns (…, k) of these rows, each as often as the row counts in the outer loss."""
        return columns if self.weights is None else columns * self.weights[rows]

    def scores(self, errors: Tensor, V: Tensor, inner_scale: float) -> Tensor:
        """(n,) -dG/dw_i = inner_scale * <P_i - Y_i, V z_i>."""
        parts = [(errors[:, rows] * applied).sum(0) for rows, applied in self.applied(V)]
        return inner_scale * torch.cat(parts)

    def equal_rows(self, row: int, errors: Tensor) -> Tensor:
        """Rows equal to `row` in every feature; their probabilities, equal up to rounding, narrow the search."""
        P = errors + self.targets
        maybe = torch.nonzero((P - P[:, row, None]).abs().amax(0) < 1e-3).flatten()
        return maybe[(self.features[maybe] == self.features[row]).all(1)]


def greedy(  # noqa: PLR0913 - the plain-array face: two sets of rows, how many, the penalty, and how
    base_features: Any,
    base_targets: Any,
    pool_features: Any,
    pool_targets: Any,
    m: int,
    penalty: float,
    views: ViewFeatures | None = None,
    settings: Settings | None = None,
) -> Greedy:
    """Choose m pool rows, one by one, each the best for the outer loss to first order (module docstring).

    base_features (N, q), base_targets (N, C), pool_features (n, q), pool_targets (n, C): arrays or tensors, targets
    soft (rows sum to 1). The arithmetic follows the pool's device and precision. `views(row)` gives the (A, q)
    features with which a chosen row is added; without it, its own features are added.
    """
    with torch.inference_mode():
        search = _prepare(base_features, base_targets, pool_features, pool_targets, penalty, settings or Settings())
        n_open = int(search.open.sum())
        if m > n_open:
            raise InvalidInput(f"Asked for {m} rows but only {n_open} may be chosen. Lower the batch size.")
        return search.run(m, views)


def _prepare(
    base_features: Any, base_targets: Any, pool_features: Any, pool_targets: Any, penalty: float, settings: Settings
) -> _Search:
    pool_features, pool_targets = _floating(pool_features), _floating(pool_targets)
    like = {"dtype": pool_features.dtype, "device": pool_features.device}
    base_features = _floating(base_features).to(**like)
    base_targets, pool_targets = _floating(base_targets).to(**like), pool_targets.to(**like)
    _check(base_features, base_targets, pool_features, pool_targets, penalty)
    return _Search(
        OuterProblem(pool_features, pool_targets.T.contiguous(), settings.objective, _weights(settings, pool_features)),
        inner_rows(base_features, settings.objective),
        base_targets.T.contiguous(),
        penalty,
        settings,
    )


def _weights(settings: Settings, pool_features: Tensor) -> Tensor | None:
    if settings.outer_weights is None:
        return None
    weights = torch.as_tensor(settings.outer_weights).to(pool_features)
    if weights.shape != (len(pool_features),):
        raise InvalidInput(f"{tuple(weights.shape)} outer weights were given for a pool of {len(pool_features)} rows.")
    if not bool((weights >= 0).all()) or not bool(weights.sum() > 0):
        raise InvalidInput("Outer weights must be 0 or more, and not all 0.")
    return weights


def follow(  # noqa: PLR0913 - as greedy, for rows that are chosen already
    base_features: Any,
    base_targets: Any,
    pool_features: Any,
    pool_targets: Any,
    rows: NDArray[np.int64],
    penalty: float,
    views: ViewFeatures | None = None,
    settings: Settings | None = None,
) -> NDArray[np.float64]:
    """(m + 1,) outer losses before adding any of the pool rows `rows` (m,) and after each, in order."""
    losses = []
    with torch.inference_mode():
        search = _prepare(base_features, base_targets, pool_features, pool_targets, penalty, settings or Settings())
        for row in [None, *rows.tolist()]:
            if row is not None:
                search.join(row, views)
            search.solve()
            losses.append(float(search.pool.loss(search.inner.lift())))
    return np.array(losses)


class _Search:
    """The state of one greedy search."""

    def __init__(
        self, pool: OuterProblem, base_rows: Tensor, base_targets: Tensor, penalty: float, settings: Settings
    ) -> None:
        self.pool, self.settings = pool, settings
        tolerance, self.system_tolerance, cutoff = settings.precision(base_rows.dtype)
        self.inner = InnerProblem.create(base_rows, base_targets, penalty, mean=settings.objective.mean, cutoff=cutoff)
        at_zero = self.inner.scale * ((1.0 / len(base_targets) - base_targets) @ base_rows).norm()
        self.tolerance = tolerance * max(float(at_zero), torch.finfo(base_rows.dtype).eps)
        device = pool.features.device
        n = len(pool.features)
        self.open = _mask(settings.candidates, n, device)
        self.ranked = _mask(settings.ranked, n, device) if settings.ranked is not None else self.open.clone()
        self.duplicates = torch.zeros(n, dtype=torch.bool, device=device)

    def run(self, m: int, views: ViewFeatures | None) -> Greedy:
        rows: list[int] = []
        ranks: list[int] = []
        scores, outer, inner, systems, kept = [], [], [], [], []
        first_scores, first_ranked = torch.empty(0), self.ranked.clone()
        inner.append(SolverStatus.of(self.solve()))
        loss, gradient, errors = self.pool.outer(self.inner.lift())
        outer.append(float(loss))
        for step in range(m):
            system = self.inner.solve_hessian(gradient, self.system_tolerance, self.settings.max_cg_steps)
            systems.append(SolverStatus.of(system))
            gains = self.pool.scores(errors, system.value, self.inner.scale)
            first_scores = gains if step == 0 else first_scores
            row = self.best(gains)
            rows.append(row)
            if self.settings.keep_scores:
                kept.append(gains.double().cpu().numpy())
            scores.append(float(gains[row]))
            ranks.extend(_ranks(gains, self.ranked, [row]).tolist())
            self.close(row, errors)
            self.join(row, views)
            inner.append(SolverStatus.of(self.solve()))
            loss, gradient, errors = self.pool.outer(self.inner.lift())
            outer.append(float(loss))
            self.settings.report(Progress("select", step + 1, m, f"outer loss {outer[-1]:.4f}"))
        return Greedy(
            rows=np.array(rows, np.int64),
            scores=np.array(scores),
            ranks=np.array(ranks, np.int64),
            first_ranks=_ranks(first_scores, first_ranked, rows),
            outer_losses=np.array(outer),
            inner=tuple(inner),
            systems=tuple(systems),
            all_scores=np.stack(kept) if kept else None,
        )

    def solve(self) -> Solved:
        return self.inner.solve(self.tolerance, self.settings.max_newton_steps)

    def best(self, gains: Tensor) -> int:
        """The open row with the largest gain; equal copies of earlier picks only when nothing else is open."""
        allowed = self.open & ~self.duplicates
        allowed = torch.where(allowed.any(), allowed, self.open)
        return int(torch.where(allowed, gains, -torch.inf).argmax())

    def close(self, row: int, errors: Tensor) -> None:
        self.open[row] = False
        self.ranked[row] = False
        self.duplicates[self.pool.equal_rows(row, errors)] = True

    def join(self, row: int, views: ViewFeatures | None) -> None:
        features = self.pool.features
        with torch.inference_mode(False):  # what `views` returns may be kept
            rows = features[row : row + 1] if views is None else _floating(views(row)).to(features)
        target = self.pool.targets[:, row : row + 1]
        self.inner.add(inner_rows(rows, self.settings.objective), target.expand(-1, len(rows)))


def _ranks(scores: Tensor, among: Tensor, rows: list[int]) -> NDArray[np.int64]:
    """1 + how many of the rows in the mask `among` score higher, for each of `rows`."""
    return np.array([1 + int((among & (scores > scores[row])).sum()) for row in rows], np.int64)


def _floating(array: Any) -> Tensor:
    tensor = torch.as_tensor(array)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def inner_rows(rows: Tensor, objective: Objective) -> Tensor:
    """(n, d) rows (n, q) as the inner problem takes them: followed by a 1 for the bias and, where long, by zeros.

    The zeros change no product. With them rows start on cache lines, and not at a large power of two from each other,
    which would map them to the same few sets of the cache.
    """
    n, q = rows.shape
    d = q + objective.bias
    if q >= LONG:
        d = -(-d // LINE) * LINE
        d += LINE if d % (64 * LINE) == 0 else 0
    if d == q:
        return rows
    joined = rows.new_empty(n, d)
    joined[:, :q], joined[:, q:] = rows, 0
    if objective.bias:
        joined[:, q] = 1
    return joined


def _mask(mask: NDArray[np.bool_] | None, n: int, device: torch.device) -> Tensor:
    if mask is None:
        return torch.ones(n, dtype=torch.bool, device=device)
    if len(mask) != n:
        raise InvalidInput(f"A mask of {len(mask)} rows was given for a pool of {n} rows.")
    return torch.as_tensor(mask, dtype=torch.bool, device=device).clone()


def _check(
    base_features: Tensor, base_targets: Tensor, pool_features: Tensor, pool_targets: Tensor, penalty: float
) -> None:
    if penalty <= 0:
        raise InvalidInput(f"The penalty is {penalty}; it must be above 0.")
    if len(base_features) == 0:
        raise InvalidInput("The inner problem has no rows. Before the first label, use core.coresets.design.")
    if base_features.shape[1] != pool_features.shape[1]:
        raise InvalidInput(f"Base rows have {base_features.shape[1]} features, pool rows {pool_features.shape[1]}.")
    for name, features, targets in (("Base", base_features, base_targets), ("Pool", pool_features, pool_targets)):
        if len(features) != len(targets) or targets.shape[1] != base_targets.shape[1]:
            raise InvalidInput(f"{name} features {tuple(features.shape)} do not fit targets {tuple(targets.shape)}.")
        if not bool(torch.isfinite(features.sum())):
            raise InvalidInput(f"{name} features contain values that are not finite numbers.")
        if not bool(((targets.sum(1) - 1).abs() < 1e-3).all()):
            raise InvalidInput(f"{name} targets must sum to 1 in every row.")
