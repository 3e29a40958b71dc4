"""Functions that strategies share: rows and tensors of a request, seeded samples, and the `Selection` they return."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.runtime import default_device, seed_for
from core.types import PickReason, Selection, SelectionRequest

RowArray = NDArray[np.int64]


def is_cold(request: SelectionRequest) -> bool:
    """True before the first model: probabilities and embeddings are uninformative."""
    return not request.has_model or not request.labeled.any()


def candidate_rows(request: SelectionRequest) -> RowArray:
    """Rows that may be chosen, ascending."""
    return np.flatnonzero(request.eligible & ~request.labeled)


def labeled_rows(request: SelectionRequest) -> RowArray:
    return np.flatnonzero(request.labeled)


def unlabeled_rows(request: SelectionRequest) -> RowArray:
    return np.flatnonzero(~request.labeled)


def space(request: SelectionRequest) -> NDArray[np.float32]:
    """(n, e) vectors between which distances are measured: embeddings of the model, or kernel features before the first
    model."""
    if is_cold(request) or request.embeddings.shape[1] == 0:
        return request.features
    return request.embeddings


def on_device(array: NDArray[np.floating] | NDArray[np.bool_] | RowArray) -> Tensor:
    return torch.as_tensor(array, device=default_device())


def generator(request: SelectionRequest, purpose: str) -> np.random.Generator:
    return np.random.default_rng(seed_for(request.seed, purpose))


def sample(rows: RowArray, limit: int, request: SelectionRequest, purpose: str) -> RowArray:
    """All of `rows`, or a seeded sample of `limit` of them, ascending."""
    if len(rows) <= limit:
        return rows
    return np.sort(generator(request, purpose).choice(rows, limit, replace=False))


def sampled_note(what: str, used: int, of: int) -> tuple[str, ...]:
    """A note when a sample was used instead of all items, else nothing."""
    return () if used >= of else (f"{what}: a seeded sample of {used:,} of {of:,} items.",)


def draft(
    request: SelectionRequest,
    strategy: str,
    rows: Sequence[int] | RowArray,
    scores: Sequence[float] | NDArray[np.floating],
    notes: tuple[str, ...] = (),
    reasons: tuple[PickReason, ...] = (),
) -> Selection:
    """The selection of `rows` in order; reasons common to all strategies are added by the registry."""
    return Selection(
        item_ids=request.item_ids[np.asarray(rows, np.int64)],
        scores=np.asarray(scores, np.float32),
        strategy=strategy,
        reasons=reasons,
        notes=notes,
    )
