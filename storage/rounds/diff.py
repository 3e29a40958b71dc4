"""Two rounds compared: accuracy on the same test items, changed predictions, results by class, changed settings.

The rounds are compared on items that were test items with a known label in both, so the difference is paired. Its
interval is that of Bonett and Price (2012): with b and c items that only one of the rounds predicts correctly among n,
    p1 = (b + 1) / (n + 2),  p2 = (c + 1) / (n + 2),  (p2 - p1) +- z sqrt((p1 + p2 - (p2 - p1)^2) / (n + 2)),
and the p-value is that of the exact test of McNemar. Test items are compared by the predictions that the accuracy of a
round is measured on, which are those of the network alone. If one of the rounds is of an earlier version, which did not
store them, both are compared by the predictions that they show.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput, NotFound
from core.types import UNLABELED
from storage.database.store import Store
from storage.projects import class_rows, classes
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.names import round_names, title_of

Z = 1.96
MOST_CHANGES = 10  # pairs of classes that are listed
BLOCK = 100_000  # rows of probabilities read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """Test items of one class, and how many each round predicts correctly."""

    name: str
    n: int
    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedAccuracy:
    """Accuracy of two rounds on the same n test items."""

    n: int
    first: int  # correct
    second: int
    only_first: int  # correct in the first round alone
    only_second: int
    interval: tuple[float, float]  # of the difference second - first, 95 %
    p_value: float  # exact McNemar test

    @property
    def difference(self) -> float:
        return (self.second - self.first) / self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDiff:
    first: str  # number and name
    second: str
    accuracy: PairedAccuracy | None  # None without common test items
    per_class: tuple[ClassResult, ...]
    n_compared: int  # items without a label in both rounds
    n_changed: int  # of these, items with another prediction
    changes: tuple[tuple[str, str, int], ...]  # (class before, class after, items), most frequent first
    n_labeled: tuple[int, int]
    settings: dict[str, tuple[Any, Any]]  # name -> values that differ


def compare_rounds(store: Store, project_id: int, first: RoundRow, second: RoundRow) -> RoundDiff:
    """The differences between `first` and `second`. Raises InvalidInput if a round has no predictions of a model."""
    names = round_names(store, project_id)
    a, b = (_RoundResults(store, row) for row in (first, second))
    _, at_a, at_b = np.intersect1d(a.item_ids, b.item_ids, assume_unique=True, return_indices=True)
    class_names = {row.id: row.name for row in classes.list_classes(store, project_id, True)}
    test = a.is_test[at_a] & b.is_test[at_b]
    open_items = ~a.labeled[at_a] & ~b.labeled[at_b]
    before, after = a.predicted[at_a], b.predicted[at_b]
    truth = b.truth[at_b][test]
    both = (a.alone, b.alone) if a.alone is not None and b.alone is not None else (a.predicted, b.predicted)
    measured_before, measured_after = both[0][at_a][test], both[1][at_b][test]
    n_changed, changes = _changes(before[open_items], after[open_items], class_names)
    return RoundDiff(
        first=title_of(first, names),
        second=title_of(second, names),
        accuracy=paired_accuracy(measured_before == truth, measured_after == truth) if test.any() else None,
        per_class=_per_class(truth, measured_before, measured_after, class_names),
        n_compared=int(open_items.sum()),
        n_changed=n_changed,
        changes=changes,
        n_labeled=(first.n_labeled, second.n_labeled),
        settings=_changed_settings(first, second),
    )


def paired_accuracy(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> PairedAccuracy:
    """The comparison of two rounds, given whether each predicts each of the same n items correctly."""
    n = len(first)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    p1, p2 = (only_first + 1) / (n + 2), (only_second + 1) / (n + 2)
    half = Z * math.sqrt((p1 + p2 - (p2 - p1) ** 2) / (n + 2))
    return PairedAccuracy(
        n=n,
        first=int(first.sum()),
        second=int(second.sum()),
        only_first=only_first,
        only_second=only_second,
        interval=(max(-1.0, p2 - p1 - half), min(1.0, p2 - p1 + half)),
        p_value=exact_mcnemar(only_first, only_second),
    )


def exact_mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided p-value: the probability of a split at least this uneven if both rounds are equally accurate."""
    n, fewer = only_first + only_second, min(only_first, only_second)
    logs = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(fewer + 1))
    return min(1.0, 2 * math.fsum(math.exp(one - n * math.log(2)) for one in logs))


