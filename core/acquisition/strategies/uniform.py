"""A uniform draw without replacement: the baseline of all strategies."""

from __future__ import annotations

from dataclasses import replace

from core.acquisition.pool_view import candidate_rows, draft, generator
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    """Every candidate is equally likely; the score is 0 for all."""
    rows = generator(request, "uniform").permutation(candidate_rows(request))[: request.batch_size]
    return draft(request, "uniform", rows, [0.0] * len(rows))


def without_model(request: SelectionRequest, config: SelectionConfig, strategy: str) -> Selection:
    """The fallback of strategies that need predictions, before the first model."""
    note = "This strategy needs predictions of a model. Before the first model, the batch is a random draw."
    return replace(select(request, config), strategy=strategy, notes=(note,))
