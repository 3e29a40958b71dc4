"""Nyström features of a kernel, computed once per item.

    phi(x) = k(x, Q) K_QQ^(-1/2)         so that  <phi(x), phi(x')>  is about  k(x, x')

Q are the landmarks (q of them). K_QQ is factorized in float64. Directions whose eigenvalue is below `tolerance` times
the largest are dropped (their inverse root is zero), because dividing by a rounding error yields noise. The symmetric
root is used rather than eigenvectors: it does not depend on their signs or on the basis of near-equal ones, so rows
computed later or by another process match existing rows. phi has q columns, and its rank is at most the number of
directions that are kept.

Cached rows (`core.types.RowCache`): the key is (network, key of the inputs, landmarks); the rows are the landmarks'
inputs, the root and one row of features per name. A name is an item's hash, or that of an augmented view such as
"<hash>:view3:<settings>". When a pool grows, only new rows are computed. `core.kernels.landmarks` states when landmarks
are drawn again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from core.config import KernelConfig
from core.errors import InvalidInput
from core.kernels.fused import OnProgress, Side, fused_kernel, prepare_side
from core.kernels.networks import AnyNetwork, Network, by_name
from core.kernels.ntk import kernel
from core.types import Progress, Report, RowCache, Rows, ignore

VERSION = 1  # of this computation; increase it if the same settings give other numbers
_REPORT_SECONDS = 0.2
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Nystrom:
    """A fitted feature map. `spectrum` holds the eigenvalues of K_QQ, largest first."""

    network: AnyNetwork
    landmarks: NDArray[np.float32]  # (q, H, W, C)
    root: NDArray[np.float64]  # (q, q) symmetric
    spectrum: NDArray[np.float64]  # (q,)
    tolerance: float
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _ready: list[Side] = field(default_factory=list, repr=False)  # the landmarks, prepared at the first transform

    @property
    def rank(self) -> int:
        """The number of directions that are kept."""
        return int((self.spectrum > self.tolerance * max(float(self.spectrum[0]), 0.0)).sum())

    def transform(self, x: NDArray[Any], on_progress: OnProgress | None = None) -> NDArray[np.float32]:
        """(n, q) features of images (n, H, W, C)."""
        return (self.against_landmarks(x, on_progress).astype(np.float64) @ self.root).astype(np.float32)

    def against_landmarks(self, x: NDArray[Any], on_progress: OnProgress | None = None) -> NDArray[np.float32]:
        """(n, q) kernel entries k(x, Q)."""
        x = np.asarray(x, np.float32)
        if self.device.type != "cpu" or not isinstance(self.network, Network):
            return _on_device(x, self.landmarks, self.network, self.device)
        if not self._ready:
            self._ready.append(prepare_side(self.landmarks, self.network))
        return fused_kernel(x, self._ready[0], self.network, on_progress=on_progress)


def fit(
    landmarks: NDArray[Any],
    network: AnyNetwork,
    tolerance: float = 1e-6,
    device: torch.device | None = None,
    on_progress: OnProgress | None = None,
) -> Nystrom:
    """The feature map of these landmark images (q, H, W, C)."""
    device = device or torch.device("cpu")
    landmarks = np.asarray(landmarks, np.float32)
    if not len(landmarks):
        raise InvalidInput("A kernel approximation needs at least one landmark.")
    if device.type == "cpu" and isinstance(network, Network):
        K = fused_kernel(landmarks, None, network, on_progress=on_progress)
    else:
        K = _on_device(landmarks, None, network, device)
    if not np.isfinite(K).all():
        raise InvalidInput(
            "The kernel of the landmarks is not finite: their inputs contain values that are not numbers."
        )
    root, spectrum = _run_with_progress(lambda: inverse_root(K, tolerance), on_progress)
    return Nystrom(network, landmarks, root, spectrum, tolerance, device)


def inverse_root(K: NDArray[Any], tolerance: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """K^(-1/2) on the directions above tolerance * largest eigenvalue, zero on the others; eigenvalues, descending."""
    K64 = np.asarray(K, np.float64)
    values, vectors = np.linalg.eigh((K64 + K64.T) / 2)
    kept = values > tolerance * max(float(values[-1]), 0.0)
    scaled = vectors[:, kept] / np.sqrt(np.sqrt(values[kept]))  # so that the product below is exactly symmetric
    return scaled @ scaled.T, values[::-1].copy()


def _run_with_progress(work: Callable[[], Result], on_progress: OnProgress | None) -> Result:
    """The result of a long call that reports no progress; `on_progress` is called while it runs and may raise to
    cancel."""
    if on_progress is None:
        return work()
    pool = ThreadPoolExecutor(1, thread_name_prefix="factorize")
    try:
        future = pool.submit(work)
        while not wait([future], timeout=_REPORT_SECONDS).done:
            on_progress(1, 1)
        return future.result()
    finally:
        pool.shutdown(wait=False)


class KernelFeatures:
    """Nyström features of one pool, one network and one set of landmarks, computed once per name."""

    def __init__(self, nystrom: Nystrom, names: tuple[str, ...], cache: RowCache, key: str) -> None:
        self.nystrom = nystrom
        self.landmarks = names
        self.cache = cache
        self.key = key

    @classmethod
    def prepare(
        cls,
        inputs: Rows,
        names: Sequence[str],
        config: KernelConfig,
        cache: RowCache,
        scope: Scope,
        report: Report = ignore,
    ) -> KernelFeatures:
        """Fit the feature map for `scope.landmarks`, or read it from the cache.

        inputs: (n, H, W, C) with one name per row. Every landmark must be among the names or have its input cached.
        """
        network = by_name(config.network, block_size=config.block_size)
        chosen = tuple(scope.landmarks)
        identity = json.dumps([VERSION, network.identity(), scope.inputs_key, config.tolerance, chosen])
        key = f"nystrom/{network.name}/{hashlib.sha256(identity.encode()).hexdigest()[:24]}"
        rows = {name: row for row, name in enumerate(names)}
        stored = cache.rows(f"{key}/landmarks", chosen, lambda positions: _inputs_of(chosen, positions, rows, inputs))
        images = stored.take(np.arange(len(chosen)))
        progress = _ProgressByRows("landmarks", len(chosen), report)
        fitted: list[Nystrom] = []

        def factors(positions: Sequence[int]) -> NDArray[np.float64]:
            fitted.append(fit(images, network, config.tolerance, scope.device, progress.of_block(0, len(chosen))))
            return np.concatenate([fitted[0].root, fitted[0].spectrum[None]])[None]

        both = cache.rows(f"{key}/root", ["root"], factors).take(np.array([0]))[0]
        device = scope.device or torch.device("cpu")
        return cls(Nystrom(network, images, both[:-1], both[-1], config.tolerance, device), chosen, cache, key)

    def rows(self, inputs: Rows, names: Sequence[str], report: Report = ignore, stage: str = "features") -> Rows:
        """(n, q) features, row i for names[i]; only names missing from the cache are computed, block by block."""
        progress = _ProgressByRows(stage, len(names), report)

        def compute(positions: Sequence[int]) -> NDArray[np.float32]:
            images = inputs.take(np.asarray(positions, np.int64))
            return self.nystrom.transform(images, progress.of_block(progress.done, len(positions)))

        return self.cache.rows(f"{self.key}/features", names, compute, progress.follow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The values that identify features besides the kernel's settings."""

    landmarks: Sequence[str]  # names, from `core.kernels.landmarks`
    inputs_key: str  # identifies the settings that the inputs were made with
    device: torch.device | None = None  # None: the CPU


