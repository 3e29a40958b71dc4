"""MaxHerding: greedy generalized coverage with a Gaussian kernel (Bae, Noh and Sutherland, ECCV 2024).

    maximize  1/n sum_x max_{l in labeled and chosen} exp(-|x - l|^2 / sigma^2),   sigma = 1

over centered rows of length 1 (last layer; kernel features before the first model). The score is the gain in coverage.
The paper uses self-supervised features of length 1. Here rows are centered first, because activations after a
rectifier are nonnegative and thus all similar.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.acquisition.coverage import covered_by, gaussian, greedy_cover
from core.acquisition.geometry import centered_unit
from core.acquisition.pool_view import (
    candidate_rows,
    draft,
    labeled_rows,
    on_device,
    sample,
    sampled_note,
    space,
    unlabeled_rows,
)
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore

RADIUS = 1.0


@dataclass(frozen=True, slots=True)
class Herding:
    """The parameters of a weighted Gaussian coverage."""

    strategy: str
    radius: float = RADIUS
    weights: Tensor | None = None  # (n,) of every pool row; None: equal
    notes: tuple[str, ...] = ()


def herd(request: SelectionRequest, config: SelectionConfig, herding: Herding, report: Report) -> Selection:
    """A batch by greedy weighted Gaussian coverage of the unlabeled rows."""
    x = centered_unit(on_device(space(request)))
    rows, pool, m = candidate_rows(request), unlabeled_rows(request), request.batch_size
    offered = sample(rows, config.max_pairwise, request, "herding-candidates")
    evaluated = sample(pool, config.max_pairwise, request, "herding-pool")

    def similar(a: Tensor, b: Tensor) -> Tensor:
        return gaussian(a, b, herding.radius)

    E, K = x[on_device(evaluated)], x[on_device(offered)]
    covered = covered_by(similar, E, x[on_device(labeled_rows(request))])
    u = torch.ones_like(covered) if herding.weights is None else herding.weights[on_device(evaluated)]
    covering = greedy_cover(similar(E, K), u / len(E), covered, m, lambda done: report(Progress("select", done, m)))
    sampled = sampled_note("Candidates", len(offered), len(rows)) + sampled_note("Coverage", len(E), len(pool))
    return draft(request, herding.strategy, offered[covering.positions], covering.gains, herding.notes + sampled)


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    return herd(request, config, Herding("max_herding"), report)
