"""What other strategies would have picked on the same state, without spending a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.acquisition import registry
from core.acquisition.geometry import nearest
from core.acquisition.pool_view import is_cold, labeled_rows, on_device, space, unlabeled_rows
from core.config import SelectionConfig
from core.types import Progress, Report, Selection, SelectionRequest, ignore


@dataclass(frozen=True, slots=True)
class Coverage:
    """How well a batch would spread over the pool."""

    mean_distance: float  # of an unlabeled item to the nearest labeled or picked one
    largest_distance: float
    distance_ratio: float  # mean distance over that without the batch; 1 before the first label
    n_guessed_classes: int | None  # distinct pseudo-labels in the batch; None without a model
    mean_entropy: float | None  # of the batch's predictions, nats
    outer_loss: float | None  # of the proxy on the pool after the batch


@dataclass(frozen=True, slots=True)
class Comparison:
    """Strategies side by side, in the order asked."""

    strategies: tuple[str, ...]
    selections: Mapping[str, Selection]
    overlap: NDArray[np.int64]  # (s, s) items that two batches share; the batch size on the diagonal
    coverage: Mapping[str, Coverage]


def compare(
    request: SelectionRequest, strategies: Sequence[str], config: SelectionConfig, report: Report = ignore
) -> Comparison:
    """Run each strategy on the request. Nothing is stored and the request stays as it is."""
    selections: dict[str, Selection] = {}
    for done, name in enumerate(strategies):
        report(Progress("compare", done, len(strategies), name))
        selections[name] = registry.select(request, replace(config, strategy=name))
    report(Progress("compare", len(strategies), len(strategies)))
    picked = [selections[name].item_ids for name in strategies]
    overlap = np.array([[len(np.intersect1d(a, b)) for b in picked] for a in picked], np.int64)
    before = _distances(request, labeled_rows(request))
    coverage = {name: _coverage(request, selection, before) for name, selection in selections.items()}
    return Comparison(tuple(strategies), selections, overlap, coverage)


def _distances(request: SelectionRequest, centers: NDArray[np.int64]) -> NDArray[np.float32] | None:
    if not len(centers):
        return None
    points = space(request)
    return nearest(on_device(points[unlabeled_rows(request)]), on_device(points[centers]))[0].cpu().numpy()


def _coverage(request: SelectionRequest, selection: Selection, before: NDArray[np.float32] | None) -> Coverage:
    rows = np.flatnonzero(np.isin(request.item_ids, selection.item_ids))
    after = _distances(request, rows)
    assert after is not None
    if before is not None:
        after = np.minimum(after, before)
    ratio = 1.0 if before is None or before.mean() == 0 else float(after.mean() / before.mean())
    cold = is_cold(request)
    entropies = [reason.entropy for reason in selection.reasons if reason.entropy is not None]
    return Coverage(
        mean_distance=float(after.mean()),
        largest_distance=float(after.max()),
        distance_ratio=ratio,
        n_guessed_classes=None if cold else len(np.unique(request.probabilities[rows].argmax(1))),
        mean_entropy=None if cold else float(np.mean(entropies)),
        outer_loss=selection.reasons[-1].outer_after,
    )
