"""Plotly figures with the design tokens of the app, for the light and the dark theme.

Every figure has a transparent background, a thin grid and no decoration. Color encodes a class, a state or the current
picks. Shape, order or text encodes the same information.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.views.text import figure_text

FONT = "Inter, system-ui, sans-serif"
CLASS_COLORS = (
    "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#EE8866", "#44BB99", "#BBBBBB", "#77AADD",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tokens:
    """The design tokens of a theme: colors as hex codes."""

    surface: str
    text: str
    muted: str
    line: str
    accent: str
    key: str


LIGHT = Tokens("#FFFFFF", "#1E2124", "#5C6470", "#E5E2DA", "#A8540A", "#F1EFE9")
DARK = Tokens("#1B1E22", "#ECEBE7", "#A2A9B3", "#2C3036", "#F0A350", "#262A30")
PLOT_OPTIONS = {"displaylogo": False, "displayModeBar": False, "responsive": True}
MAP_OPTIONS = {
    "displaylogo": False,
    "scrollZoom": True,
    "responsive": True,
    "modeBarButtons": [["lasso2d", "pan2d", "zoom2d", "resetScale2d"]],
}


def tokens(dark: bool) -> Tokens:
    return DARK if dark else LIGHT


def class_colors(n: int) -> list[str]:
    """`n` colors: the ten of the palette, then hues of the same lightness. Hover texts also identify the classes."""
    more = max(0, n - len(CLASS_COLORS))
    generated = [colorsys.hls_to_rgb((0.61803398875 * k) % 1.0, 0.55, 0.5) for k in range(more)]
    hexes = ["#" + "".join(f"{round(channel * 255):02X}" for channel in color) for color in generated]
    return [*CLASS_COLORS[:n], *hexes]


def wilson(successes: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """The 95 % Wilson interval of the share successes / n. It is (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    center = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


def base_layout(dark: bool, height: int) -> go.Layout:
    """The layout that all figures share."""
    look = tokens(dark)
    axis = {
        "gridcolor": look.line,
        "linecolor": look.line,
        "zeroline": False,
        "tickfont": {"color": look.muted, "size": 12},
        "title": {"font": {"color": look.muted, "size": 12.5}},
        "ticks": "",
    }
    return go.Layout(
        height=height,
        margin={"l": 44, "r": 12, "t": 8, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "color": look.text, "size": 13},
        hoverlabel={"bgcolor": look.surface, "bordercolor": look.line, "font": {"family": FONT, "color": look.text}},
        showlegend=False,
        xaxis=axis,
        yaxis=axis,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Accuracy after one round: `correct` of `n` predictions."""

    round: int
    labels: int
    correct: int
    n: int
    strategy: str
    interval: tuple[float, float] | None = None  # the 95 % interval; None: the Wilson interval

    @property
    def share(self) -> float:
        return self.correct / self.n if self.n else math.nan


def learning_curve(points: Sequence[CurvePoint], *, dark: bool, height: int = 250) -> go.Figure:
    """A line of the percentage of correct predictions over the number of labels, with the 95 % intervals as a band."""
    look = tokens(dark)
    x = [point.labels for point in points]
    bounds = [point.interval or wilson(point.correct, point.n) for point in points]
    figure = go.Figure(layout=base_layout(dark, height))
    if len(points) > 1:
        upper, lower = [100 * high for _, high in bounds], [100 * low for low, _ in bounds]
        band = go.Scatter(x=[*x, *x[::-1]], y=[*upper, *lower[::-1]], fill="toself", line={"width": 0})
        figure.add_trace(band.update(fillcolor=fade(look.accent, 0.14), hoverinfo="skip", mode="lines"))
    spread = {
        "type": "data",
        "symmetric": False,
        "array": [100 * (high - p.share) for p, (_, high) in zip(points, bounds, strict=True)],
        "arrayminus": [100 * (p.share - low) for p, (low, _) in zip(points, bounds, strict=True)],
        "color": look.accent,
        "thickness": 1.2,
        "visible": len(points) == 1,
    }
    figure.add_trace(
        go.Scatter(
            x=x,
            y=[100 * point.share for point in points],
            error_y=spread,
            mode="lines+markers",
            line={"color": look.accent, "width": 2},
            marker={"color": look.accent, "size": 9},
            customdata=[
                [p.round, p.strategy, p.correct, p.n, 100 * low, 100 * high]
                for p, (low, high) in zip(points, bounds, strict=True)
            ],
            hovertemplate="Round %{customdata[0]} · %{customdata[1]}<br>%{y:.1f} % (%{customdata[2]:,} of "
            "%{customdata[3]:,})<br>95 % interval %{customdata[4]:.1f} to %{customdata[5]:.1f} %<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="labels", **_label_ticks(x))
    figure.update_yaxes(ticksuffix=" %", range=[max(0.0, _floor(bounds)), 101])
    return figure


def loss_line(steps: Sequence[int], losses: Sequence[float], *, dark: bool, height: int = 84) -> go.Figure:
    """A small line of the training loss, with values on hover."""
    look = tokens(dark)
    figure = go.Figure(layout=base_layout(dark, height))
    line = go.Scatter(x=list(steps), y=list(losses), mode="lines", line={"color": look.accent, "width": 2})
    figure.add_trace(line.update(hovertemplate="step %{x:,}: loss %{y:.3f}<extra></extra>"))
    figure.update_layout(margin={"l": 4, "r": 4, "t": 4, "b": 4})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


def confusion(counts: NDArray[np.int64], class_names: Sequence[str], *, dark: bool, height: int = 250) -> go.Figure:
    """A confusion matrix: rows are labels, columns are predictions, the shade is the share of the row. Hover texts show
    counts, as in "9 predicted as 1"."""
    look = tokens(dark)
    totals = np.maximum(counts.sum(1, keepdims=True), 1)
    shares = counts / totals
    names = [figure_text(name) for name in class_names]  # plotly renders some HTML in texts
    hover = [
        [f"{names[i]} predicted as {names[j]}" if i != j else f"{names[i]}, correct" for j in range(len(names))]
        for i in range(len(names))
    ]
    figure = go.Figure(layout=base_layout(dark, height))
    figure.add_trace(
        go.Heatmap(
            z=shares,
            x=names,
            y=names,
            text=counts,
            customdata=hover,
            colorscale=[[0.0, look.key], [1.0, look.accent]],
            zmin=0,
            zmax=1,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{customdata}: %{text:,} (%{z:.0%})<extra></extra>",
        )
    )
    upright = {"tickangle": -90} if max(map(len, names), default=0) > 3 else {}  # otherwise plotly may slant long names
    shown = len(names) <= 20
    figure.update_xaxes(showgrid=False, title_text="predicted", type="category", showticklabels=shown, **upright)
    figure.update_yaxes(showgrid=False, autorange="reversed", type="category", showticklabels=len(names) <= 20)
    return figure


def class_counts(counts: Sequence[int], class_names: Sequence[str], *, dark: bool, height: int = 220) -> go.Figure:
    """A bar chart of the number of labels of each class."""
    look = tokens(dark)
    figure = go.Figure(layout=base_layout(dark, height))
    names = [figure_text(name) for name in class_names]
    bars = go.Bar(x=names, y=list(counts), marker={"color": look.accent, "cornerradius": 4})
    figure.add_trace(bars.update(hovertemplate="%{x}: %{y:,}<extra></extra>"))
    figure.update_xaxes(showgrid=False, type="category", showticklabels=len(class_names) <= 20)
    most = max(counts, default=0)
    step = {"dtick": 1} if most <= 5 else {"nticks": 5}
    figure.update_yaxes(tickformat=",d", range=[0, 1.05 * max(most, 1)], **step)
    return figure


def _label_ticks(labels: Sequence[int]) -> dict[str, object]:
    """Integer ticks: one per round if there are few rounds, otherwise at round numbers."""
    if len(set(labels)) <= 8:
        return {"tickvals": sorted(set(labels)), "tickformat": ",d"}
    return {"nticks": 8, "tickformat": ",d"}


def fade(color: str, alpha: float) -> str:
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _floor(bounds: Sequence[tuple[float, float]]) -> float:
    lowest = min((100 * low for low, _ in bounds), default=0.0)
    return 10 * math.floor(lowest / 10) - 1
