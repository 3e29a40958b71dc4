"""A worker process survives encoders that fail: its round ends with a message, and the next round runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import ModelProto, helper

from app.rounds import requests as round_requests
from core.config import EncoderConfig, preset
from core.encoders.folders import encoders_folder
from storage.rounds.log import RoundLog, RoundRow
from tests.app.worker_processes import Place, quick_config, until
from tests.core.encoders import tiny
from tests.round_pools import draw_project

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

SIZE = 8
PICTURE = {"size": [SIZE, SIZE], "fit": "stretch", "range": 1.0, "mean": [0.5], "std": [0.5]}


def network(*nodes: object, opset: int = 17, **constants: np.ndarray) -> ModelProto:
    """Pixels as a vector `flat` through `nodes` to `y`."""
    flat = helper.make_node("Flatten", ["x"], ["flat"])
    weights = {"W": tiny.weights(3 * SIZE * SIZE)} | constants
    return tiny.model([flat, *nodes], weights, ["batch", 3, SIZE, SIZE], ["batch", tiny.WIDTH], opset)


def product(name: str = "flat", out: str = "y") -> object:
    return helper.make_node("MatMul", [name, "W"], [out])


def no_number() -> ModelProto:
    below = helper.make_node("Sub", ["flat", "large"], ["below"])
    return network(below, helper.make_node("Sqrt", ["below"], ["root"]), product("root"), large=np.float32(1e3))


def endless() -> ModelProto:
    loop = tiny.endless().graph.node[1]  # the loop after the product
    return network(product(out="first"), loop, steps=np.array(10**12, np.int64), yes=np.array(True))


def test_a_worker_survives_encoders_that_fail(sqlite_store, crew):
    drawn = draw_project(sqlite_store, n_items=24, n_held_out=4)
    drawn.label(drawn.item_ids[4:13])
    networks = {"nan": no_number(), "slow": endless(), "opset": network(product(), opset=99)}
    for name, model in networks.items():
        folder = encoders_folder(sqlite_store.home) / name
        tiny.write(folder, model, name=name, kind="image", input={"name": "x", **PICTURE})
        about = (folder / "encoder.json").read_text().replace('"sample_rate": 8000, "window": 800, ', "")
        (folder / "encoder.json").write_text(about)
    log = RoundLog(sqlite_store, drawn.project_id)

    def ended(name: str) -> RoundRow:
        config = (
            quick_config() if not name else dataclasses.replace(preset("encoder"), encoder=EncoderConfig(name=name))
        )
        row = round_requests.request_round(sqlite_store, drawn.project_id, config=config)
        until(lambda: not log.get(row.id).unfinished, 180.0, f"the round with {name or 'no encoder'}")
        return log.get(row.id)

    worker = crew.start(Place(home=sqlite_store.home, environment={"WINNOW_ENCODE_SECONDS": "1"}))
    without = ended("nan")
    assert without.status == "failed" and "The encoder nan gives no features. 24 of 24 items have" in without.error
    slow = ended("slow")
    assert slow.status == "failed" and "took more than 1 s" in slow.error, slow.error
    unknown = ended("opset")
    assert unknown.status == "failed" and "uses opset 99" in unknown.error
    assert ended("").status == "finished"
    assert worker.process.is_alive()
    assert drawn.pool.counts().labeled == 9
