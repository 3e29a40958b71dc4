"""Both kernel paths against values that an independent library computed in float64 (tests/golden)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.kernels import networks, ntk

GOLDEN = Path(__file__).parents[2] / "golden"
NETWORKS = {
    "a_scnn": networks.scnn(),
    "b_wrn_b1k1_flatten": networks.wrn(1),
    "b_wrn_b4k1_flatten": networks.wrn(4),
    "b_wrn_b1k1_gap": networks.wrn(1, "gap"),
    "c_fnn": networks.fnn(),
    "d_cntk6_flatten": networks.cntk6(),
    "d_cntk6_gap": networks.cntk6("gap"),
    "e_myrtle5": networks.myrtle5(),
}


def images(which: str) -> np.ndarray:
    with np.load(GOLDEN / "inputs.npz") as stored:
        return np.ascontiguousarray(np.moveaxis(stored[which], 1, 3))  # channel-first there


def expected(name: str, kind: str, which: str) -> np.ndarray:
    with np.load(GOLDEN / f"kernel_{name}.npz") as stored:
        return stored[f"{kind}_{which}"]


def relative_error(computed: np.ndarray, reference: np.ndarray) -> float:
    return float((np.abs(computed - reference) / np.abs(reference)).max())


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_torch_path_gives_the_golden_values_in_float64(name: str) -> None:
    for which in ("A", "B"):
        x = images(which)
        if NETWORKS[name].needs_position_pairs:  # a million position pairs for each pair of gray images
            x = x[:1] if which == "A" else x[:6:5]
        rows = np.arange(len(images(which)))[:1] if len(x) == 1 else np.arange(0, 6, 5) if len(x) == 2 else slice(None)
        for kind in ("ntk", "nngp"):
            computed = ntk.kernel(x, x.copy(), NETWORKS[name], kind)
            assert computed.dtype == np.float64
            assert relative_error(computed, expected(name, kind, which)[rows][:, rows]) < 1e-7


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_fused_path_gives_the_golden_values_in_float32(name: str) -> None:
    for which in ("A", "B"):
        x = images(which).astype(np.float32)
        x = x[:3] if NETWORKS[name].needs_position_pairs and which == "A" else x
        for kind in ("ntk", "nngp"):
            reference = expected(name, kind, which)[: len(x), : len(x)]
            for second in (x.copy(), x):  # any two sets; one set with itself
                computed = ntk.kernel(x, second, NETWORKS[name], kind)
                assert computed.dtype == np.float32
                assert relative_error(computed, reference) < 5e-5
