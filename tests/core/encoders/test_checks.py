"""An encoder is run on probe items in a process with limits before it is used; the message names each problem."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from core.encoders.checks import check_encoder
from core.encoders.description import parse_description
from core.encoders.efficientnet_lite import DESCRIPTION
from core.encoders.encoding_process import Session
from core.encoders.folders import open_encoder
from core.encoders.recipes import make_built_in
from core.encoders.runner import EncoderRunner
from core.errors import InvalidInput
from core.limits import Limits
from tests.core.encoders import tiny

QUICK = Limits(encode_seconds=1.0, encode_bytes=1 << 30)


@pytest.mark.parametrize(("batch", "found"), [("batch", None), (3, 3)])
def test_networks_with_a_free_or_a_fixed_batch_are_accepted(batch, found, tmp_path):
    checked = check_encoder(tiny.write(tmp_path / "tiny", tiny.linear(batch=batch)))
    assert checked.batch == found
    with EncoderRunner(checked.encoder) as runner:
        clips = np.random.default_rng(0).normal(size=(5, tiny.WINDOW)).astype(np.float32)
        features = runner.encode([[clips[0]], [clips[1], clips[2], clips[3]], [clips[4]]])
    expected = clips @ tiny.weights()
    np.testing.assert_allclose(features[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(features[1], expected[1:4].mean(0), atol=1e-5)
    np.testing.assert_allclose(features[2], expected[4], atol=1e-5)


def random_network() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["z"]),
        helper.make_node("RandomNormalLike", ["z"], ["r"]),
        helper.make_node("Add", ["z", "r"], ["y"]),
    ]
    return tiny.model(nodes, {"W": tiny.weights()}, ["batch", tiny.WINDOW], ["batch", tiny.WIDTH])


def batch_maximum() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["z"]),
        helper.make_node("ReduceMax", ["z"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["z", "m"], ["d"]),
        helper.make_node("Add", ["d", "z"], ["y"]),
    ]
    return tiny.model(nodes, {"W": tiny.weights()}, ["batch", tiny.WINDOW], ["batch", tiny.WIDTH])


def with_weights_elsewhere() -> onnx.ModelProto:
    model = tiny.linear()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "../../etc/passwd", "offset": "0", "length": "100"}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return model


def with_foreign_operators() -> onnx.ModelProto:
    model = tiny.linear()
    model.opset_import.append(helper.make_opsetid("evil.ops", 1))
    return model


def with_an_empty_terabyte() -> onnx.ModelProto:
    """An initializer that claims 10^12 numbers and has none."""
    model = tiny.linear()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    del tensor.dims[:]
    tensor.dims.extend([10**6, 10**6])
    return model


@pytest.mark.parametrize(
    ("network", "changes", "said"),
    [
        (with_weights_elsewhere, {}, "are in another file"),
        (with_an_empty_terabyte, {}, "encoder.onnx"),
        (with_foreign_operators, {}, "operators of 'evil.ops'"),
        (lambda: tiny.linear(opset=99), {}, "uses opset 99"),
        (tiny.linear, {"output": {"name": "z"}}, "has no output 'z'; its outputs are y"),
        (tiny.linear, {"input": {"name": "z"}}, "has no input 'z'; its inputs are x"),
        (tiny.linear, {"input": {"window": 900}}, "encoder.json describes ['any', 900]"),
    ],
)
def test_a_network_that_does_not_fit_its_description_is_refused(network, changes, said):
    described = parse_description(json.dumps(tiny.description(**changes)))
    with pytest.raises(InvalidInput) as raised:
        Session(network().SerializeToString(), described, threads=1)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("network", "changes", "said"),
    [
        (random_network, {}, "gives different features when the same item is encoded again"),
        (batch_maximum, {}, "different features for an item in a batch and for the item alone"),
        (tiny.linear, {"output": {"dimension": 5}}, "must have the size 5"),
        (tiny.huge, {}, "needs more memory than the limit allows"),
    ],
    ids=["random", "batch", "dimension", "memory"],
)
def test_a_network_that_behaves_badly_is_refused_with_the_reason(network, changes, said, tmp_path):
    folder = tiny.write(tmp_path / "tiny", network(), **changes)
    with pytest.raises(InvalidInput) as raised:
        check_encoder(folder, QUICK)
    assert said in str(raised.value)


@pytest.mark.slow
def test_a_loop_without_end_is_stopped(tmp_path):
    with pytest.raises(InvalidInput, match="took more than 1 s for an item"):
        check_encoder(tiny.write(tmp_path / "tiny", tiny.endless()), QUICK)


def test_an_encoder_that_was_removed_since_it_was_opened_is_named(tmp_path):
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.linear()))
    shutil.rmtree(encoder.folder)
    with EncoderRunner(encoder, QUICK) as runner, pytest.raises(InvalidInput, match=r"may have been removed: .*tiny"):
        runner.start()


def nested(depth: int) -> onnx.ModelProto:
    """Branches inside branches, `depth` deep."""
    graph = helper.make_graph([helper.make_node("Identity", ["yes"], ["b0"])], "g0", [], [tiny_bool("b0")])
    for level in range(1, depth + 1):
        node = helper.make_node("If", ["yes"], [f"b{level}"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], f"g{level}", [], [tiny_bool(f"b{level}")])
    model = tiny.linear()
    model.graph.node.extend(graph.node)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    return model


def tiny_bool(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, [])


def test_graphs_inside_graphs_have_a_limit():
    described = parse_description(json.dumps(tiny.description()))
    Session(nested(3).SerializeToString(), described, threads=1)
    with pytest.raises(InvalidInput, match="graphs inside graphs, more than 8 deep"):
        Session(nested(10).SerializeToString(), described, threads=1)


def test_bytes_that_are_no_network_are_refused(tmp_path):
    folder = tiny.write(tmp_path / "tiny", tiny.linear())
    (folder / "encoder.onnx").write_bytes(b"\x00\xffnot a network" * 100)
    with pytest.raises(InvalidInput, match="is not an ONNX model"):
        check_encoder(folder, QUICK)


def test_an_item_without_numbers_does_not_stop_the_others(tmp_path):
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.root_of_mean()))
    clips = [np.full(tiny.WINDOW, level, np.float32) for level in (0.25, -0.25, 1.0)]
    with EncoderRunner(encoder, QUICK) as runner:
        first, second, third = runner.encode([[clip] for clip in clips])
    np.testing.assert_allclose(first, 0.5 * tiny.weights(1)[0], atol=1e-6)
    assert second == "The encoder gives 4 of 4 values that are not numbers."
    np.testing.assert_allclose(third, tiny.weights(1)[0], atol=1e-6)


@pytest.mark.slow
def test_an_encoder_that_is_too_slow_for_every_item_is_refused(tmp_path):
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.endless()))
    clips = [[np.zeros(tiny.WINDOW, np.float32)] for _ in range(8)]
    with EncoderRunner(encoder, QUICK) as runner, pytest.raises(InvalidInput, match="3 items in a row"):
        runner.encode(clips)


@pytest.mark.slow
def test_waiting_for_the_network_can_be_cancelled(tmp_path):
    encoder = open_encoder(tiny.write(tmp_path / "tiny", tiny.endless()))

    def cancel() -> None:
        raise KeyboardInterrupt

    with EncoderRunner(encoder) as runner:
        runner.start()
        process = runner.process
        with pytest.raises(KeyboardInterrupt):
            runner.encode([[np.zeros(tiny.WINDOW, np.float32)]], cancel)
    assert process is not None and process.poll() is not None


def test_the_built_in_encoder_of_pictures_passes_and_is_the_same_everywhere(tmp_path):
    first, second = (make_built_in(tmp_path / name, "efficientnet-lite0") for name in ("a", "b"))
    assert first.identity == second.identity
    assert first.description == DESCRIPTION
    assert check_encoder(first.folder).batch is None
