"""Global average pooling offset by offset, in torch and by quadrature, against the golden values and the full mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from core.errors import InvalidInput
from core.kernels import networks, ntk
from core.kernels.covariance import input_covariance, propagate
from core.kernels.networks import AveragePool, Conv, Dense, GlobalAveragePool, GridAveragePool, Network, Relu
from core.kernels.offsets import offset_kernel
from core.kernels.plan import offset_grid, plan_for
from tests.core.fake_cuda import fake_cuda

pytestmark = pytest.mark.usefixtures("one_thread")
GOLDEN = Path(__file__).parents[2] / "golden"
BY_FILE = {"b_wrn_b1k1_gap": networks.wrn(1, "gap"), "d_cntk6_gap": networks.cntk6("gap")}


def images(which: str) -> np.ndarray:
    with np.load(GOLDEN / "inputs.npz") as stored:
        return np.ascontiguousarray(np.moveaxis(stored[which], 1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("name", BY_FILE)
def test_the_batched_path_gives_the_golden_values_in_float64(name: str, kind: str) -> None:
    x = torch.from_numpy(images("B"))  # 6 items of 16 x 16
    with np.load(GOLDEN / f"kernel_{name}.npz") as stored:
        expected = stored[f"{kind}_B"]
    found = offset_kernel(x, x, BY_FILE[name], kind).numpy()
    assert np.abs(found / expected - 1).max() < 1e-7


def test_it_agrees_with_the_full_mode_on_odd_sizes_and_with_dense_layers_after_the_pooling() -> None:
    rng = np.random.default_rng(0)
    layers = (Conv(3, 2, 1.2, 0.1), Relu(), Conv(5, 1, 1.0, 0.2), Relu())
    network = Network("odd", (*layers, GlobalAveragePool(), Dense(1.1, 0.3), Relu(), Dense()))
    x1, x2 = (torch.from_numpy(rng.standard_normal((n, 7, 9, 2))) for n in (3, 2))
    full = propagate(network.layers, input_covariance(x1, x2, True))
    for kind, expected in (("ntk", full.T), ("nngp", full.K)):
        torch.testing.assert_close(offset_kernel(x1, x2, network, kind), expected, rtol=1e-9, atol=0)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 5, 5, 1)))
    whole = offset_kernel(x, x, networks.cntk6("gap"))
    monkeypatch.setattr("core.kernels.offsets.BATCH_BYTES", 8 * 25 * 4)  # two items on a side
    torch.testing.assert_close(offset_kernel(x, x, networks.cntk6("gap")), whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(whole, whole.T, rtol=1e-9, atol=0)


@pytest.mark.slow
def test_a_gpu_gets_the_batched_path() -> None:
    with fake_cuda() as device:
        x = torch.zeros((2, 3, 3, 1), device=device)
        assert ntk.kernel(x, None, networks.cntk6("gap")).device == device


def test_the_grid_is_symmetric_leaves_out_zero_and_integrates_cubics_exactly() -> None:
    for side in (17, 24, 32, 33, 64):
        nodes, spline = offset_grid(side, 6)
        assert 0 not in nodes and nodes == sorted(-d for d in nodes) and nodes[-1] == side - 1
        everywhere = np.arange(1 - side, side)
        np.testing.assert_allclose(spline @ (3.0 + 2.0 * np.array(nodes)), 3.0 + 2.0 * everywhere, rtol=0, atol=1e-9)


def test_a_grid_of_equal_means_is_summed_exactly() -> None:
    """A covariance with the same mean at every offset: the shares then sum it without error."""
    plan = plan_for(networks.cntk6("gap-fast"), 32, 32)
    areas = np.array([(32 - abs(dy)) * (32 - abs(dx)) for _, dy, dx in plan.offsets])
    assert plan.shares @ areas == pytest.approx(32**4, rel=1e-12)
    exact = plan_for(networks.cntk6("gap"), 32, 32)
    computed = areas.sum() / sum((32 - abs(dy)) * (32 - abs(dx)) for _, dy, dx in exact.offsets)
    assert computed < 1 / 25 and len(exact.offsets) == 63**2


def test_the_quadrature_is_within_one_percent_on_clips_and_the_paths_agree() -> None:
    x = images("A").astype(np.float32)[:4]  # log-mel clips, 32 x 32
    fast, exact = (ntk.kernel(x, None, networks.cntk6(pooling)) for pooling in ("gap-fast", "gap"))
    assert np.abs(fast / exact - 1).max() < 0.01
    batched = offset_kernel(torch.from_numpy(x[:2]), torch.from_numpy(x[:2]), networks.cntk6("gap-fast"))
    np.testing.assert_allclose(batched.numpy(), fast[:2, :2], rtol=1e-3)


def test_small_pictures_are_computed_exactly() -> None:
    x = images("B").astype(np.float32)[:3]
    np.testing.assert_array_equal(*(ntk.kernel(x, None, networks.cntk6(p)) for p in ("gap-fast", "gap")))


def test_a_grid_after_average_pooling_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mixes offsets"):
        Network("mixed", (Conv(3), Relu(), AveragePool(2), GridAveragePool(), Dense()))
