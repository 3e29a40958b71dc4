"""A trained model as one ONNX graph, from the decoded clip or picture to calibrated probabilities.

    audio   clip (B, T) float32 in [-1, 1] -> log-mel picture as in `core.media.mel` -> network
    image   picture (B, H, W, C) uint8     -> normalized as in `core.media.inputs`  -> network
    outputs probabilities (B, n_classes) = softmax(logits / temperature), logits (B, n_classes), embedding (B, width)

The graph is built node by node with the package `onnx`, which is small; torch's own exporter would add onnxscript, and
its result depends on the version of torch. It has operators of opset 18 and no control flow; any batch size is valid.

Departures and details: the short-time Fourier transform is the operator STFT. The same transform as a convolution with
a windowed DFT basis would add 17 MB of weights to a network of 0.3 MB at the default window of 2,048 samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from core.config import MediaConfig
from core.errors import InvalidInput
from core.learning.models import TrainedModel
from core.learning.networks.layers import SLOPE, PreactivationBlock
from core.media.audio import clip_length
from core.media.mel import SILENCE, mel_tables
from core.types import MediaKind

OPSET, IR_VERSION = 18, 9
INPUTS: dict[MediaKind, str] = {"audio": "clips", "image": "pictures"}
OUTPUTS = ("probabilities", "logits", "embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """What turns a decoded item into the network's input."""

    kind: MediaKind
    media: MediaConfig
    mean: NDArray[np.float32]  # (C,) of pictures in [0, 1]; unused for audio
    scale: NDArray[np.float32]  # (C,)


