"""A figure of the accuracy of each model with a summary, with random items and with all items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.views.figures.charts import base_layout, tokens

MODELS = {"kernel": "kernel features", "encoder": "encoder features", "network": "trained network"}
SHAPES = {"kernel": "circle", "encoder": "circle", "network": "diamond"}
LINES = ("all labeled items", "random, same size", "summary")  # from bottom to top
APART = 0.2  # vertical distance between two models on one line


def summary_figure(accuracy: Sequence[Mapping[str, Any]], *, dark: bool) -> go.Figure:
    """Percentages of correct predictions on the test items. The error bar of the random draws is ± one standard
    deviation."""
    look = tokens(dark)
    figure = go.Figure(layout=base_layout(dark, 60 + 44 * len(LINES)))
    for place, worth in enumerate(accuracy):
        shift = APART * ((len(accuracy) - 1) / 2 - place)
        model = MODELS[worth["model"]]
        dots = go.Scatter(
            x=[100 * worth[name] for name in ("everything", "uniform_mean", "summary")],
            y=[line + shift for line in range(len(LINES))],
            customdata=LINES,
            name=model,
            mode="markers",
            hovertemplate="%{customdata}: %{x:.1f} %<extra>" + model + "</extra>",
        )
        marker = {"symbol": SHAPES[worth["model"]], "size": 11, "color": [look.muted, look.muted, look.accent]}
        spread = {"type": "data", "array": [0, 100 * worth["uniform_deviation"], 0], "color": look.muted}
        figure.add_trace(dots.update(marker=marker, error_x=spread | {"thickness": 1.4}))
    figure.update_xaxes(ticksuffix=" %")
    figure.update_yaxes(showgrid=False, automargin=True, tickvals=list(range(len(LINES))), ticktext=LINES)
    figure.update_yaxes(range=[-0.5, len(LINES) - 0.5])
    figure.update_layout(showlegend=len(accuracy) > 1, legend={"orientation": "h", "y": 1.25, "x": 0})
    return figure
