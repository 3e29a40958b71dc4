"""Global average pooling offset by offset, in torch and by quadrature, against the golden values and the full mode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from core.errors import InvalidInput
from core.kernels import networks, ntk
from core.kernels.covariance import input_covariance, propagate
from core.kernels.networks import AveragePool, Conv, Dense, GlobalAveragePool, Network, QuadratureAveragePool, Relu
from core.kernels.offsets import offset_kernel
from core.kernels.plan import plan_for
from core.kernels.quadrature import _covariance, nodes
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


def test_the_weights_of_the_nodes_are_those_of_a_dense_gaussian_process() -> None:
    """The posterior mean of the integral, from the whole covariance matrix instead of convolutions and updates."""
    height, width = 7, 5
    chosen, weights = nodes(height, width, 0.3)
    offsets = np.array([(dy, dx) for dy in range(1 - height, height) for dx in range(1 - width, width)], float)
    area = (height - np.abs(offsets[:, 0])) * (width - np.abs(offsets[:, 1]))
    K = np.stack([_covariance(offsets, row, 1.25 * height) for row in offsets]) + 1e-7 * np.eye(len(offsets))
    places = [int(np.flatnonzero((offsets == row).all(1))[0]) for row in chosen]
    expected = np.linalg.solve(K[np.ix_(places, places)], K[places] @ area / area.sum())
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-9)
    assert len(set(places)) == len(places) and chosen[0].tolist() == [0, 0]
    assert area[places].sum() <= 0.3 * area.sum()
    assert np.linalg.eigvalsh(K).min() > 0


def test_the_nodes_cover_their_share_and_sum_a_constant() -> None:
    plan = plan_for(networks.cntk6("gap-fast"), 32, 32)
    areas = np.array([(32 - abs(dy)) * (32 - abs(dx)) for _, dy, dx in plan.offsets])
    assert plan.shares @ areas == pytest.approx(32**4, rel=1e-3)
    assert areas.sum() <= 0.045 * 32**4
    assert len(plan_for(networks.cntk6("gap"), 32, 32).offsets) == 63**2


def test_the_quadrature_is_within_one_percent_on_clips_and_the_paths_agree() -> None:
    x = images("A").astype(np.float32)[:4]  # log-mel clips, 32 x 32
    fast, exact = (ntk.kernel(x, None, networks.cntk6(pooling)) for pooling in ("gap-fast", "gap"))
    assert np.abs(fast / exact - 1).max() < 0.01
    batched = offset_kernel(torch.from_numpy(x[:2]), torch.from_numpy(x[:2]), networks.cntk6("gap-fast"))
    np.testing.assert_allclose(np.triu(batched.numpy()), np.triu(fast[:2, :2]), rtol=1e-4)  # an exchange negates d


def test_the_quadrature_is_within_one_percent_on_smooth_and_rough_pictures() -> None:
    """Random fields whose spectra fall like those of photographs, each with itself, with others and shifted."""
    draw = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(36), np.fft.fftfreq(36), indexing="ij")) + 1 / 36
    spectrum = np.fft.fft2(draw.standard_normal((3, 36, 36))) / frequency ** np.array([1.0, 1.5, 2.0])[:, None, None]
    fields = np.fft.ifft2(spectrum).real
    fields = fields / fields.std((1, 2), keepdims=True)
    x = np.concatenate([fields[:, :32, :32], fields[:, 1:33, 2:34]])[..., None].astype(np.float32)
    fast, exact = (ntk.kernel(x, None, networks.cntk6(pooling)) for pooling in ("gap-fast", "gap"))
    assert np.abs(fast - exact).max() < 0.01 * np.sqrt(np.outer(exact.diagonal(), exact.diagonal())).min()


def test_small_pictures_are_computed_exactly() -> None:
    x = images("B").astype(np.float32)[:3]
    np.testing.assert_array_equal(*(ntk.kernel(x, None, networks.cntk6(p)) for p in ("gap-fast", "gap")))


def test_a_grid_after_average_pooling_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mixes offsets"):
        Network("mixed", (Conv(3), Relu(), AveragePool(2), QuadratureAveragePool(), Dense()))
