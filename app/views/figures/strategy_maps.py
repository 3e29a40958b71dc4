"""A small map for each strategy: the pool in gray, the strategy's picks in the accent color, the round's as rings."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.views.cards.strategy_comparison import PicksComparison
from app.views.figures.charts import base_layout, tokens
from app.views.text import figure_text

HEIGHT = 210


def strategy_maps(found: PicksComparison, *, dark: bool) -> go.Figure:
    """One figure with a small map for each strategy."""
    look = tokens(dark)
    n = len(found.strategies)
    figure = make_subplots(
        cols=n, horizontal_spacing=0.02, subplot_titles=[figure_text(one.title) for one in found.strategies]
    )
    layout = base_layout(dark, HEIGHT)
    figure.update_layout(layout, margin={"l": 4, "r": 4, "t": 28, "b": 4})
    own = found.strategies[0].positions
    for column, one in enumerate(found.strategies, 1):
        figure.add_trace(_dots(found.background, {"size": 3, "color": look.muted, "opacity": 0.35}), row=1, col=column)
        if column > 1:
            ring = {"size": 11, "color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": look.muted}}
            figure.add_trace(_dots(own, ring), row=1, col=column)
        figure.add_trace(_dots(one.positions, {"size": 8, "color": look.accent}), row=1, col=column)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.update_annotations(font={"size": 13, "color": look.text})
    return figure


def _dots(points: object, marker: dict[str, object]) -> go.Scattergl:
    x, y = (points[:, axis] for axis in (0, 1))  # type: ignore[index]
    return go.Scattergl(x=x, y=y, mode="markers", marker=marker, hoverinfo="skip", showlegend=False)
