"""File names that reveal the class are not shown on the map, in Review and in the table of picks."""

from __future__ import annotations

import numpy as np
import pytest

from app.views.cards.pick_table import pick_table
from app.views.figures.map import hovers
from app.views.item_names import ItemNames
from app.views.map_layers import map_layers
from storage.labeling.pool import Pool
from tests.app import finished_rounds, sample_store


@pytest.mark.parametrize(
    ("classes", "name"),
    [
        (["nine"], "nine_07.wav"),
        (["nine"], "NINE-7.WAV"),
        (["nine"], "data/nine/07.wav"),
        (["dog"], "hotDogs01.png"),
        (["traffic light"], "Traffic_Light (2).jpg"),
        (["café"], "cafe3.png"),
        (["3"], "3_jackson_12.wav"),
        (["3"], "digit03.wav"),
        (["b"], "take b.wav"),
    ],
)
def test_a_name_that_contains_a_class_is_replaced_by_the_number_of_the_item(classes, name):
    called = ItemNames(["other", *classes])
    assert called.shown_name(17, name) == "Item 17"
    folded = called.shown_html(17, name)
    assert folded.index("Item 17") < folded.index("<details") < folded.index("<summary>File name")


@pytest.mark.parametrize(
    ("classes", "name"),
    [(["3"], "clip_0031.wav"), (["b"], "birdsong.wav"), (["nine"], "clip_7.wav"), ([], "nine.wav"), (["!"], "a!.wav")],
)
def test_other_names_are_shown_unchanged(classes, name):
    called = ItemNames(classes)
    assert called.shown_name(17, name) == name
    assert "<details" not in called.shown_html(17, name)


def test_names_in_html_are_escaped():
    called = ItemNames(["dog"])
    assert "<img" not in called.shown_html(1, "<img src=x>dog") + called.shown_html(1, "<img src=x>")


def test_map_and_table_of_picks_hide_such_names(sqlite_store):
    project = sample_store.audio_project(sqlite_store, n=3)
    named = [("nine_1.wav", sample_store.clip(1)), ("plain.wav", sample_store.clip(2))]
    revealing, plain = sample_store.add_items(sqlite_store, project, named)
    row = finished_rounds.finish_round(sqlite_store, project, [3, 4])
    layers = map_layers(sqlite_store, project.id, row.id)
    items = (revealing, plain)
    rows = np.array([layers.row_of(item) for item in items], np.int64)
    texts = dict(zip(items, hovers(layers, rows), strict=True))
    assert texts[revealing].startswith(f"Item {revealing}<br>") and texts[plain].startswith("plain.wav<br>")
    assert not any("nine_1" in name for name in layers.names.values())
    assert [line["item"] for line in pick_table(sqlite_store, project.id, row.id)] == [f"Item {revealing}", "plain.wav"]
    assert Pool(sqlite_store, project.id).item(revealing).name == "nine_1.wav"  # stored names stay
