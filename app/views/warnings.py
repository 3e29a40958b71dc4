"""Warnings about labels and predictions: short sentences, each with what to do. No Streamlit in here.

The rules: a class with one or two labels while others have five times as many; a class with less than half of an even
share of the predictions, and at most 5 %; labels that contradict a confident prediction of a model trained without
them; annotators who disagree on items with several labels. (A class without labels is reported beside the counts.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.views.predictions import newest_predictions
from app.views.review_cases import conflicts
from app.views.text import count
from storage.database.store import Store
from storage.labeling import agreement
from storage.labeling.pool import ItemFilter, Pool
from storage.projects.class_rows import ClassRow
from storage.projects.classes import list_classes

FEW, MANY_TIMES = 2, 5
RARE_SHARE = 0.05
SUSPECT_SHARE, SUSPECT_AT_LEAST = 0.05, 3
SHOWN = 5


def label_warnings(store: Store, project_id: int) -> list[str]:
    """The warnings that apply to a project now, in the order of the rules."""
    active = [row for row in list_classes(store, project_id) if row.active]
    pool = Pool(store, project_id)
    per_class = pool.counts().per_class
    labels = [per_class.get(row.id, 0) for row in active]
    sentences = [
        _few_labels(active, labels),
        _rarely_predicted(active, _predicted_shares(store, project_id, active)),
        _contradicted(len(conflicts(store, project_id)), sum(labels)),
        _differing(len(agreement.disagreements(store, project_id)), pool.count_items(ItemFilter(state="contested"))),
    ]
    return [sentence for sentence in sentences if sentence]


def _few_labels(active: Sequence[ClassRow], labels: Sequence[int]) -> str:
    most = max(labels, default=0)
    few = [row.name for row, n in zip(active, labels, strict=True) if 0 < n <= FEW and most >= MANY_TIMES * n]
    return (
        f"Only one or two labels for {_names(few)}, up to {most:,} for other classes. Label more of them."
        if few
        else ""
    )


def _predicted_shares(store: Store, project_id: int, active: Sequence[ClassRow]) -> NDArray[np.float64] | None:
    """Share of the items predicted as each class; None before the first model."""
    found = newest_predictions(store, project_id)
    if found is None or not found.round.metrics.get("has_model") or len(active) < 2:
        return None
    best = found.best_classes(list_classes(store, project_id, True))
    if best is None or not len(best.predicted):
        return None
    predicted = np.bincount(best.predicted, minlength=len(active))
    return np.asarray(predicted / len(best.predicted), np.float64)


def _rarely_predicted(active: Sequence[ClassRow], shares: NDArray[np.float64] | None) -> str:
    if shares is None:
        return ""
    limit = min(RARE_SHARE, 0.5 / len(active))
    rare = [row.name for row, share in zip(active, shares, strict=True) if share < limit]
    if not rare:
        return ""
    return (
        f"Less than {100 * limit:.0f} % of the items are predicted as {_names(rare)}. The class is rare, or the model "
        "has not learned it. Find examples in the grid and label a few."
    )


def _contradicted(n: int, n_labels: int) -> str:
    if n < max(SUSPECT_AT_LEAST, SUSPECT_SHARE * n_labels):
        return ""
    return f"{n:,} of {count(n_labels, 'label')} contradict a confident prediction. Check them in Review."


def _differing(n: int, n_twice: int) -> str:
    if n < max(SUSPECT_AT_LEAST, SUSPECT_SHARE * n_twice):
        return ""
    return f"Annotators disagree on {n:,} of {count(n_twice, 'item')} with several labels. Decide them in Review."


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
