"""Reading an ONNX file without running it. Used only in the process with limits."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from core.errors import InvalidInput

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # operators of onnxruntime; no other library is ever loaded
MOST_DEPTH = 8  # graphs inside graphs: loops, branches and functions


def read_model(data: bytes) -> onnx.ModelProto:
    """The parsed file. Raises InvalidInput if it is not an ONNX model or needs anything outside the file."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as problem:
        raise InvalidInput("encoder.onnx is not an ONNX model: its bytes cannot be parsed.") from problem
    if not model.graph.node:
        raise InvalidInput("encoder.onnx is not an ONNX model with a graph.")
    for one in model.opset_import:
        _check_opset(one.domain, one.version)
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InvalidInput(
                f"The weights {tensor.name!r} of encoder.onnx are in another file. Save the model as one file: "
                "onnx.save_model(model, path, save_as_external_data=False)."
            )
    return model


def _check_opset(domain: str, version: int) -> None:
    if domain not in DOMAINS:
        raise InvalidInput(f"encoder.onnx uses operators of {domain!r}; only those of onnxruntime itself are run.")
    newest = onnx.defs.onnx_opset_version()
    if domain in ("", "ai.onnx") and not 1 <= version <= newest:
        raise InvalidInput(
            f"encoder.onnx uses opset {version}; versions 1 to {newest} are known here. Export it with "
            f"opset_version=17, or convert it with onnx.version_converter."
        )


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _of_graph(model.graph, 0)
    for function in model.functions:
        for node in function.node:
            yield from _of_node(node, 0)


def _of_graph(graph: onnx.GraphProto, depth: int) -> Iterator[onnx.TensorProto]:
    if depth > MOST_DEPTH:
        raise InvalidInput(f"encoder.onnx has graphs inside graphs, more than {MOST_DEPTH} deep.")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        yield from _of_node(node, depth)


def _of_node(node: onnx.NodeProto, depth: int) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        for graph in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
            yield from _of_graph(graph, depth + 1)