def _inputs_of(
    chosen: Sequence[str], positions: Sequence[int], rows: dict[str, int], inputs: Rows
) -> NDArray[np.float32]:
    missing = [chosen[p] for p in positions if chosen[p] not in rows]
    if missing:
        raise InvalidInput(
            f"{len(missing)} landmarks are no longer in the pool (such as {missing[0]}) and their inputs were not "
            "stored. Change the landmark seed to draw new ones."
        )
    return np.asarray(inputs.take(np.array([rows[chosen[p]] for p in positions], np.int64)), np.float32)


def _on_device(
    x1: NDArray[np.float32], x2: NDArray[np.float32] | None, network: AnyNetwork, device: torch.device
) -> NDArray[np.float32]:
    left = torch.from_numpy(np.ascontiguousarray(x1)).to(device)
    right = None if x2 is None else torch.from_numpy(np.ascontiguousarray(x2)).to(device)
    return np.asarray(kernel(left, right, network, backend="torch").cpu().numpy(), np.float32)


class _ProgressByRows:
    """Converts progress by tiles and by blocks into progress by rows, at most a few times a second."""

    def __init__(self, stage: str, total: int, report: Report) -> None:
        self.stage, self.total, self.report = stage, total, report
        self.done = 0
        self._last = 0.0

    def of_block(self, before: int, n_rows: int) -> Callable[[int, int], None]:
        def tiles(done: int, total: int) -> None:
            if time.monotonic() - self._last >= _REPORT_SECONDS:
                self._report_rows(before + n_rows * done // total)

        return tiles

    def follow(self, done: int, total: int) -> None:
        """Progress callback of the cache, called after each block of missing rows."""
        self.done, self.total = done, total
        self._report_rows(done)

    def _report_rows(self, done: int) -> None:
        self._last = time.monotonic()
        self.report(Progress(self.stage, done, self.total, "kernel entries"))
