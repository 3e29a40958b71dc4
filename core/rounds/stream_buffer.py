"""The candidates of a pool that keeps growing: merge-reduce over the stream, reduced by experimental design.

    slots    `N_SLOTS` slots and the current batch have at most `size` items together. Each batch of the stream fills
             one slot. If there is one slot too many, two are joined and reduced to one
             (`core.coresets.library.streaming`, Algorithm 3)
    reduce   Bayesian V-optimal design on the kernel features of the given rows, centered and of length 1. Each row has
             the weight of the items that it represents (`core.coresets.design`). The selected items are those whose
             answers would leave the least variance over the whole stream so far

No labels, pseudo-labels or models are used, so the buffer is the same before and after the first label. The selection
is balanced: k answers in a cluster with the share p of the stream leave a variance of about p / k there. The total is
least for k ~ sqrt(p), whereas a uniform sample has k ~ p.

Memory and cost: a reduction reads two slots, at most 2 size / (N_SLOTS + 1) rows, however long the stream is.
At most `MOST_LANDMARKS` landmarks are drawn among these rows, so the features follow the stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from core.acquisition.geometry import centered_unit
from core.config import KernelConfig, MediaConfig
from core.coresets import design
from core.coresets.library.streaming import MergeReduce, Slot
from core.kernels import landmarks
from core.kernels.nystrom import KernelFeatures, Scope
from core.media.inputs import prepare
from core.rows import MemoryRowCache
from core.types import MediaKind, MediaReader, RowCache

N_SLOTS = 8
MOST_LANDMARKS = 256
PRIOR = design.Prior(penalty=1.0, noise=0.01)

Features = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Item ids (k,) -> their kernel features (k, q)."""


def slot_size(size: int) -> int:
    """Items of one slot and of one batch of the stream: the slots and the current batch together have `size` items."""
    return max(1, size // (N_SLOTS + 1))


def select_by_design(features: NDArray[np.float32], stands_for: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """(size,) rows of features (k, q): the V-optimal design of that size."""
    Z = centered_unit(torch.as_tensor(features).double())
    if Z.shape[1] == 0 or not bool(Z.any()):
        Z = torch.ones(len(features), 1, dtype=torch.float64)
    return design.greedy(Z, size, PRIOR, stands_for=stands_for).rows


def add_batch(slots: Sequence[Slot], batch: NDArray[np.int64], size: int, features: Features) -> list[Slot]:
    """The buffer after one more batch of the stream: at most `N_SLOTS * slot_size(size)` items."""

    def reduce(rows: NDArray[np.int64], stands_for: NDArray[np.float64], wanted: int) -> NDArray[np.int64]:
        return select_by_design(features(rows), stands_for, wanted)

    buffer = MergeReduce(N_SLOTS, slot_size(size), reduce, list(slots), rule="fewest")
    buffer.add(batch)
    return buffer.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureExtractor:
    """The kernel features of items for the buffer: the project's kernel, on landmarks of the buffer."""

    kind: MediaKind
    media: MediaConfig
    kernel: KernelConfig
    read: MediaReader
    cache: RowCache  # of decoded inputs, shared with rounds; features are not cached
    device: torch.device

    def features(self, hashes: Sequence[str]) -> NDArray[np.float32]:
        """(k, q) kernel features of the items with these `hashes`; unreadable ones count as blank inputs."""
        inputs = prepare(hashes, self.read, self.kind, self.media, self.cache)
        kernel = dataclasses.replace(self.kernel, n_landmarks=min(self.kernel.n_landmarks, MOST_LANDMARKS))
        drawn = landmarks.choose_landmarks(inputs.names, inputs.clean, kernel)
        scope = Scope(landmarks=drawn, inputs_key=inputs.key, device=self.device)
        made = KernelFeatures.prepare(inputs.clean, inputs.names, kernel, MemoryRowCache(), scope)
        return np.asarray(made.rows(inputs.clean, inputs.names).take(np.arange(len(hashes))), np.float32)
