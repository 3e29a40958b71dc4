"""The report of a simulation: means and standard deviations over seeds, a table as in the paper, curves with bands.

Tables and curves show inductive accuracy: that of the network alone, on test items that were not used in any way. If
there is a similarity graph, the accuracy with label propagation is in a separate table.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from app.views.figures.charts import base_layout, class_colors
from app.views.strategy_names import strategy_title
from core.errors import InvalidInput
from core.rounds.simulation_plan import INDUCTIVE, RoundRecord

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon")


def summarize(records: Sequence[RoundRecord], goal: float = 0.9) -> dict[str, Any]:
    """Summarize records: `accuracy[strategy][labels]` (means), `deviation`, `n_seeds`, the labels needed to reach
    `goal`, and the seconds of a round."""
    strategies = sorted({one.strategy for one in records})
    measures = sorted({one.measure for one in records})
    if len(measures) > 1:
        raise InvalidInput(f"Records of different measures ({', '.join(measures)}) cannot be in one table.")
    accuracy, deviation = _by_labels(records, lambda one: one.accuracy)
    propagated = [one for one in records if one.accuracy_with_propagation is not None]
    found: dict[str, Any] = {"measure": measures[0] if measures else INDUCTIVE}
    found |= {"accuracy": accuracy, "deviation": deviation}
    if propagated:
        means, deviations = _by_labels(propagated, lambda one: float(one.accuracy_with_propagation or 0.0))
        found["with_propagation"] = {"accuracy": means, "deviation": deviations}
    return found | {
        "n_seeds": {s: len({one.seed for one in records if one.strategy == s}) for s in strategies},
        f"labels_to_{round(100 * goal)}": {s: labels_to_reach(records, s, goal) for s in strategies},
        "wrong_guess_share": {s: _wrong_share([one for one in records if one.strategy == s]) for s in strategies},
        "seconds_per_round": {s: _seconds([one for one in records if one.strategy == s]) for s in strategies},
    }


Means = dict[str, dict[str, float]]


def _by_labels(records: Sequence[RoundRecord], value: Callable[[RoundRecord], float]) -> tuple[Means, Means]:
    """Means and standard deviations of `value` over seeds, as `[strategy][labels]`."""
    means: Means = {}
    deviations: Means = {}
    for strategy in sorted({one.strategy for one in records}):
        mine = [one for one in records if one.strategy == strategy]
        means[strategy], deviations[strategy] = {}, {}
        for labels in sorted({one.n_labels for one in mine}):
            values = [value(one) for one in mine if one.n_labels == labels]
            means[strategy][str(labels)] = round(statistics.fmean(values), 5)
            deviations[strategy][str(labels)] = round(statistics.stdev(values), 5) if len(values) > 1 else 0.0
    return means, deviations


def labels_to_reach(records: Sequence[RoundRecord], strategy: str, goal: float) -> dict[str, Any]:
    """The mean of the smallest number of labels with which a seed reaches the goal, over the seeds that reach it, with
    the number of these and of all seeds."""
    first: dict[int, int] = {}
    seeds = sorted({one.seed for one in records if one.strategy == strategy})
    for one in sorted(records, key=lambda record: record.n_labels):
        if one.strategy == strategy and one.accuracy >= goal:
            first.setdefault(one.seed, one.n_labels)
    mean = statistics.fmean(first.values()) if first else None
    return {"mean": mean, "reached": len(first), "seeds": len(seeds)}


def _wrong_share(records: Sequence[RoundRecord]) -> float | None:
    picks = sum(len(one.picks) for one in records)
    return round(sum(one.wrong_guesses for one in records) / picks, 4) if picks else None


def _seconds(records: Sequence[RoundRecord]) -> dict[str, float]:
    stages = sorted({stage for one in records for stage in one.seconds})
    return {stage: round(statistics.fmean(one.seconds.get(stage, 0.0) for one in records), 2) for stage in stages}


def table(summary: Mapping[str, Any]) -> str:
    """A Markdown table of percentages ± standard deviation: a row per strategy, a column per number of labels."""
    columns = sorted({int(labels) for row in summary["accuracy"].values() for labels in row})
    lines = [
        "| strategy | " + " | ".join(f"{labels} labels" for labels in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for strategy, row in summary["accuracy"].items():
        cells = [
            f"{100 * row[str(n)]:.1f} ± {100 * summary['deviation'][strategy][str(n)]:.1f}" if str(n) in row else ""
            for n in columns
        ]
        lines.append(f"| {strategy_title(strategy)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reach_table(summary: Mapping[str, Any]) -> str:
    """A Markdown table of the labels that each strategy needs to reach the goal."""
    name = next(key for key in summary if key.startswith("labels_to_"))
    goal = name.removeprefix("labels_to_")
    lines = [f"| strategy | labels to reach {goal} % | seeds that reached it |", "|---|---|---|"]
    for strategy, found in summary[name].items():
        mean = f"{found['mean']:.0f}" if found["mean"] is not None else "not reached"
        lines.append(f"| {strategy_title(strategy)} | {mean} | {found['reached']} of {found['seeds']} |")
    return "\n".join(lines) + "\n"


def measure_words(summary: Mapping[str, Any]) -> str:
    """The display name of the accuracy in a summary."""
    return "test accuracy" + ("" if summary.get("measure", INDUCTIVE) == INDUCTIVE else " (earlier measure)")


def tables(summary: Mapping[str, Any]) -> str:
    """All tables in Markdown, each under its title."""
    inductive = summary.get("measure", INDUCTIVE) == INDUCTIVE
    heading = (
        "Inductive accuracy, %: the network alone on the test items" if inductive else "Accuracy, earlier measure, %"
    )
    parts = [f"{heading}\n", table(summary)]
    if "with_propagation" in summary:
        parts += ["With label propagation, the test items as new items, %\n", table(summary["with_propagation"])]
    return "\n".join([*parts, reach_table(summary)])


def curves(summary: Mapping[str, Any], title: str = "", dark: bool = False) -> go.Figure:
    """A figure of the mean accuracy over labels with a band of one standard deviation. Strategies differ in color, dash
    and marker."""
    figure = go.Figure(layout=base_layout(dark, 480))
    colors = class_colors(len(summary["accuracy"]))
    for k, (strategy, row) in enumerate(summary["accuracy"].items()):
        x = sorted(int(labels) for labels in row)
        mean = [100 * row[str(n)] for n in x]
        spread = [100 * summary["deviation"][strategy][str(n)] for n in x]
        pairs = list(zip(mean, spread, strict=True))
        upper, lower = [m + s for m, s in pairs], [m - s for m, s in pairs]
        red, green, blue = (int(colors[k][p : p + 2], 16) for p in (1, 3, 5))
        band = go.Scatter(x=[*x, *x[::-1]], y=[*upper, *lower[::-1]], fill="toself", mode="lines", line={"width": 0})
        band.update(fillcolor=f"rgba({red},{green},{blue},0.12)", hoverinfo="skip", showlegend=False)
        figure.add_trace(band)
        figure.add_trace(
            go.Scatter(
                x=x,
                y=mean,
                name=strategy_title(strategy),
                mode="lines+markers",
                line={"color": colors[k], "width": 2, "dash": DASHES[k % len(DASHES)]},
                marker={"symbol": SYMBOLS[k % len(SYMBOLS)], "size": 9},
                hovertemplate=f"{strategy_title(strategy)}: %{{y:.1f}} % at %{{x:,}} labels<extra></extra>",
            )
        )
    figure.update_layout(showlegend=True, title=title or None, margin={"t": 44 if title else 12}, paper_bgcolor="white")
    figure.update_xaxes(title_text="labels")
    figure.update_yaxes(title_text=measure_words(summary), ticksuffix=" %")
    return figure


def write_report(records: Sequence[RoundRecord], folder: Path, title: str = "") -> dict[str, Any]:
    """Write tables.md, curves.html and, if a browser is available to draw it, curves.png. Returns the summary."""
    summary = summarize(records)
    (folder / "tables.md").write_text(tables(summary))
    figure = curves(summary, title)
    figure.write_html(folder / "curves.html", include_plotlyjs=True)
    summary["files"] = ["results.json", "tables.md", "curves.html"]
    try:
        figure.write_image(folder / "curves.png", width=900, height=520, scale=1)
        summary["files"].append("curves.png")
    except Exception as error:  # no browser on this machine; the HTML file has the same figure
        summary["png"] = f"not drawn: {type(error).__name__}"
    return summary
