"""A summary as an export: some of the labeled items, each with its weight, and how they were chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import Conflict
from storage.exporting.rows import ExportItem

WEIGHT = "weight"  # the column


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportWeights:
    """Only these items are exported, with `weight` as a column of its own after all others."""

    weights: Mapping[str, float]  # sha256 of the item -> weight
    labels: Mapping[str, str]  # sha256 -> the label that the summary was made with
    about: Mapping[str, Any] = field(default_factory=dict)  # for the manifest: how it was made, and what it is worth

    def chosen(self, rows: Iterable[ExportItem]) -> Iterator[ExportItem]:
        """The rows of the summary, with their weights."""
        for item in rows:
            weight = self.of(item.values["sha256"], item.values["label"])
            if weight is not None:
                item.values[WEIGHT] = weight
                yield item

    def of(self, sha256: str, label: str) -> float | None:
        """The item's weight; None when it is not part of the summary. Refuses a label that changed meanwhile."""
        if sha256 not in self.weights:
            return None
        if self.labels[sha256] != label:
            raise Conflict(
                f"An item of the summary was {self.labels[sha256]!r} when the summary was made and is {label!r} now. "
                "Nothing was exported. Make the summary again."
            )
        return self.weights[sha256]
