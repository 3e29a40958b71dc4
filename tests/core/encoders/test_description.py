"""encoder.json is read strictly: a field that is missing, unknown or out of range is named."""

from __future__ import annotations

import json

import pytest

from core.encoders.description import parse_description, to_json
from core.encoders.efficientnet_lite import DESCRIPTION
from core.encoders.folders import open_encoder
from core.errors import InvalidInput, NotFound
from tests.core.encoders import tiny


def test_a_description_is_unchanged_by_a_round_trip():
    assert parse_description(to_json(DESCRIPTION)) == DESCRIPTION


def test_the_width_counts_the_mean_and_the_maximum():
    found = parse_description(json.dumps(tiny.description(output={"pooling": "mean+max"})))
    assert (found.output.width, found.input.step) == (8, 400)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "format is 2; this version reads format 1"),
        ({"kind": "video"}, "kind is 'video'"),
        ({"name": "../x"}, "'../x' cannot be the name of an encoder"),
        ({"name": "auto"}, "'auto' cannot be the name of an encoder"),
        ({"license": " "}, "license is empty"),
        ({"color": "red"}, "color is not a field"),
        ({"input": {"sample_rate": "fast"}}, "input.sample_rate is 'fast'; it must be a whole number"),
        ({"input": {"sample_rate": True}}, "input.sample_rate is True; it must be a whole number"),
        ({"input": {"hop": 801}}, "hop is 801"),
        ({"input": {"size": [3, 3]}}, "input.size is not a field"),
        ({"output": {"pooling": "median"}}, "output.pooling is 'median'; choose one of none, mean"),
        ({"output": {"dimension": 0}}, "dimension is 0; use 1 to 65,536"),
        ({"output": {"axis": 0}}, "axis is 0, which is the batch axis"),
    ],
)
def test_what_is_wrong_is_named(changes, said):
    with pytest.raises(InvalidInput, match=r"encoder\.json cannot be used") as raised:
        parse_description(json.dumps(tiny.description(**changes)))
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 5000, '{"format": 1}', "null", "x" * 70_000])
def test_text_that_is_no_description_is_refused(text):
    with pytest.raises(InvalidInput, match=r"encoder\.json"):
        parse_description(text)


def test_pictures_need_as_many_means_as_channels():
    values = tiny.description() | {
        "kind": "image",
        "input": {"name": "x", "size": [32, 32], "mean": [1, 2], "std": [1, 1, 1]},
    }
    with pytest.raises(InvalidInput, match="mean has 2 values for 3 channels"):
        parse_description(json.dumps(values))


def test_the_identity_follows_both_files(tmp_path):
    one = open_encoder(tiny.write(tmp_path / "one", tiny.linear()))
    same = open_encoder(tiny.write(tmp_path / "same", tiny.linear()))
    other_text = open_encoder(tiny.write(tmp_path / "text", tiny.linear(), title="Tiny"))
    other_graph = open_encoder(tiny.write(tmp_path / "graph", tiny.linear(batch=1)))
    assert one.identity == same.identity
    assert len({one.identity, other_text.identity, other_graph.identity}) == 3
    assert one.feature_key != other_graph.feature_key


def test_a_folder_needs_both_files_and_no_links(tmp_path):
    folder = tiny.write(tmp_path / "one", tiny.linear())
    with pytest.raises(NotFound, match="There is no folder"):
        open_encoder(tmp_path / "none")
    (tmp_path / "elsewhere.onnx").write_bytes((folder / "encoder.onnx").read_bytes())
    (folder / "encoder.onnx").unlink()
    with pytest.raises(InvalidInput, match=r"encoder\.onnx is missing"):
        open_encoder(folder)
    (folder / "encoder.onnx").symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(InvalidInput, match=r"encoder\.onnx is a link"):
        open_encoder(folder)
