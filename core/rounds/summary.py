"""A small labeled set that represents a large one: n items, with or without weights, and the accuracy with them.

    one model    min over w, |w|_0 <= n   G(w) = mean over all labeled rows of CE(y_i, softmax(W*(w) x_i))
    joint        min over w, |w|_0 <= n   sum_k G_k(w): the models share rows and weights; each has its own W_k
    where        W*(w) = argmin_W  1/n sum_i w_i CE(y_i, softmax(W x_i)) + penalty/2 |W|^2

A model is softmax regression on fixed features x, given as a `View`: the kernel's features, or the last layer of a
trained network. Rows are chosen by forward selection (`core.coresets.library.variants`) in at most `MOST_STEPS` steps.
The selection starts from the row nearest to the mean of each class, largest classes first. The weights of a weighted
summary are then corrected by projected gradient steps, each of which lowers G (`core.coresets.library.weighted`), so
its G is never higher than without weights.

Test rows are used only for evaluation: the same regression trained on the summary, on uniform draws of the same size
(one for each seed) and on all labeled rows, all evaluated on the same test rows. Everything is a function of its
arguments.

Departures and details: with fewer rows than features, every view is first expressed in an orthonormal basis of its
rows. W* lies in their span, so only the cost changes. Features get a column of ones, which is a penalized bias.
Algorithm 1 corrects the weights after every added row; here they are corrected once, at the end, which needs far fewer
trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.coresets.library.implicit import BilevelProblem
from core.coresets.library.joint import JointProblem
from core.coresets.library.linear import SoftmaxProblem, one_hot, with_bias
from core.coresets.library.variants import forward
from core.coresets.library.weighted import Coreset, PursuitConfig, correct_weights
from core.errors import InvalidInput
from core.runtime import seed_for
from core.types import Progress, Report, ignore

MOST_STEPS = 50  # larger summaries add rows in groups
LEAST_WEIGHT = 0.01  # of an item, relative to the mean: a summary has as many items as requested
TOLERANCE = 1e-5  # of the inner gradient, relative to that at W = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The features of the labeled rows and the test rows for one model."""

    name: str
    labeled: NDArray[np.floating]  # (n, d)
    test: NDArray[np.floating]  # (k, d)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryConfig:
    size: int
    weighted: bool = True
    penalty: float = 1e-4
    corrections: int = 20  # steps on the weights
    n_draws: int = 5  # uniform draws to compare with
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryAccuracy:
    """Shares of test rows that one model predicts correctly, by its training set."""

    model: str
    summary: float
    uniform: tuple[float, ...]  # one for each draw
    everything: float

    @property
    def uniform_mean(self) -> float:
        return float(np.mean(self.uniform))

    @property
    def uniform_deviation(self) -> float:
        """The sample standard deviation over the uniform draws; 0 for a single one."""
        return float(np.std(self.uniform, ddof=1)) if len(self.uniform) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    rows: NDArray[np.int64]  # (m,) of the labeled rows, in the order chosen
    weights: NDArray[np.float64]  # (m,) all 1 if it is not weighted
    accuracies: tuple[SummaryAccuracy, ...]  # one for each view
    notes: tuple[str, ...] = ()


def summarize(
    views: Sequence[View],
    labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
    config: SummaryConfig,
    report: Report = ignore,
) -> Summary:
    """A summary of `config.size` of the n labeled rows for all views. labels (n,), test_labels (k,): class positions.

    The rows and their weights do not depend on the test rows and their labels, which are used only for evaluation.
    Without test rows nothing is measured.
    """
    check_labels(labels)
    _check_size(config.size, len(labels))
    n_classes = int(labels.max()) + 1
    targets = one_hot(torch.as_tensor(labels), n_classes)
    parts = [_problem(view, targets, config.penalty) for view in views]
    problems = [problem for problem, _ in parts]
    joint: BilevelProblem = problems[0] if len(problems) == 1 else JointProblem(problems)
    rows, weights, notes = _choose(joint, problems[0].features, labels, config, report)
    accuracies = []
    for done, (view, (problem, test)) in enumerate(zip(views, parts, strict=True) if len(test_labels) else ()):
        report(Progress("measure", done, len(views), view.name))
        accuracies.append(_accuracy(view.name, problem, (test, torch.as_tensor(test_labels)), (rows, weights), config))
    return Summary(rows=rows.numpy(), weights=weights.numpy(), accuracies=tuple(accuracies), notes=notes)


def measure_set_aside(
    views: Sequence[View],
    labels: NDArray[np.int64],
    aside: NDArray[np.bool_],
    config: SummaryConfig,
    report: Report = ignore,
) -> tuple[SummaryAccuracy, ...]:
    """The accuracy of a summary without test items: a summary of the rows that are not set aside, measured on those
    that are. It is computed like the summary of all rows, with the same size if there are enough rows."""
    check_labels(labels[~aside])
    parts = [View(name=view.name, labeled=view.labeled[~aside], test=view.labeled[aside]) for view in views]
    smaller = replace(config, size=min(config.size, int((~aside).sum())))
    return summarize(parts, labels[~aside], labels[aside], smaller, report).accuracies


