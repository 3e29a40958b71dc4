"""Exports of summaries: a subset of the labeled items with weights, and how the subset was selected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import Conflict
from storage.exporting.rows import ExportItem

WEIGHT = "weight"  # the column


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportWeights:
    """The items of a summary. Only these are exported, with `weight` as the last column."""

    weights: Mapping[str, float]  # sha256 of the item -> weight
    labels: Mapping[str, str]  # sha256 -> the label at the time of the summary
    about: Mapping[str, Any] = field(default_factory=dict)  # for the manifest: settings and measured accuracy

    def chosen(self, rows: Iterable[ExportItem]) -> Iterator[ExportItem]:
        """The rows of the summary, with their weights."""
        for item in rows:
            weight = self.of(item.values["sha256"], item.values["label"])
            if weight is not None:
                item.values[WEIGHT] = weight
                yield item

    def of(self, sha256: str, label: str) -> float | None:
        """The item's weight; None if it is not part of the summary. Raises Conflict if its label has changed since."""
        if sha256 not in self.weights:
            return None
        if self.labels[sha256] != label:
            raise Conflict(
                f"An item of the summary was {self.labels[sha256]!r} when the summary was made and is {label!r} now. "
                "Nothing was exported. Make the summary again."
            )
        return self.weights[sha256]
