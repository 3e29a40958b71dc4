"""Tiny encoders for tests: networks of a few nodes in the form of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WINDOW, WIDTH = 800, 4


def weights(n_in: int = WINDOW, n_out: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n_in, n_out)).astype(np.float32) / np.float32(n_in**0.5)


def model(
    nodes: list[Any], constants: dict[str, np.ndarray], input_shape: list[Any], output_shape: list[Any], opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear(batch: Any = "batch", opset: int = 17) -> onnx.ModelProto:
    """y = x W: (batch, 800) -> (batch, 4)."""
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    return model([node], {"W": weights()}, [batch, WINDOW], [batch, WIDTH], opset)


def root_of_mean() -> onnx.ModelProto:
    """y = sqrt(mean of x) W: not a number for a clip with a negative mean."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("MatMul", ["root", "W"], ["y"]),
    ]
    return model(nodes, {"W": weights(1)}, ["batch", WINDOW], ["batch", WIDTH])


def endless(steps: int = 10**12) -> onnx.ModelProto:
    """x W after a loop of many steps."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Tanh", ["state"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["first"]),
        helper.make_node("Loop", ["steps", "yes", "first"], ["y"], body=body),
    ]
    constants = {"W": weights(), "steps": np.array(steps, np.int64), "yes": np.array(True)}
    return model(nodes, constants, ["batch", WINDOW], ["batch", WIDTH])


def huge() -> onnx.ModelProto:
    """x W plus the sum of a terabyte of ones, made from a constant of nine bytes."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1])
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["ones"], value=one),
        helper.make_node("ReduceSum", ["ones"], ["sum"], keepdims=0),
        helper.make_node("MatMul", ["x", "W"], ["z"]),
        helper.make_node("Add", ["z", "sum"], ["y"]),
    ]
    return model(
        nodes, {"W": weights(), "size": np.array([10**6, 10**6], np.int64)}, ["batch", WINDOW], ["batch", WIDTH]
    )


def description(**changes: Any) -> dict[str, Any]:
    """An encoder.json for the models above; `changes` like `output={"dimension": 5}` are merged into its parts."""
    values: dict[str, Any] = {
        "format": 1,
        "name": "tiny",
        "kind": "audio",
        "license": "MIT",
        "input": {"name": "x", "sample_rate": 8000, "window": WINDOW},
        "output": {"name": "y", "dimension": WIDTH, "pooling": "mean"},
    }
    for name, value in changes.items():
        values[name] = values[name] | value if isinstance(value, dict) and name in values else value
    return values


def write(folder: Path, network: onnx.ModelProto, **changes: Any) -> Path:
    """The folder of an encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "encoder.onnx").write_bytes(network.SerializeToString())
    (folder / "encoder.json").write_text(json.dumps(description(**changes)))
    return folder
