"""The landmarks of the Nyström approximation: how they are drawn, and when they are drawn again.

Uniform: `n_landmarks` items drawn by `landmark_seed`. Leverage: drawn with probability proportional to approximate
ridge leverage scores  l_i = phi_i^T (Phi^T Phi + r I)^-1 phi_i,  with phi the features of a uniform pilot sample and
r the mean of the spectrum below the wanted rank; rare items become landmarks sooner.

A caller passes the landmarks of the previous round as `existing` until the pool has grown by the factor GROWTH since
they were drawn. Only then are the features of all items computed again, so each item is computed about twice at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from core.config import KernelConfig
from core.errors import InvalidInput
from core.kernels.networks import by_name
from core.kernels.nystrom import fit
from core.types import Progress, Report, Rows, ignore

MAX_PILOT = 256
GROWTH = 2  # landmarks are drawn again when the pool has grown by this factor


def choose_landmarks(
    names: Sequence[str],
    inputs: Rows,
    config: KernelConfig,
    existing: Sequence[str] = (),
    report: Report = ignore,
) -> tuple[str, ...]:
    """Names of the landmarks for a pool: `existing` if there are any, otherwise a new draw without duplicates.

    names: one per row of `inputs`, the items that may be landmarks (leave out test items and unreadable ones).
    """
    if existing:
        return tuple(existing)
    rows = np.array(sorted({name: row for row, name in reversed(list(enumerate(names)))}.values()), np.int64)
    if not len(rows):
        raise InvalidInput("There are no items to draw landmarks from. Import some first.")
    if len(rows) <= config.n_landmarks:
        return tuple(names[row] for row in rows)
    generator = np.random.default_rng(config.landmark_seed)
    if config.landmarks == "uniform":
        chosen = generator.choice(rows, config.n_landmarks, replace=False)
    else:
        scores = leverage_scores(inputs, rows, config, generator, report)
        # the largest of u^(1/score) is a draw without replacement, proportional to the scores
        order = np.argsort(-np.log(generator.random(len(rows))) / scores)
        chosen = rows[order[: config.n_landmarks]]
    return tuple(names[row] for row in chosen)


def leverage_scores(
    inputs: Rows, rows: NDArray[np.int64], config: KernelConfig, generator: np.random.Generator, report: Report = ignore
) -> NDArray[np.float64]:
    """(len(rows),) approximate ridge leverage scores, above zero."""
    pilot = generator.choice(rows, min(MAX_PILOT, len(rows)), replace=False)
    nystrom = fit(inputs.take(pilot), by_name(config.network, block_size=config.block_size), config.tolerance)
    blocks = []
    for begin in range(0, len(rows), 256):
        report(Progress("landmarks", begin, len(rows), "leverage scores"))
        blocks.append(nystrom.transform(inputs.take(rows[begin : begin + 256])).astype(np.float64))
    phi = np.concatenate(blocks)  # (n, pilot)
    gram = phi.T @ phi
    spectrum = np.linalg.eigvalsh(gram)[::-1]
    tail = spectrum[min(config.n_landmarks, len(spectrum)) // 2 :]
    ridge = max(float(tail.mean()), 1e-9 * float(spectrum[0]), np.finfo(np.float64).tiny)
    solved = np.linalg.solve(gram + ridge * np.eye(len(gram)), phi.T)
    scores: NDArray[np.float64] = np.maximum(np.einsum("nq,qn->n", phi, solved), 1e-12)
    return scores
