"""The reason of each pick, with the same fields for every strategy.

These are the pseudo-label with its confidence and entropy; the nearest labeled item; the number of pool items that are
nearer to this pick than to any other of the batch; and the loss of the kernel proxy on the whole pool before and after
the pick is added with its pseudo-label, in the order of the batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.acquisition.geometry import nearest
from core.acquisition.pool_view import RowArray, is_cold, labeled_rows, on_device, sample, space, unlabeled_rows
from core.acquisition.strategies import bico
from core.config import SelectionConfig
from core.coresets import bilevel
from core.types import PickReason, Selection, SelectionRequest

OUTER_ROWS = 10_000  # rows that represent the pool in the outer loss, for strategies other than bico


def attach(request: SelectionRequest, config: SelectionConfig, selection: Selection, rows: RowArray) -> Selection:
    """The selection with a complete reason for each of its `rows`, keeping what the strategy provided."""
    given = selection.reasons or tuple(
        PickReason(order=k + 1, score=float(score)) for k, score in enumerate(selection.scores)
    )
    before_after = outer_path(request, config, rows) if given[0].outer_before is None else None
    ids, distances = nearest_labeled(request, rows)
    shares = stands_for(request, rows)
    cold = is_cold(request)
    reasons = []
    for k, (reason, row) in enumerate(zip(given, rows, strict=True)):
        p = request.probabilities[row].astype(np.float64)
        reason = replace(reason, order=k + 1, stands_for=int(shares[k]))
        if not cold:
            entropy = float(-np.sum(p[p > 0] * np.log(p[p > 0])))
            reason = replace(reason, guess=int(p.argmax()), confidence=float(p.max()), entropy=max(entropy, 0.0))
        if ids is not None:
            reason = replace(reason, nearest_labeled=int(ids[k]), nearest_distance=float(distances[k]))
        if before_after is not None:
            reason = replace(reason, outer_before=float(before_after[k]), outer_after=float(before_after[k + 1]))
        reasons.append(reason)
    return replace(selection, reasons=tuple(reasons))


def nearest_labeled(request: SelectionRequest, rows: RowArray) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
    """(m,) item ids of the labeled items nearest to `rows`, and their distances; None if nothing is labeled."""
    labeled = labeled_rows(request)
    if not len(labeled):
        return None, np.empty(0, np.float32)
    points = space(request)
    distances, positions = nearest(on_device(points[rows]), on_device(points[labeled]))
    return request.item_ids[labeled[positions.cpu().numpy()]], distances.cpu().numpy()


def stands_for(request: SelectionRequest, rows: RowArray) -> NDArray[np.int64]:
    """(m,) number of unlabeled items that are nearer to each of `rows` than to the others, including itself."""
    points = space(request)
    _, positions = nearest(on_device(points[unlabeled_rows(request)]), on_device(points[rows]))
    return np.bincount(positions.cpu().numpy(), minlength=len(rows))


def outer_path(request: SelectionRequest, config: SelectionConfig, rows: RowArray) -> NDArray[np.float64] | None:
    """(m + 1,) outer loss of the proxy along the batch, on at most OUTER_ROWS unlabeled rows; None without a model."""
    if is_cold(request) or request.n_classes < 2:
        return None
    if bico.proxy_of(request, config) == "head":
        return np.array(bico.head_path(request, config, rows))
    features = bico.proxy_features(request, config)
    if features.shape[1] == 0:
        return None
    pool = sample(unlabeled_rows(request), OUTER_ROWS, request, "outer-path")
    pool = np.concatenate([rows, np.setdiff1d(pool, rows), labeled_rows(request)])
    base, base_targets = bico.base_rows(request, config, features)
    targets, weights = bico.outer_problem(request, config, pool)
    return bilevel.follow(
        on_device(base),
        base_targets,
        on_device(features[pool]),
        on_device(targets),
        np.arange(len(rows)),
        config.penalty,
        views=lambda position: bico.inner_rows(request, config, features, int(pool[position])),
        settings=bilevel.Settings(outer_weights=weights),
    )
