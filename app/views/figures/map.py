"""The map as a figure: circles for the pool, triangles for labeled items, numbered rings for picks.

The browser gets only the item id of a point (`customdata`). Selected areas are returned as geometry and are resolved on
the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.views.figures.charts import base_layout, class_colors, fade, tokens
from app.views.map_layers import NONE, MapLayers
from app.views.text import figure_text

Coloring = Literal["Prediction", "Label", "Confidence", "Round", "Annotator"]
RAMPS = ("Confidence", "Round")
OTHER_SYMBOLS = ("square-open", "diamond-open", "star-open", "cross-open", "hexagon-open", "pentagon-open")
HEIGHT = 520
FEW_POINTS = 3_000  # drawn as shapes, so that the numbers of picks lie above them; more are drawn by the GPU
MANY_ITEMS = 50_000  # above, the density of all items lies below the points
DENSITY_CELLS, DENSITY_OPACITY = 160, 0.55
DOT_SIZES = ((3_000, 6.0), (20_000, 4.5))  # up to so many points; more have the smallest size
SMALLEST_DOT = 3.0
DOT_OPACITY = 0.8
UNFADED = {"marker": {"opacity": 1}}  # a click opens an item and does not fade the others
MARGIN = 0.07  # of the extent, on each side
NO_MARGIN = {"l": 0, "r": 0, "t": 0, "b": 0}


def map_figure(found: MapLayers, coloring: Coloring, others: tuple[str, ...], *, dark: bool) -> go.Figure:
    """`others` are the strategies whose picks are also drawn."""
    look = tokens(dark)
    figure = go.Figure(layout=base_layout(dark, HEIGHT))
    labeled = found.label[found.drawn] != NONE
    circles, triangles = picks_last(found, found.drawn[~labeled]), picks_last(found, found.drawn[labeled])
    if found.n_items > MANY_ITEMS:
        figure.add_trace(_density(found.points, look.muted))
    few = len(found.drawn) <= FEW_POINTS
    dots, painted = (go.Scatter, _named) if few else (go.Scattergl, _scaled)
    figure.add_trace(
        dots(
            **_at(found, circles),
            marker=painted(found, coloring, circles, dark) | _dot(len(found.drawn)),
            unselected={"marker": {"opacity": DOT_OPACITY}},
            name="not labeled",
        )
    )
    if len(triangles):
        marker = painted(found, coloring, triangles, dark) | {"symbol": "triangle-up", "size": 11}
        marker["line"] = {"width": 1.4, "color": look.text}
        figure.add_trace(dots(**_at(found, triangles), marker=marker, unselected=UNFADED, name="labeled"))
    for k, name in enumerate(others):
        rows = found.other_picks.get(name, np.empty(0, np.int64))
        symbol = OTHER_SYMBOLS[k % len(OTHER_SYMBOLS)]
        marker = {"symbol": symbol, "size": 15, "color": look.muted, "line": {"width": 2}}
        figure.add_trace(go.Scatter(**_at(found, rows), marker=marker, unselected=UNFADED, name=name))
    if len(found.picks):
        at = _at(found, found.picks) | {"mode": "markers+text"}
        ring = {"symbol": "circle-open", "size": 20, "color": look.accent, "line": {"width": 2.5, "color": look.accent}}
        order = [f"<b>{place}</b>" for place in range(1, len(found.picks) + 1)]
        font = {"color": look.text, "size": 12}
        rings = go.Scatter(**at, marker=ring, text=order, textposition="top right", textfont=font, name="picked")
        figure.add_trace(rings.update(unselected=UNFADED | {"textfont": {"color": look.text}}))
    bar = {"bgcolor": "rgba(0,0,0,0)", "color": look.muted, "activecolor": look.accent}
    figure.update_layout(dragmode="pan", margin=NO_MARGIN, uirevision="map", modebar=bar)
    figure.update_layout(newselection={"line": {"color": look.accent, "width": 1.5}})
    x, y = frame(found.points)
    figure.update_xaxes(visible=False, range=x)
    figure.update_yaxes(visible=False, range=y, scaleanchor="x")
    return figure


def _dot(n_drawn: int) -> dict[str, object]:
    """The look of a point: smaller where there are many, so that clusters do not become one area."""
    size = next((size for most, size in DOT_SIZES if n_drawn <= most), SMALLEST_DOT)
    return {"size": size, "opacity": DOT_OPACITY, "line": {"width": 0}}


def _density(points: NDArray[np.float32], color: str) -> go.Heatmap:
    """The number of items in each cell of a grid over all items, on a logarithmic scale; empty cells are clear."""
    (left, right), (low, high) = frame(points)
    inside = np.isfinite(points).all(1)
    counts, xs, ys = np.histogram2d(
        points[inside, 0], points[inside, 1], DENSITY_CELLS, range=[[left, right], [low, high]]
    )
    z = np.where(counts.T > 0, np.log1p(counts.T), np.nan)
    scale = [[0.0, fade(color, 0.05)], [1.0, fade(color, DENSITY_OPACITY)]]
    centers = [(edges[1:] + edges[:-1]) / 2 for edges in (xs, ys)]
    return go.Heatmap(
        x=centers[0], y=centers[1], z=z, colorscale=scale, showscale=False, hoverinfo="skip", name="density"
    )


def picks_last(found: MapLayers, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """`rows` with the picks at the end: they are drawn on top, so a click on overlapping points opens the pick."""
    return rows[np.argsort(np.isin(rows, found.picks), kind="stable")]


def mark_open_item(figure: go.Figure, found: MapLayers, row: int, *, dark: bool) -> None:
    """Add a ring around the point of the open item."""
    marker = {"symbol": "circle-open", "size": 28, "color": tokens(dark).text, "line": {"width": 2}}
    at = {"x": found.points[[row], 0], "y": found.points[[row], 1], "customdata": found.item_ids[[row]]}
    figure.add_trace(go.Scatter(**at, mode="markers", marker=marker, unselected=UNFADED, name="open", hoverinfo="skip"))


def outline(figure: go.Figure, areas: Sequence[tuple[Sequence[float], Sequence[float]]], *, dark: bool) -> None:
    """Draw selected areas into the figure, so that they stay visible after a redraw."""
    look = tokens(dark)
    for x, y in areas:
        path = "M" + "L".join(f"{a:.5g},{b:.5g}" for a, b in zip(x, y, strict=True)) + "Z"
        line = {"color": look.accent, "width": 1.5, "dash": "5px,4px"}
        figure.add_shape(type="path", path=path, line=line, fillcolor=fade(look.accent, 0.12), layer="below")


def frame(points: NDArray[np.float32]) -> tuple[list[float], list[float]]:
    """The range of both axes: all points with a margin. It does not depend on labels, picks or colors, so points keep
    their place when these change."""
    if not len(points):
        return [-1.0, 1.0], [-1.0, 1.0]
    low, high = points.min(0).astype(float), points.max(0).astype(float)
    margin = np.maximum(MARGIN * (high - low), MARGIN * max(float((high - low).max()), 1e-3))
    ends = np.stack([low - margin, high + margin], 1)
    return ends[0].tolist(), ends[1].tolist()


def _at(found: MapLayers, rows: NDArray[np.int64]) -> dict[str, object]:
    return {
        "x": found.points[rows, 0],
        "y": found.points[rows, 1],
        "mode": "markers",
        "customdata": found.item_ids[rows],
        "hovertext": np.array(hovers(found, rows), np.str_),  # an array: plotly checks a list value by value
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def hovers(found: MapLayers, rows: NDArray[np.int64]) -> list[str]:
    """Name, label or prediction of each point, as text."""
    names = [_escaped(found.names[row][:80]) for row in rows.tolist()]
    classes = [figure_text(name) for name in found.class_names]
    said = []
    columns = (found.label, found.predicted, found.confidence, found.held_out)
    for name, label, predicted, confidence, test in zip(names, *(c[rows].tolist() for c in columns), strict=True):
        if label != NONE:
            name += f"<br>labeled {classes[label]}"
        elif predicted != NONE:
            name += f"<br>predicted {classes[predicted]}, {100 * confidence:.0f} %"
        said.append(name + "<br>test item" if test else name)
    return said


@lru_cache(maxsize=100_000)  # two maps of the most points
def _escaped(name: str) -> str:
    return figure_text(name)


def _named(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> dict[str, object]:
    """The colors of few points, by their codes."""
    return {"color": point_colors(found, coloring, rows, dark).tolist()}


def _scaled(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> dict[str, object]:
    """The colors of many points, as numbers on a scale: plotly checks color codes one by one."""
    values, colors = _color_values(found, coloring, rows, dark)
    if coloring in RAMPS:
        return {"color": values, "colorscale": [[0, colors[0]], [1, colors[1]]], "cmin": 0, "cmax": 1}
    n = len(colors)
    steps = [[(k + end) / n, color] for k, color in enumerate(colors) for end in (0, 1)]
    return {"color": np.where(values == NONE, n - 1, values) + 0.5, "colorscale": steps, "cmin": 0, "cmax": n}


def point_colors(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> NDArray[np.object_]:
    """(n,) a color for each row."""
    values, colors = _color_values(found, coloring, rows, dark)
    if coloring in RAMPS:
        return _ramp(values, *colors)
    painted: NDArray[np.object_] = np.array(colors, object)[values]
    return painted


def _color_values(
    found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool
) -> tuple[NDArray[np.float64], list[str]]:
    """A number for each row and the colors it refers to: a share between two colors, or a position among all, NONE for
    the last."""
    look = tokens(dark)
    if coloring == "Confidence":
        return found.confidence[rows].astype(np.float64), [look.line, look.accent]
    if coloring == "Round":
        last, rounds = max(int(found.label_round.max(initial=0)), 1), found.label_round[rows]
        return np.where(rounds == NONE, 0.0, np.clip(rounds / last, 0.25, 1.0)), [look.line, look.accent]
    label = found.label[rows]
    chosen = {
        "Prediction": np.where(label != NONE, label, found.predicted[rows]),
        "Label": label,
        "Annotator": found.annotator[rows],
    }[coloring]
    colors = [color for _, color in named_colors(found, coloring)]
    return chosen, [*colors, look.muted if coloring == "Prediction" else look.line]


def named_colors(found: MapLayers, coloring: Coloring) -> list[tuple[str, str]]:
    """(name, color) of each class or annotator, in the order of positions; empty for a color ramp."""
    if coloring == "Annotator":
        names = found.annotator_names
        return list(zip(names, class_colors(len(names)), strict=True))
    if coloring in ("Prediction", "Label"):
        return list(zip(found.class_names, found.class_colors, strict=True))
    return []


def _ramp(values: NDArray[np.floating], low: str, high: str) -> NDArray[np.object_]:
    ends = [np.array([int(color[k : k + 2], 16) for k in (1, 3, 5)], np.float64) for color in (low, high)]
    mixed = ends[0] + np.clip(values, 0, 1)[:, None] * (ends[1] - ends[0])
    return np.array(["#{:02X}{:02X}{:02X}".format(*row) for row in mixed.round().astype(int)], object)