@dataclass(slots=True)
class Graph:
    """The nodes and constants added so far. Each method adds the operation of its name and returns the output's
    name."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: NDArray[Any]) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def axes(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, operator: str, inputs: Sequence[str], name: str = "", **attributes: Any) -> str:
        name = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [name], name=f"node_{len(self.nodes)}", **attributes)
        )
        return name

    def tensor(self, value: Tensor | None) -> str:
        assert value is not None
        return self.constant(value.detach().float().cpu().numpy())

    def convolution(self, x: str, layer: nn.Conv2d) -> str:
        vertical, horizontal = (int(one) for one in layer.padding)
        return self.add(
            "Conv", [x, self.tensor(layer.weight)], kernel_shape=list(layer.kernel_size), strides=list(layer.stride),
            pads=[vertical, horizontal, vertical, horizontal],
        )  # fmt: skip

    def activated_norm(self, x: str, layer: nn.BatchNorm2d) -> str:
        """Batch normalization with the running statistics, then LeakyReLU."""
        parameters = [self.tensor(one) for one in (layer.weight, layer.bias, layer.running_mean, layer.running_var)]
        normalized = self.add("BatchNormalization", [x, *parameters], epsilon=layer.eps)
        return self.add("LeakyRelu", [normalized], alpha=SLOPE)

    def block(self, x: str, layer: PreactivationBlock) -> str:
        activated = self.activated_norm(x, layer.norm1)
        shortcut = x if layer.shortcut is None else self.convolution(activated, layer.shortcut)
        inner = self.activated_norm(self.convolution(activated, layer.conv1), layer.norm2)
        return self.add("Add", [shortcut, self.convolution(inner, layer.conv2)])


def build_onnx(
    model: TrainedModel, inputs: InputSettings, metadata: Mapping[str, str] | None = None
) -> onnx.ModelProto:
    """The checked graph; `metadata` is stored in it by key."""
    graph = Graph()
    source = INPUTS[inputs.kind]
    picture = _log_mel(graph, source, inputs.media) if inputs.kind == "audio" else _normalized(graph, source, inputs)
    _network(graph, picture, model)
    n_classes, width = model.shape.n_classes, model.network.width
    made = helper.make_graph(
        graph.nodes,
        "winnow",
        [_input_info(inputs)],
        [
            helper.make_tensor_value_info(
                name, TensorProto.FLOAT, ["batch", width if name == "embedding" else n_classes]
            )
            for name in OUTPUTS
        ],
        graph.constants,
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    proto.producer_name = "winnow"
    for key, value in sorted((metadata or {}).items()):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _input_info(inputs: InputSettings) -> onnx.ValueInfoProto:
    name, media = INPUTS[inputs.kind], inputs.media
    if inputs.kind == "audio":
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", clip_length(media)])
    shape: list[str | int] = ["batch", *media.picture_size, media.channels]
    return helper.make_tensor_value_info(name, TensorProto.UINT8, shape)


def _log_mel(graph: Graph, clips: str, config: MediaConfig) -> str:
    """(B, T) -> (B, 1, n_mels, frames), step by step as `core.media.mel.log_mel`."""
    window, filters = (table.numpy() for table in mel_tables(config))
    margin = config.n_fft // 2
    padded = graph.add("Pad", [clips, graph.axes(0, margin, 0, margin), graph.number(0.0)])
    signal = graph.add("Unsqueeze", [padded, graph.axes(2)])
    step = graph.constant(np.array(config.hop, np.int64))
    spectrum = graph.add("STFT", [signal, step, graph.constant(window)], onesided=1)  # (B, frames, bins, 2)
    squares = graph.add("Mul", [spectrum, spectrum])
    power = graph.add("ReduceSum", [squares, graph.axes(3)], keepdims=0)
    mel = graph.add("Transpose", [graph.add("MatMul", [power, graph.constant(filters)])], perm=[0, 2, 1])
    natural = graph.add("Log", [graph.add("Max", [mel, graph.number(SILENCE)])])
    log_power = graph.add("Mul", [natural, graph.number(1 / math.log(10))])
    loudest = graph.add("ReduceMax", [log_power, graph.axes(1, 2)], keepdims=1)
    floor = graph.number(config.floor)
    floored = graph.add("Max", [graph.add("Sub", [log_power, loudest]), floor])
    silent = graph.add("Less", [loudest, graph.number(math.log10(SILENCE) + 1e-3)])
    values = graph.add("Where", [silent, floor, floored])
    centered = graph.add("Sub", [values, graph.number(config.floor / 2)])
    scaled = graph.add("Div", [centered, graph.number(-config.floor / 3)])
    return graph.add("Unsqueeze", [scaled, graph.axes(1)])


def _normalized(graph: Graph, pictures: str, inputs: InputSettings) -> str:
    """(B, H, W, C) bytes -> (B, C, H, W), step by step as `core.media.inputs.NormalizedRows`."""
    values = graph.add("Cast", [pictures], to=TensorProto.FLOAT)
    shares = graph.add("Div", [values, graph.number(255.0)])
    centered = graph.add("Sub", [shares, graph.constant(inputs.mean.astype(np.float32))])
    scaled = graph.add("Div", [centered, graph.constant(inputs.scale.astype(np.float32))])
    return graph.add("Transpose", [scaled], perm=[0, 3, 1, 2])


def _network(graph: Graph, picture: str, model: TrainedModel) -> None:
    """The stem, the blocks, the mean over positions and the head; both networks have these parts."""
    network = model.network
    stem, blocks, norm = (getattr(network, name, None) for name in ("stem", "blocks", "norm"))
    if not (isinstance(stem, nn.Conv2d) and isinstance(blocks, nn.Sequential) and isinstance(norm, nn.BatchNorm2d)):
        raise InvalidInput(f"The network {model.shape.name} has no ONNX form yet.")
    x = graph.convolution(picture, stem)
    for layer in blocks:
        assert isinstance(layer, PreactivationBlock)
        x = graph.block(x, layer)
    embedding = graph.add("ReduceMean", [graph.activated_norm(x, norm), graph.axes(2, 3)], "embedding", keepdims=0)
    head = [graph.tensor(network.head.weight), graph.tensor(network.head.bias)]
    logits = graph.add("Gemm", [embedding, *head], "logits", transB=1)
    tempered = graph.add("Div", [logits, graph.number(model.temperature)])
    graph.add("Softmax", [tempered], "probabilities", axis=1)
