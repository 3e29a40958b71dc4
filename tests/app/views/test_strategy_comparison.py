"""The comparison of strategies: overlap, classes and distances of their picks against values computed by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.views.cards.strategy_comparison import compare_picks
from app.views.figures.charts import confusion
from app.views.figures.map import HEIGHT, NUMBER_OFFSET, NUMBER_PLACES, hovers, map_figure, number_positions
from app.views.figures.map_extent import CELLS, MANY_ITEMS, map_extent
from app.views.map_layers import MapLayers
from app.views.text import figure_text
from core.config import RoundConfig
from core.types import Selection
from storage.rounds.log import RoundLog
from tests.storage.pools import make_pool


@pytest.fixture
def finished(sqlite_store):
    """Items 0 to 39 on a line at 0, 1, 2, ...; item k is predicted as class k modulo 3; picks 0 and 1."""
    made = make_pool(sqlite_store, 40)
    log = RoundLog(sqlite_store, made.project_id)
    row = log.request(RoundConfig())
    log.start(row.id)
    line = np.zeros((40, 2), np.float32)
    line[:, 0] = np.arange(40)
    picks = Selection(item_ids=np.array(made.items[:2]), scores=np.ones(2, np.float32), strategy="bico")
    arrays = {
        "item_ids": np.array(made.items, np.int64),
        "probabilities": np.eye(3, dtype=np.float32)[np.arange(40) % 3] * 0.7 + 0.1,
        "embeddings": line,
        "map": line,
    }
    metrics = {"has_model": True, "class_names": ["robin", "wren", "owl"], "n_held_out": 0}
    log.finish(row.id, arrays=arrays, selection=picks, metrics=metrics)
    return sqlite_store, log.get(row.id), made.items


def test_overlap_classes_and_distances_of_each_strategy(finished):
    store, row, items = finished
    found = compare_picks(store, row, {"badge": [items[0], items[39]], "uniform": []})
    assert found is not None and [one.name for one in found.strategies] == ["bico", "badge", "uniform"]
    own, ends, nothing = found.strategies
    assert (own.predicted, ends.predicted) == ({"robin": 1, "wren": 1}, {"robin": 2})
    assert (ends.shared, nothing.shared, nothing.to_nearest) == ({items[0]}, frozenset(), None)
    at = np.arange(40)
    ratio = np.abs(at[:, None] - np.array([0, 39])).min(1).mean() / np.abs(at[:, None] - np.array([0, 1])).min(1).mean()
    assert ends.to_nearest / own.to_nearest == pytest.approx(ratio)
    assert ends.apart / own.apart == pytest.approx(39.0)
    assert found.n_classes == 3 and len(found.background) == 40 and ends.positions[1].tolist() == [39.0, 0.0]


def layers(n: int, row, class_names=("a",)) -> MapLayers:
    none, points = np.full(n, -1, np.int16), np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    return MapLayers(
        round=row, class_names=class_names, class_ids=(1,), class_colors=("#4477AA",), item_ids=np.arange(1, n + 1),
        names={k: f'say "{k}"' for k in range(min(n, 50))},
        points=points, extent=map_extent(points),
        predicted=np.zeros(n, np.int16), confidence=np.full(n, 0.5, np.float32), label=none,
        label_round=none.astype(np.int32), annotator=none, annotator_names=(), held_out=np.zeros(n, np.bool_),
        picks=np.arange(3), other_picks={}, drawn=np.arange(min(n, 50)),
    )  # fmt: skip


def test_quotes_in_names_are_shown_unchanged_and_tags_are_not_interpreted(finished):
    _, row, _ = finished
    quoted = "the \"big\" <b>one</b> & 'others'"
    assert figure_text(quoted) == "the \"big\" &lt;b&gt;one&lt;/b&gt; &amp; 'others'"
    assert "&quot;" not in hovers(layers(4, row, (quoted,)), np.array([1]))[0]
    assert "&quot;" not in confusion(np.eye(2, dtype=np.int64), [quoted, "b"], dark=False).to_json()


def test_the_density_of_all_items_lies_below_the_points_of_a_large_map(finished):
    _, row, _ = finished
    n = MANY_ITEMS + 1_000
    found = layers(n, row)
    figure = map_figure(found, "Prediction", (), dark=False)
    density = figure.data[0]
    assert density.name == "density" and round(float(np.expm1(np.nan_to_num(density.z)).sum())) == n
    ends = [figure.layout.xaxis.range, figure.layout.yaxis.range]
    counts, *edges = np.histogram2d(*found.points.T.astype(np.float64), CELLS, ends)
    assert np.abs(np.expm1(np.nan_to_num(density.z)) - counts.T).sum() < n / 1_000, "up to points on a border"
    assert np.allclose(density.x, (edges[0][1:] + edges[0][:-1]) / 2) and np.allclose(density.y[0], edges[1][:2].mean())
    points = next(trace for trace in figure.data if trace.name == "not labeled")
    assert points.marker.line.width > 0, "a gray class differs from the gray density by its edge"
    assert map_figure(layers(100, row), "Prediction", (), dark=False).data[0].name == "not labeled"


def test_numbers_of_near_picks_have_separate_positions():
    pool = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    near = np.array([[0.0, 0.0], [0.01, 0.0], [0.0, 0.01], [3.0, 3.0]], np.float32)
    found = number_positions(near, map_extent(pool))
    assert len(set(found[:3])) == 3 and set(found) <= set(NUMBER_PLACES)
    assert found[3] == "top right" and number_positions(near[:0], map_extent(pool)) == []


def test_the_number_of_a_pick_avoids_labeled_items():
    pool = np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32)
    extent, pick = map_extent(pool), np.zeros((1, 2), np.float32)
    pixel = (extent.y[1] - extent.y[0]) / HEIGHT
    places = {name: np.array([place], np.float32) * NUMBER_OFFSET * pixel for name, place in NUMBER_PLACES.items()}
    assert number_positions(pick, extent, places["top right"]) == ["bottom right"]
    taken = np.concatenate([places["top right"], places["bottom right"]])
    assert number_positions(pick, extent, taken) == ["top left"]


def test_picks_lie_above_the_points_of_a_large_map(finished):
    """Plotly draws WebGL above shapes, so the rings must be drawn by WebGL if the points are."""
    _, row, _ = finished
    large = dataclasses.replace(layers(5_000, row), drawn=np.arange(5_000), names=dict.fromkeys(range(5000), "x"))
    for found, kind in ((layers(100, row), "scatter"), (large, "scattergl")):
        figure = map_figure(found, "Prediction", (), dark=False)
        assert [trace.type for trace in figure.data] == [kind] * 2 and figure.data[-1].name == "picked"
