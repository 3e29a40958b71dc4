"""Nyström features: exact at full rank, computed once, with landmarks that are kept."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.config import KernelConfig
from core.errors import Cancelled, InvalidInput
from core.kernels import networks, ntk
from core.kernels.landmarks import choose_landmarks
from core.kernels.nystrom import KernelFeatures, Nystrom, Scope, fit, inverse_root
from core.rows import ArrayRows, MemoryRowCache
from core.types import Progress, RowCache
from storage.rounds.row_cache import FolderRowCache

CONFIG = KernelConfig(network="scnn", n_landmarks=8)


def pictures(n: int, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Noise around three prototypes."""
    generator = np.random.default_rng(seed)
    prototypes = np.random.default_rng(99).normal(size=(3, 8, 8, channels))
    noise = generator.normal(size=(n, 8, 8, channels))
    return (prototypes[generator.integers(3, size=n)] + 0.7 * noise).astype(np.float32)


def names_of(n: int, start: int = 0) -> list[str]:
    return [f"item{i}" for i in range(start, start + n)]


def all_of(rows: Any) -> np.ndarray:
    return rows.take(np.arange(len(rows)))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each call of transform."""
    counts: list[int] = []
    original = Nystrom.transform

    def counting(self: Nystrom, x: np.ndarray, on_progress: Any = None) -> np.ndarray:
        counts.append(len(x))
        return original(self, x, on_progress)

    monkeypatch.setattr(Nystrom, "transform", counting)
    return counts


@pytest.mark.parametrize("name", ["scnn", "fnn", "rbf"])
def test_features_give_the_kernel_back_when_every_item_is_a_landmark(name: str) -> None:
    x = pictures(20)
    network = networks.by_name(name)
    phi = fit(x, network, 1e-9).transform(x).astype(np.float64)
    K = ntk.kernel(x, None, network)
    np.testing.assert_allclose(phi @ phi.T, K, atol=2e-4 * float(np.abs(K).max()))


def test_near_null_directions_are_dropped_not_clipped() -> None:
    """A rank-3 matrix with rounding noise: its inverse root has rank 3 and gives the matrix back."""
    factors = np.random.default_rng(0).normal(size=(40, 3))
    K = (factors @ factors.T).astype(np.float32)
    root, spectrum = inverse_root(K, 1e-6)
    assert np.linalg.matrix_rank(root, tol=1e-9) == 3
    phi = K.astype(np.float64) @ root
    np.testing.assert_allclose(phi @ phi.T, factors @ factors.T, atol=1e-5)
    assert np.all(np.diff(spectrum) <= 0)


def test_duplicated_landmarks_lower_the_rank_and_nothing_else() -> None:
    x = pictures(6)
    twice = fit(np.concatenate([x, x]), networks.scnn(), 1e-6)
    assert twice.rank == 6
    once = fit(x, networks.scnn(), 1e-6)
    more = pictures(5, seed=1)
    products = [(phi := one.transform(more)) @ phi.T for one in (once, twice)]
    np.testing.assert_allclose(products[0], products[1], rtol=1e-3)


def test_features_of_black_and_constant_items_are_finite() -> None:
    x = np.zeros((3, 8, 8, 1), np.float32)
    x[1] = 1.0
    for name in ("scnn", "cntk6", "linear"):
        assert np.isfinite(fit(x, networks.by_name(name), 1e-6).transform(x)).all()


def test_values_that_are_not_numbers_are_refused() -> None:
    x = pictures(3)
    x[0, 0, 0, 0] = np.nan
    with pytest.raises(InvalidInput, match="not finite"):
        fit(x, networks.linear())


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_only_new_items_are_computed_when_a_pool_grows(kind: str, tmp_path: Path, computed: list[int]) -> None:
    cache: RowCache = MemoryRowCache() if kind == "memory" else FolderRowCache(tmp_path)
    x, names = pictures(12), names_of(12)
    drawn = choose_landmarks(names, ArrayRows(x), CONFIG)
    scope = Scope(landmarks=drawn, inputs_key="mel")
    before = all_of(KernelFeatures.prepare(ArrayRows(x), names, CONFIG, cache, scope).rows(ArrayRows(x), names))
    assert sum(computed) == 12
    computed.clear()
    grown, more = np.concatenate([x, pictures(5, seed=1)]), names_of(17)
    again = KernelFeatures.prepare(ArrayRows(grown), more, CONFIG, cache, scope)
    after = all_of(again.rows(ArrayRows(grown), more))
    assert sum(computed) == 5
    assert np.array_equal(after[:12], before)
    assert after.shape == (17, 8) and after.dtype == np.float32
    np.testing.assert_allclose(after[12:], again.nystrom.transform(grown[12:]), rtol=1e-4, atol=1e-6)


def test_landmarks_that_left_the_pool_still_serve_new_items() -> None:
    cache = MemoryRowCache()
    x, names = pictures(9), names_of(9)
    scope = Scope(landmarks=names[:4], inputs_key="mel")
    first = KernelFeatures.prepare(ArrayRows(x), names, CONFIG, cache, scope)
    later = KernelFeatures.prepare(ArrayRows(x[6:]), names[6:], CONFIG, cache, scope)
    assert np.array_equal(first.nystrom.root, later.nystrom.root)
    with pytest.raises(InvalidInput, match="4 landmarks are no longer in the pool"):
        KernelFeatures.prepare(ArrayRows(x[6:]), names[6:], CONFIG, MemoryRowCache(), scope)


def test_views_are_remembered_under_their_own_names(computed: list[int]) -> None:
    cache, x, names = MemoryRowCache(), pictures(6), names_of(6)
    features = KernelFeatures.prepare(ArrayRows(x), names, CONFIG, cache, Scope(landmarks=names, inputs_key="mel"))
    views = [f"item0:view{v}:warp" for v in range(3)]
    one = all_of(features.rows(ArrayRows(pictures(3, seed=5)), views))
    two = all_of(features.rows(ArrayRows(pictures(3, seed=5)), views))
    assert np.array_equal(one, two) and sum(computed) == 3


def test_other_settings_never_share_rows() -> None:
    cache, x, names = MemoryRowCache(), pictures(6), names_of(6)
    scope = Scope(landmarks=names[:3], inputs_key="mel")
    keys = {
        KernelFeatures.prepare(ArrayRows(x), names, config, cache, chosen).key
        for config, chosen in (
            (CONFIG, scope),
            (dataclasses.replace(CONFIG, network="fnn"), scope),
            (dataclasses.replace(CONFIG, tolerance=1e-4), scope),
            (CONFIG, dataclasses.replace(scope, inputs_key="other mel")),
            (CONFIG, dataclasses.replace(scope, landmarks=names[:2])),
        )
    }
    assert len(keys) == 5


def test_landmarks_are_drawn_by_seed_without_repeats() -> None:
    x, names = ArrayRows(pictures(30)), [*names_of(29), "item0"]
    for method in ("uniform", "leverage"):
        config = dataclasses.replace(CONFIG, landmarks=method)
        drawn = choose_landmarks(names, x, config)
        assert len(set(drawn)) == 8 and drawn == choose_landmarks(names, x, config)
        assert drawn != choose_landmarks(names, x, dataclasses.replace(config, landmark_seed=1))
    assert sorted(choose_landmarks(names[:5], x, CONFIG)) == sorted(names[:5])
    assert choose_landmarks(names, x, CONFIG, existing=["item3"]) == ("item3",)
    with pytest.raises(InvalidInput, match="no items to draw landmarks from"):
        choose_landmarks([], ArrayRows(pictures(0)), CONFIG)


def test_leverage_scores_prefer_rare_items() -> None:
    generator = np.random.default_rng(0)
    common = np.repeat(generator.normal(size=(1, 8, 8, 1)), 57, axis=0) + 0.01 * generator.normal(size=(57, 8, 8, 1))
    x = np.concatenate([common, 2 * generator.normal(size=(3, 8, 8, 1))]).astype(np.float32)
    rare = set(names_of(3, 57))
    found = {"uniform": 0, "leverage": 0}
    for method in found:
        for seed in range(6):
            config = KernelConfig(network="linear", n_landmarks=6, landmarks=method, landmark_seed=seed)
            found[method] += len(rare & set(choose_landmarks(names_of(60), ArrayRows(x), config)))
    assert found["leverage"] >= 14 > found["uniform"]


def test_more_landmarks_give_a_smaller_error() -> None:
    x, network = pictures(60), networks.scnn()
    exact = ntk.kernel(x[:32], None, network).astype(np.float64)
    errors = []
    for q in (4, 16, 40, 60):
        phi = fit(x[60 - q :], network, 1e-9).transform(x[:32]).astype(np.float64)
        errors.append(np.linalg.norm(exact - phi @ phi.T) / np.linalg.norm(exact))
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-4


def test_progress_is_reported_and_a_cancel_keeps_finished_blocks(computed: list[int]) -> None:
    cache, x, names = MemoryRowCache(), pictures(20), names_of(20)
    cache.block = 6
    features = KernelFeatures.prepare(ArrayRows(x), names, CONFIG, cache, Scope(landmarks=names[:4], inputs_key="m"))
    seen: list[Progress] = []

    def cancel_after_two(progress: Progress) -> None:
        seen.append(progress)
        if progress.done >= 12:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        features.rows(ArrayRows(x), names, cancel_after_two)
    assert {p.stage for p in seen} == {"features"} and seen[-1].total == 20
    computed.clear()
    assert len(features.rows(ArrayRows(x), names)) == 20
    assert sum(computed) == 8


def test_the_factorization_reports_while_it_runs_and_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, reported = threading.Event(), threading.Event()

    def until_reported(K: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
        runs.set()
        assert reported.wait(180), "nothing was reported while it ran"
        return inverse_root(K, tolerance)

    monkeypatch.setattr("core.kernels.nystrom.inverse_root", until_reported)
    fit(pictures(4), networks.linear(), on_progress=lambda done, total: reported.set() if runs.is_set() else None)
    assert reported.is_set()
    runs.clear()
    reported.clear()

    def stop(done: int, total: int) -> None:
        if runs.is_set():
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        fit(pictures(4), networks.linear(), on_progress=stop)
    reported.set()  # lets the abandoned thread end


def test_another_device_takes_the_torch_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device replaces a GPU: the test checks that kernels are computed on it, in float32."""
    asked: list[tuple[str, torch.dtype]] = []

    def on_meta(x1: torch.Tensor, x2: torch.Tensor | None, *rest: Any, **named: Any) -> torch.Tensor:
        asked.append((x1.device.type, x1.dtype))
        second = x1 if x2 is None else x2
        return torch.eye(len(x1), len(second))

    monkeypatch.setattr("core.kernels.nystrom.kernel", on_meta)
    nystrom = fit(pictures(3), networks.scnn(), device=torch.device("meta"))
    assert nystrom.transform(pictures(2)).shape == (2, 3)
    assert asked == [("meta", torch.float32)] * 2
