"""The files of an exported model of a round with an encoder.

encoder.onnx, encoder.json   the encoder; encoder.onnx only if its license allows redistribution
head.onnx                    features -> probabilities, including the calibration
model.safetensors            the head's weights as the round stored them
predict.py                   predicts files with both, into a table (`core.encoders.predicting.standalone_predict`)
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from app.rounds.model import RoundModel
from core.encoders.folders import JSON, ONNX, Encoder
from core.learning.models import TrainedModel
from core.learning.networks.head import HeadNetwork
from core.learning.onnx_graph import IR_VERSION, OPSET, Graph
from storage.exporting.models.card import model_card
from storage.exporting.models.confusion_picture import confusion_picture
from storage.rounds.log import RoundLog


def describe_encoder(encoder: Encoder) -> dict[str, Any]:
    """The entry of model.json for the encoder: its identity, all settings, and whether the folder contains it."""
    about = encoder.description
    included = about.may_be_passed_on and not encoder.is_table
    settings = dataclasses.asdict(about)
    return {"identity": encoder.identity, "included": included, "license": about.license, "settings": settings}


def encoder_model_files(found: RoundModel, about: dict[str, Any], confusion: np.ndarray | None) -> dict[str, bytes]:
    """name -> content for every file except model.json."""
    encoder = found.of.context.encoder
    assert encoder is not None
    script = importlib.util.find_spec("core.encoders.predicting.standalone_predict")
    assert script is not None and script.origin is not None
    log = RoundLog(found.of.store, found.row.project_id)
    files = {
        "head.onnx": head_graph(found.model).SerializeToString(deterministic=True),
        "model.safetensors": log.file(found.row.id, "model").read_bytes(),
        "predict.py": Path(script.origin).read_bytes(),
        "README.md": model_card(about).encode(),
        JSON: (encoder.folder / JSON).read_bytes(),
    }
    if about["encoder"]["included"]:
        files[ONNX] = (encoder.folder / ONNX).read_bytes()
    if confusion is not None:
        files["confusion.png"] = confusion_picture(confusion.tolist(), found.snapshot.class_names)
    return files


def head_graph(model: TrainedModel) -> onnx.ModelProto:
    """The ONNX graph: features (batch, d) -> probabilities (batch, C) and embedding (batch, r)."""
    network = model.network
    assert isinstance(network, HeadNetwork)
    graph = Graph()
    centered = graph.add("Sub", ["features", graph.tensor(network.mean)])
    rows = graph.add("MatMul", [centered, graph.tensor(network.components)])
    embedding = graph.add("LpNormalization", [rows], "embedding", axis=1, p=2)
    logits = graph.add(
        "Gemm", [embedding, graph.tensor(network.head.weight), graph.tensor(network.head.bias)], transB=1
    )
    graph.add("Softmax", [graph.add("Div", [logits, graph.number(model.temperature)])], "probabilities", axis=1)
    sizes = {"embedding": network.width, "probabilities": model.shape.n_classes}
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", n]) for name, n in sizes.items()]
    source = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", model.shape.channels])
    made = helper.make_graph(graph.nodes, "winnow-head", [source], outputs, graph.constants)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    proto.producer_name = "winnow"
    onnx.checker.check_model(proto, full_check=True)
    return proto
