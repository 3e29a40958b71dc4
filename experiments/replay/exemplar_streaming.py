"""Exemplar streaming, the memory of Hayes, Cahill and Kanan (2019): cluster centers by class.

Every class has a buffer of `per_class` centers with the number of rows that each represents. A new row becomes a
center of its class with the count 1. When the buffer is full, its two closest centers are merged first,

    center = (c_i center_i + c_j center_j) / (c_i + c_j),   count = c_i + c_j

so the memory has means of rows, not rows. The centers are replayed with equal weights, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class ExemplarStreaming:
    """Centers of every class seen so far."""

    per_class: int
    centers: dict[int, Tensor] = field(default_factory=dict)  # class -> (k, ...)
    counts: dict[int, Tensor] = field(default_factory=dict)  # class -> (k,)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Rows of the stream in their order."""
        for row, label in zip(x, y.tolist(), strict=True):
            centers = self.centers.get(label, row[None][:0])
            counts = self.counts.get(label, torch.zeros(0))
            if len(centers) == self.per_class:
                centers, counts = merge_closest(centers, counts)
            self.centers[label] = torch.cat([centers, row[None]])
            self.counts[label] = torch.cat([counts, torch.ones(1)])

    @property
    def memory(self) -> tuple[Tensor, Tensor]:
        """(inputs, labels) of all classes."""
        labels = [torch.full((len(centers),), label) for label, centers in self.centers.items()]
        return torch.cat(list(self.centers.values())), torch.cat(labels)


def merge_closest(centers: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce the centers by one: the two with the smallest distance become their weighted mean, which comes first. A
    single center is dropped, because the new row replaces it."""
    if len(centers) == 1:
        return centers[:0], counts[:0]
    flat = centers.flatten(1)
    distances = torch.cdist(flat, flat)
    distances.fill_diagonal_(torch.inf)
    i, j = divmod(int(distances.argmin()), len(centers))
    total = counts[i] + counts[j]
    merged = (counts[i] * centers[i] + counts[j] * centers[j]) / total
    rest = [k for k in range(len(centers)) if k not in (i, j)]
    return torch.cat([merged[None], centers[rest]]), torch.cat([total[None], counts[rest]])
