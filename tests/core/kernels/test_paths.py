"""Properties of the kernels, and agreement of the two paths where no golden value exists."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from core import numba_compilation
from core.errors import Cancelled, InvalidInput
from core.kernel_names import KERNEL_NETWORKS
from core.kernels import loops, networks, ntk
from core.kernels.fused import fused_kernel, prepare_side
from core.kernels.networks import AveragePool, Conv, Dense, Flatten, GlobalAveragePool, Network, Relu, Residual
from tests.core.fake_cuda import fake_cuda

COMPILES = pytest.mark.slow  # in a fresh clone numba compiles the fused loops, for 12 s
EVERY = {name: networks.by_name(name, block_size=1) for name in networks.NAMES}
POOL_THEN_FLATTEN = Network("odd", (Conv(3, 1, 1.3, 0.2), Relu(), AveragePool(2), Conv(3), Relu(), Flatten(), Dense()))
ODD_ORDER = Network(
    "order",
    (
        Relu(),
        Residual((Conv(3), Relu()), ()),
        Residual((Residual((Relu(), Conv(1, 2)), (Conv(2, 2, 1.1, 0.1),)),), (Conv(7, 2),)),
        AveragePool(3),
        GlobalAveragePool(),
        Dense(1.2, 0.3),
        Relu(),
        Dense(),
    ),
)


def pictures(n: int, height: int = 9, width: int = 7, channels: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, height, width, channels)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("network", [*EVERY.values(), POOL_THEN_FLATTEN, ODD_ORDER], ids=lambda n: n.name)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_both_paths_agree_on_odd_sizes_and_unusual_layers(network: networks.AnyNetwork, kind: str) -> None:
    x1, x2 = pictures(3), pictures(2, seed=1)
    fused = ntk.kernel(x1, x2, network, kind, backend="fused")
    plain = ntk.kernel(x1.astype(np.float64), x2.astype(np.float64), network, kind)
    np.testing.assert_allclose(fused, plain, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("network", EVERY.values(), ids=EVERY)
def test_kernels_are_symmetric_and_positive_semidefinite(network: networks.AnyNetwork) -> None:
    x = pictures(6)
    K = ntk.kernel(x, x, network)
    assert np.array_equal(K, K.T)
    np.testing.assert_allclose(K, ntk.kernel(x, x.copy(), network), rtol=1e-4)
    assert np.linalg.eigvalsh(K.astype(np.float64)).min() > -1e-5 * np.abs(K).max()


@pytest.mark.parametrize("network", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("backend", [pytest.param("fused", marks=COMPILES), "torch"])
def test_duplicated_black_and_constant_inputs_give_finite_entries(network: networks.AnyNetwork, backend: str) -> None:
    x = pictures(5)
    x[1], x[2], x[3], x[4] = x[0], 0.0, 1.0, 3.0 * x[0]
    for kind in ("ntk", "nngp"):
        K = ntk.kernel(x, x.copy(), network, kind, backend=backend)
        assert np.isfinite(K).all()
        np.testing.assert_allclose(K[0], K[1], rtol=5e-3 if backend == "torch" else 2e-4, atol=1e-9)


@COMPILES
def test_tiles_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x1, x2 = pictures(13), pictures(11, seed=1)
    whole = fused_kernel(x1, x2, networks.scnn(), n_threads=1)
    monkeypatch.setattr("core.kernels.fused._TILE_WORK", 3_000.0)
    monkeypatch.setattr("core.kernels.fused._CACHE_FLOATS", 4)
    seen: list[tuple[int, int]] = []
    blocked = fused_kernel(x1, x2, networks.scnn(), n_threads=2, on_progress=lambda *step: seen.append(step))
    assert np.array_equal(whole, blocked)
    assert seen[-1][0] == seen[-1][1] > 4
    assert np.array_equal(fused_kernel(x1, None, networks.scnn()), fused_kernel(x1, None, networks.scnn(), n_threads=1))
    side = prepare_side(x2, networks.scnn())
    assert np.array_equal(fused_kernel(x1, side, networks.scnn()), whole)


def test_torch_blocks_that_do_not_divide_the_sizes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x1, x2 = (torch.from_numpy(pictures(n, seed=n)).double() for n in (5, 4))
    whole, own = ntk.kernel(x1, x2, networks.scnn()), ntk.kernel(x1, x1, networks.scnn())
    monkeypatch.setattr("core.kernels.ntk._BLOCK_BYTES", 9 * 8 * 63)
    torch.testing.assert_close(ntk.kernel(x1, x2, networks.scnn()), whole)
    torch.testing.assert_close(ntk.kernel(x1, x1, networks.scnn()), own)


@COMPILES
def test_a_cancel_from_the_progress_report_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.kernels.fused._TILE_WORK", 1.0)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        fused_kernel(pictures(20), None, networks.scnn(), n_threads=1, on_progress=stop)
    assert len(seen) == 1


POOLED = networks.GlobalAveragePool


@pytest.mark.slow
@pytest.mark.parametrize("network", EVERY.values(), ids=EVERY)
def test_the_torch_path_runs_on_a_cuda_device(network: networks.AnyNetwork) -> None:
    """With fake tensors: shapes, devices and operators are checked as on a GPU, nothing is computed."""
    side = 2 if isinstance(network, networks.Network) and isinstance(network.layers[network.bridge], POOLED) else 8
    side = 8 if network.name == "myrtle5" else side  # offset by offset: few offsets are enough
    with fake_cuda() as device:
        x1, x2 = (torch.empty(n, side, side, 3, device=device) for n in (3, 2))
        for second, shape in ((x2, (3, 2)), (x1, (3, 3))):
            K = ntk.kernel(x1, second, network)
            assert (K.device.type, tuple(K.shape), K.dtype) == ("cuda", shape, torch.float32)


def test_the_arc_cosine_is_exact_to_float32() -> None:
    rho = np.concatenate([np.linspace(-1, 1, 20_001), [1.0, -1.0, 0.0, 1 - 1e-6]]).astype(np.float32)
    v1, v2 = np.float32(2.25), np.float32(0.25)  # sqrt(v1 v2) = 0.75
    ones = np.ones_like(rho)
    roots = (ones * np.sqrt(v1), ones / np.sqrt(v1), ones * np.sqrt(v2), ones / np.sqrt(v2))
    K, T = rho * np.float32(0.75), ones
    new_K, new_U = np.empty_like(K), np.empty_like(K)
    loops._arc_cosine(K, T, roots, new_K, new_U)
    exact = (K / np.float32(0.75)).astype(np.float64).clip(-1, 1)
    theta = np.arccos(exact)
    np.testing.assert_allclose(new_K, 0.75 * (np.sin(theta) + (np.pi - theta) * exact) / (2 * np.pi), atol=1e-7)
    np.testing.assert_allclose(new_U - new_K, (np.pi - theta) / (2 * np.pi), atol=1.5e-4)
    away = np.abs(exact) < 0.999
    np.testing.assert_allclose((new_U - new_K)[away], ((np.pi - theta) / (2 * np.pi))[away], atol=2e-6)


def test_settings_list_every_network_with_its_cost() -> None:
    assert tuple(KERNEL_NETWORKS) == networks.NAMES
    assert all("CPU" in KERNEL_NETWORKS[name] for name in ("wrn-gap", "cntk6-gap", "myrtle5"))
    with pytest.raises(InvalidInput, match="no network called 'vgg'"):
        networks.by_name("vgg")


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"\(n, height, width, channels\)"):
        ntk.kernel(np.zeros((3, 4, 4)), None, networks.scnn())
    with pytest.raises(InvalidInput, match="cannot be compared"):
        ntk.kernel(pictures(2), pictures(2, channels=3), networks.scnn())
    with pytest.raises(InvalidInput, match="kind is 'both'"):
        ntk.kernel(pictures(2), None, networks.scnn(), "both")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="too small for the pooling"):
        ntk.kernel(pictures(2, height=3, width=3), None, networks.myrtle5())
    with pytest.raises(InvalidInput, match="differ in stride"):
        Network("bad", (Residual((Conv(3, 2),)), Flatten()))


@COMPILES
def test_tiny_huge_and_broken_values_never_become_wrong_numbers() -> None:
    x = pictures(3)
    x[1] *= 1e-19
    x[2] *= 1e8
    assert np.isfinite(ntk.kernel(x, x.copy(), networks.cntk6())).all()
    for bad in (np.nan, np.inf, 1e12):
        x[0, 2, 3, 0] = bad
        with pytest.raises(InvalidInput, match="not finite"):
            ntk.kernel(x, None, networks.scnn())


def test_loops_compile_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    original = numba_compilation.numba.njit

    def nowhere_to_cache(*functions: object, cache: bool = False, **options: object) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return original(*functions, **options)  # numba itself uses it as a plain decorator

    monkeypatch.setattr(numba_compilation.numba, "njit", nowhere_to_cache)
    assert numba_compilation.compiled()(lambda x: x + 1)(2) == 3


@pytest.mark.slow
def test_nothing_is_compiled_at_import() -> None:
    script = "from core.kernels import loops, nystrom; assert not loops.run_tile.signatures + loops._box.signatures"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=280)


@COMPILES
def test_half_precision_and_whole_numbers_are_taken_as_float32() -> None:
    x = (pictures(3) * 4).astype(np.int16)
    converted = ntk.kernel(x.astype(np.float32), None, networks.scnn())
    np.testing.assert_array_equal(ntk.kernel(x, None, networks.scnn()), converted)
    assert ntk.kernel(torch.from_numpy(x), None, networks.linear()).dtype == torch.float32
