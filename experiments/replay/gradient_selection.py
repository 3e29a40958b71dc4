"""Gradient-based sample selection of a stream (Aljundi, Lin, Goujaud and Bengio, 2019, Algorithm 2, "GSS-Greedy").

The memory keeps rows whose loss gradients point in different directions. A new row with gradient g has the score

    c = 1 + max over r random rows of the memory of cos(g, g_j)

While there is room, the row is added with its score. In a full memory a row with c < 1 (its gradient has an obtuse
angle to all compared ones) challenges the row i, drawn with probability C_i / sum C, and replaces it with probability
C_i / (C_i + c). The first row has no row to compare with; its score is 1.1, as in the authors' code.

Gradients are of all parameters of the model at the time when the rows arrive. Those of the memory are computed once for
all rows of a call, which the algorithm does row by row with the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

FIRST_SCORE = 1.1


def row_gradients(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(n, p) the loss gradient of every row in all parameters, without dropout."""
    model.eval()
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (row[None],)), label[None])

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return torch.cat([value.flatten(1) for value in found.values()], 1)


def gradient_cosines(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(n, n) cosines of the rows' gradients."""
    unit = torch.nn.functional.normalize(row_gradients(model, x, y), dim=1)
    return unit @ unit.T


@dataclass(slots=True)
class GradientSelection:
    """At most `capacity` rows of a stream; `compared` is the number of memory rows in a score."""

    capacity: int
    generator: np.random.Generator
    compared: int = 10
    kept: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def add(self, rows: NDArray[np.int64], cosines: Tensor) -> None:
        """`cosines` are those of the gradients of the rows in memory, in its order, and of `rows` (k,) after them."""
        place = list(range(len(self.kept)))  # position in `cosines` of each row in memory
        known = cosines.numpy()
        for new, row in enumerate(rows.tolist(), start=len(self.kept)):
            score = self._score(known[new, place])
            if len(self.kept) < self.capacity:
                self.kept.append(row)
                self.scores.append(score)
                place.append(new)
            elif (at := self._replaced(score)) is not None:
                self.kept[at], self.scores[at], place[at] = row, score, new

    def _score(self, cosines: NDArray[np.float32]) -> float:
        if not len(cosines):
            return FIRST_SCORE
        some = self.generator.permutation(len(cosines))[: self.compared]
        return 1.0 + float(cosines[some].max())

    def _replaced(self, score: float) -> int | None:
        """The position that the new row takes, if any."""
        if score >= 1:
            return None
        own = np.maximum(np.array(self.scores), 1e-12)
        at = int(self.generator.choice(len(own), p=own / own.sum()))
        return at if self.generator.random() < own[at] / (own[at] + score) else None

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.array(self.kept, dtype=np.int64)