class _RoundResults:
    """Predictions, labels and test labels of a round as current class ids, one entry per item."""

    def __init__(self, store: Store, row: RoundRow) -> None:
        if row.status != "finished" or not row.metrics.get("has_model"):
            raise InvalidInput(f"Round {row.number} has no predictions of a model, so it cannot be compared.")
        log = RoundLog(store, row.project_id)
        with store.read() as connection:
            known = class_rows.rows_as_of(connection, row.project_id, row.class_event)
        now = class_rows.counts_as(classes.list_classes(store, row.project_id, True))
        columns = np.array([now.get(one.id, one.id) for one in known if one.active], np.int64)
        with np.load(log.file(row.id, "snapshot"), allow_pickle=False) as snapshot:
            held_out_labels, labels = snapshot["held_out_labels"], snapshot["labels"]
        self.item_ids = np.asarray(log.arrays(row.id, "item_ids"))
        self.is_test = held_out_labels != UNLABELED
        self.labeled = labels != UNLABELED
        self.truth = np.where(self.is_test, columns[held_out_labels], 0)
        self.predicted = columns[_most_probable(log.arrays(row.id, "probabilities"))]
        self.alone = self._alone(log, row, columns)  # (n,) predictions, on test items those of the network alone

    def _alone(self, log: RoundLog, row: RoundRow, columns: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """`predicted` with the network's own predictions on test items; None if some of these were not stored."""
        try:
            items = np.asarray(log.arrays(row.id, "test_item_ids"))
            predicted = columns[_most_probable(log.arrays(row.id, "test_predictions"))]
        except NotFound:
            return None
        order = np.argsort(self.item_ids)
        places = np.minimum(np.searchsorted(self.item_ids, items, sorter=order), len(order) - 1)
        rows = order[places]
        if not np.array_equal(self.item_ids[rows], items) or not np.isin(np.flatnonzero(self.is_test), rows).all():
            return None
        found = self.predicted.copy()
        found[rows] = predicted
        return found


def _most_probable(probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
    """(n,) most probable columns; the array is memory-mapped and read in blocks."""
    starts = range(0, len(probabilities), BLOCK)
    parts = [np.asarray(probabilities[start : start + BLOCK]).argmax(1) for start in starts]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _per_class(
    truth: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64], names: dict[int, str]
) -> tuple[ClassResult, ...]:
    results = []
    for class_id in (one for one in names if one in set(truth.tolist())):
        rows = truth == class_id
        correct = (int((one[rows] == class_id).sum()) for one in (before, after))
        first, second = correct
        results.append(ClassResult(name=names[class_id], n=int(rows.sum()), first=first, second=second))
    return tuple(results)


def _changes(
    before: NDArray[np.int64], after: NDArray[np.int64], names: dict[int, str]
) -> tuple[int, tuple[tuple[str, str, int], ...]]:
    changed = before != after
    if not changed.any():
        return 0, ()
    pairs, counts = np.unique(np.stack([before[changed], after[changed]], 1), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_CHANGES]
    listed = [(names.get(int(pairs[k, 0]), "?"), names.get(int(pairs[k, 1]), "?"), int(counts[k])) for k in order]
    return int(changed.sum()), tuple(listed)


def _changed_settings(first: RoundRow, second: RoundRow) -> dict[str, tuple[Any, Any]]:
    a, b = (_flat(row.metrics.get("settings") or dataclasses.asdict(row.config)) for row in (first, second))
    return {name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