def set_aside(
    labels: NDArray[np.int64], share: float, seed: int, groups: NDArray[np.int64] | None = None
) -> NDArray[np.bool_]:
    """(n,) rows to measure on if there are no test items: this share of each class, and at least one if it has two.

    With `groups` (n,), whole groups are set aside in random order until the share of the rows is reached; every class
    keeps at least one row. A row with a negative number is a group of its own.
    """
    if groups is not None and (groups >= 0).any():
        return _whole_groups(labels, share, seed, groups)
    chosen = np.zeros(len(labels), np.bool_)
    generator = np.random.default_rng(seed_for(seed, "set aside"))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        chosen[generator.permutation(rows)[:count]] = True
    return chosen


def _whole_groups(labels: NDArray[np.int64], share: float, seed: int, groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    alone = np.flatnonzero(groups < 0)
    numbers = groups.copy()
    numbers[alone] = groups.max() + 1 + np.arange(len(alone))
    generator = np.random.default_rng(seed_for(seed, "set aside"))
    chosen = np.zeros(len(labels), np.bool_)
    left = np.bincount(labels)
    for group in generator.permutation(np.unique(numbers)):
        rows = numbers == group
        taken = np.bincount(labels[rows], minlength=len(left))
        if ((left - taken < 1) & (left > 0)).any():
            continue
        chosen |= rows
        left = left - taken
        if chosen.sum() >= share * len(labels):
            break
    return chosen


def check_labels(labels: NDArray[np.int64]) -> None:
    """Raise InvalidInput unless there are labels of at least two classes."""
    if not len(labels):
        raise InvalidInput("Nothing is labeled yet, so there is nothing to summarize. Label some items first.")
    if len(np.unique(labels)) < 2:
        raise InvalidInput(
            f"All {len(labels):,} labeled items have the same class. A summary needs labels of at least 2 classes."
        )


def _check_size(size: int, n_rows: int) -> None:
    if size < 1:
        raise InvalidInput(f"A summary of {size} items was requested; use at least 1.")
    if size > n_rows:
        raise InvalidInput(f"A summary of {size:,} items was requested; only {n_rows:,} labeled items can be in it.")


def _problem(view: View, targets: Tensor, penalty: float) -> tuple[SoftmaxProblem, Tensor]:
    """The view's bilevel problem over the labeled rows, and its test rows in the same coordinates."""
    labeled = with_bias(torch.as_tensor(np.asarray(view.labeled, np.float64)))
    test = with_bias(torch.as_tensor(np.asarray(view.test, np.float64)))
    if not bool(torch.isfinite(labeled).all() and torch.isfinite(test).all()):
        raise InvalidInput(f"The features of the {view.name} contain values that are not numbers.")
    if len(labeled) < labeled.shape[1]:
        basis = torch.linalg.qr(labeled.T).Q  # (d, n)
        labeled, test = labeled @ basis, test @ basis
    return SoftmaxProblem(features=labeled, targets=targets, penalty=penalty, mean=True, tolerance=TOLERANCE), test


def _choose(
    problem: BilevelProblem, features: Tensor, labels: NDArray[np.int64], config: SummaryConfig, report: Report
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Rows (m,) in order, their weights (m,), and notes about solves that did not converge."""
    start = _typical_rows(features, labels)[: config.size]
    batch = -(-config.size // MOST_STEPS)

    def follow(progress: Progress) -> None:
        report(Progress("summarize", progress.done, progress.total, progress.note))

    subset = forward(problem, config.size, start=start, batch=batch, report=follow)
    ones = torch.ones(len(subset.rows), dtype=torch.float64)
    if not config.weighted:
        return subset.rows, ones, subset.notes
    report(Progress("weights", 0, 1))
    pursuit = PursuitConfig(size=config.size, corrections=config.corrections, relative=True)
    coreset = correct_weights(problem, Coreset(rows=subset.rows, weights=ones, outer=()), pursuit)
    least = LEAST_WEIGHT * float(coreset.weights.mean())
    n_least = int((coreset.weights < least).sum())
    notes = (f"{n_least} of {config.size} items reached weight 0 and have the least weight instead",) if n_least else ()
    return coreset.rows, coreset.weights.clamp(min=least), (*subset.notes, *coreset.notes, *notes)


def _typical_rows(features: Tensor, labels: NDArray[np.int64]) -> list[int]:
    """The row nearest to the mean of each class; largest classes first."""
    classes, counts = np.unique(labels, return_counts=True)
    found = []
    for label in classes[np.argsort(-counts, kind="stable")]:
        rows = np.flatnonzero(labels == label)
        inside = features[rows]
        found.append(int(rows[int((inside - inside.mean(0)).square().sum(1).argmin())]))
    return found


def _accuracy(
    name: str,
    problem: SoftmaxProblem,
    test: tuple[Tensor, Tensor],
    chosen: tuple[Tensor, Tensor],
    config: SummaryConfig,
) -> SummaryAccuracy:
    def accuracy(rows: Tensor, weights: Tensor) -> float:
        everyone = torch.zeros(problem.n_rows, dtype=torch.float64)
        everyone[rows] = weights
        return problem.accuracy(problem.solve(everyone).parameters, *test)

    generator = np.random.default_rng(seed_for(config.seed, "uniform draws"))
    draws = [torch.as_tensor(generator.permutation(problem.n_rows)[: config.size]) for _ in range(config.n_draws)]
    ones = torch.ones(problem.n_rows, dtype=torch.float64)
    return SummaryAccuracy(
        model=name,
        summary=accuracy(*chosen),
        uniform=tuple(accuracy(rows, ones[: len(rows)]) for rows in draws),
        everything=accuracy(torch.arange(problem.n_rows), ones),
    )
