"""The map as a figure: circles for the pool, triangles for labeled items, numbered rings for picks.

Of each point, the browser gets only the item id (`customdata`). It returns selected areas as geometry, and the server
determines the items in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.views.figures.charts import base_layout, class_colors, fade, tokens
from app.views.figures.map_extent import MapExtent
from app.views.map_layers import NONE, MapLayers
from app.views.text import figure_text

Coloring = Literal["Prediction", "Label", "Confidence", "Round", "Annotator"]
RAMPS = ("Confidence", "Round")
OTHER_SYMBOLS = ("square-open", "diamond-open", "star-open", "cross-open", "hexagon-open", "pentagon-open")
HEIGHT = 520
FEW_POINTS = 3_000  # up to this number, points are SVG shapes below the numbers of picks; more are drawn by the GPU
DENSITY_OPACITY = 0.7
DOT_SIZES = ((3_000, 6.0), (20_000, 4.5))  # (largest number of points, size); more points have the smallest size
SMALLEST_DOT = 3.0
DOT_OPACITY, DOT_OPACITY_ON_DENSITY = 0.8, 0.8
DOT_ON_DENSITY, EDGE_ON_DENSITY = 4.0, 0.6  # pixels
WIDEST = 1.8  # width of the map over its height
NUMBER_PLACES = {
    "top right": (1, 1), "bottom right": (1, -1), "top left": (-1, 1), "bottom left": (-1, -1),
    "middle right": (1.2, 0), "middle left": (-1.2, 0), "top center": (0, 1.2), "bottom center": (0, -1.2),
}  # fmt: skip
NUMBER_OFFSET, RING_SIZE = 16.0, 14.0  # pixels: distance of a number from the center of its ring, and space of a ring
TRIANGLE_SIZE = 11.0  # pixels: space of the triangle of a labeled item
NO_POINTS: NDArray[np.float32] = np.empty((0, 2), np.float32)
NUMBER_SIZE = np.array([18.0, 14.0])  # pixels: width and height of a number
UNFADED = {"marker": {"opacity": 1}}  # a click opens an item and does not fade the others
NO_MARGIN = {"l": 0, "r": 0, "t": 0, "b": 0}


def map_figure(found: MapLayers, coloring: Coloring, others: tuple[str, ...], *, dark: bool) -> go.Figure:
    """The map as a figure. `others` are strategies whose picks are drawn as well."""
    look = tokens(dark)
    figure = go.Figure(layout=base_layout(dark, HEIGHT))
    labeled = found.label[found.drawn] != NONE
    circles, triangles = picks_last(found, found.drawn[~labeled]), picks_last(found, found.drawn[labeled])
    if found.extent.density is not None:
        figure.add_trace(_density(found.extent, look.muted))
    few = len(found.drawn) <= FEW_POINTS
    dots, painted = (go.Scatter, _named) if few else (go.Scattergl, _scaled)
    figure.add_trace(
        dots(
            **_at(found, circles),
            marker=painted(found, coloring, circles, dark) | _dot(found, fade(look.text, 0.4)),
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
        figure.add_trace(dots(**_at(found, rows), marker=marker, unselected=UNFADED, name=name))
    if len(found.picks):
        at = _at(found, found.picks) | {"mode": "markers+text"}
        ring = {"symbol": "circle-open", "size": 20, "color": look.accent, "line": {"width": 2.5, "color": look.accent}}
        order = [str(place) for place in range(1, len(found.picks) + 1)]
        font: dict[str, object] = {"color": look.text, "size": 12, "weight": "bold"}
        if few:
            font["shadow"] = f"0 0 3px {look.surface}, 0 0 3px {look.surface}"  # keeps numbers readable above points
        beside = number_positions(found.points[found.picks], found.extent, found.points[triangles])
        rings = dots(**at, marker=ring, text=order, textposition=beside, textfont=font, name="picked")
        figure.add_trace(rings.update(unselected=UNFADED | {"textfont": {"color": look.text}}))
    bar = {"bgcolor": "rgba(0,0,0,0)", "color": look.muted, "activecolor": look.accent}
    figure.update_layout(dragmode="pan", margin=NO_MARGIN, uirevision="map", modebar=bar)
    figure.update_layout(newselection={"line": {"color": look.accent, "width": 1.5}})
    figure.update_xaxes(visible=False, range=found.extent.x)
    figure.update_yaxes(visible=False, range=found.extent.y, scaleanchor="x")
    return figure


def _dot(found: MapLayers, edge: str) -> dict[str, object]:
    """The marker of a point. It is smaller on maps with many points, so that clusters do not become one area. On top of
    the gray density it has an edge, because the color of a class may be gray, too."""
    if found.extent.density is not None:
        line = {"width": EDGE_ON_DENSITY, "color": edge}
        return {"size": DOT_ON_DENSITY, "opacity": DOT_OPACITY_ON_DENSITY, "line": line}
    size = next((size for most, size in DOT_SIZES if len(found.drawn) <= most), SMALLEST_DOT)
    return {"size": size, "opacity": DOT_OPACITY, "line": {"width": 0}}


def _density(extent: MapExtent, color: str) -> go.Heatmap:
    """A heat map of the number of items in each cell of a grid, on a logarithmic scale. Empty cells are transparent."""
    assert extent.density is not None
    z = np.where(extent.density > 0, np.log1p(extent.density.astype(np.float32)), np.float32(np.nan))
    scale = [[0.0, fade(color, 0.05)], [1.0, fade(color, DENSITY_OPACITY)]]
    x, y = (_centers(ends, n) for ends, n in ((extent.x, z.shape[1]), (extent.y, z.shape[0])))
    return go.Heatmap(x=x, y=y, z=z, colorscale=scale, showscale=False, hoverinfo="skip", name="density")


def _centers(ends: tuple[float, float], n: int) -> NDArray[np.float64]:
    edges = np.linspace(*ends, n + 1)
    return np.asarray((edges[1:] + edges[:-1]) / 2, np.float64)


def picks_last(found: MapLayers, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """`rows` with the picks at the end. They are drawn on top, so a click on overlapping points opens the pick."""
    return rows[np.argsort(np.isin(rows, found.picks), kind="stable")]


def number_positions(
    picks: NDArray[np.float32], extent: MapExtent, labeled: NDArray[np.float32] = NO_POINTS
) -> list[str]:
    """The text position of the number of each pick, chosen so that the numbers of nearby picks do not overlap.

    Of the eight positions around a ring, the first one that is free of earlier numbers, other rings and triangles (at
    `labeled`) is used, otherwise the one with the least overlap; overlap with triangles has the smallest weight. The
    positions are computed for the initial view of the map.
    """
    (left, right), (low, high) = extent.x, extent.y
    scale = HEIGHT / max(high - low, (right - left) / WIDEST, 1e-9)
    pixels, triangles = picks.astype(np.float64) * scale, labeled.astype(np.float64) * scale
    names, around = list(NUMBER_PLACES), NUMBER_OFFSET * np.array(list(NUMBER_PLACES.values()))
    numbers = np.empty((0, 2))
    chosen: list[str] = []
    for row, at in enumerate(pixels):
        centers = at + around  # (8, 2)
        rings = np.delete(pixels, row, axis=0)
        on_rings = np.linalg.norm(centers[:, None] - rings[None], axis=2) < RING_SIZE
        on_numbers = (np.abs(centers[:, None] - numbers[None]) < NUMBER_SIZE).all(2)
        on_triangles = np.linalg.norm(centers[:, None] - triangles[None], axis=2) < TRIANGLE_SIZE
        best = int((on_rings.sum(1) + on_numbers.sum(1) + on_triangles.any(1) / 2).argmin())
        numbers = np.vstack([numbers, centers[best]])
        chosen.append(names[best])
    return chosen


def mark_open_item(figure: go.Figure, found: MapLayers, row: int, *, dark: bool) -> None:
    """Add a ring around the point of the open item."""
    marker = {"symbol": "circle-open", "size": 28, "color": tokens(dark).text, "line": {"width": 2}}
    at = {"x": found.points[[row], 0], "y": found.points[[row], 1], "customdata": found.item_ids[[row]]}
    dots = go.Scatter if len(found.drawn) <= FEW_POINTS else go.Scattergl
    figure.add_trace(dots(**at, mode="markers", marker=marker, unselected=UNFADED, name="open", hoverinfo="skip"))


def outline(figure: go.Figure, areas: Sequence[tuple[Sequence[float], Sequence[float]]], *, dark: bool) -> None:
    """Add selected areas to the figure, so that they stay visible after a redraw."""
    look = tokens(dark)
    for x, y in areas:
        path = "M" + "L".join(f"{a:.5g},{b:.5g}" for a, b in zip(x, y, strict=True)) + "Z"
        line = {"color": look.accent, "width": 1.5, "dash": "5px,4px"}
        figure.add_shape(type="path", path=path, line=line, fillcolor=fade(look.accent, 0.12), layer="below")


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
    """The hover text of each point: its name, and its label or prediction."""
    names = [_escaped(found.names[row][:80]) for row in rows.tolist()]
    classes = [figure_text(name) for name in found.class_names]
    texts = []
    columns = (found.label, found.predicted, found.confidence, found.held_out)
    for name, label, predicted, confidence, test in zip(names, *(c[rows].tolist() for c in columns), strict=True):
        if label != NONE:
            name += f"<br>labeled {classes[label]}"
        elif predicted != NONE:
            name += f"<br>predicted {classes[predicted]}, {100 * confidence:.0f} %"
        texts.append(name + "<br>test item" if test else name)
    return texts


@lru_cache(maxsize=100_000)  # enough for two maps with the largest number of points
def _escaped(name: str) -> str:
    return figure_text(name)


def _named(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> dict[str, object]:
    """Marker colors for a few points, as color codes."""
    return {"color": point_colors(found, coloring, rows, dark).tolist()}


def _scaled(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> dict[str, object]:
    """Marker colors for many points, as numbers on a color scale, because plotly validates color codes one by one."""
    values, colors = _color_values(found, coloring, rows, dark)
    if coloring in RAMPS:
        return {"color": values, "colorscale": [[0, colors[0]], [1, colors[1]]], "cmin": 0, "cmax": 1}
    n = len(colors)
    steps = [[(k + end) / n, color] for k, color in enumerate(colors) for end in (0, 1)]
    return {"color": np.where(values == NONE, n - 1, values) + 0.5, "colorscale": steps, "cmin": 0, "cmax": n}


def point_colors(found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool) -> NDArray[np.object_]:
    """(n,) the color of each row."""
    values, colors = _color_values(found, coloring, rows, dark)
    if coloring in RAMPS:
        return _ramp(values, *colors)
    painted: NDArray[np.object_] = np.array(colors, object)[values]
    return painted


def _color_values(
    found: MapLayers, coloring: Coloring, rows: NDArray[np.int64], dark: bool
) -> tuple[NDArray[np.float64], list[str]]:
    """A value for each row, and the colors that the values refer to. A value is a fraction between two colors, or the
    position of a color, where NONE refers to the last color."""
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
    """(name, color) for each class or annotator, in the order of positions. Empty for a continuous color scale."""
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
