"""Runs an experiment and stores its results: `python -m experiments.paper.NAME --size small|full --out DIR`.

A module defines `main(arguments) -> Record` and ends with `run("name", main)`. Output: DIR/results.json
(every row, settings, CPU seconds), DIR/plot.html and DIR/plot.png, and one JSON object as the last line of the output.
A module that measures with `Parts` continues when it is started again with the same DIR.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch

DATA = Path("data")  # the folder of data sets where --data is not given


@dataclass(frozen=True)
class Arguments:
    """The command line."""

    size: str
    out: Path
    data: Path
    only: tuple[str, ...] = ()  # parts of the experiment by name; empty: all

    @property
    def small(self) -> bool:
        return self.size == "small"


@dataclass
class Record:
    """Rows of a table (one dict each), their settings, the claims that they support, and a plot."""

    rows: list[dict[str, Any]]
    settings: dict[str, Any]
    claims: dict[str, Any] = field(default_factory=dict)
    figure: go.Figure | None = None
    earlier_seconds: float = 0.0  # CPU time of the parts that an interrupted run had measured


Rows = list[dict[str, Any]]


class Parts:
    """The parts of an experiment, each measured once.

    DIR/parts.jsonl gets a line for every part when it ends. A run that is started again reads these lines and measures
    only the other parts. Parts that were measured with other settings are measured again.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = out / "parts.jsonl", json.loads(json.dumps(settings, default=plain))
        self.earlier_seconds = 0.0
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]  # an interrupted write has no end
        self.known = {one["part"]: one for one in found if one["settings"] == self.settings}

    def rows(self, part: str, measure: Callable[[], Rows]) -> Rows:
        """The rows of a part, from the file or from `measure`."""
        if part in self.known:
            self.earlier_seconds += self.known[part]["cpu_seconds"]
            return list(self.known[part]["rows"])
        began = time.process_time()
        rows = measure()
        seconds = round(time.process_time() - began, 1)
        line = {"part": part, "cpu_seconds": seconds, "settings": self.settings, "rows": rows}
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(line, default=plain))  # a new line also after an interrupted one
        say(f"{part}: {seconds} s of CPU time")
        return list(json.loads(json.dumps(rows, default=plain)))


def run(name: str, main: Callable[[Arguments], Record]) -> None:
    spec = sys.modules["__main__"].__spec__
    parser = argparse.ArgumentParser(prog=f"python -m {spec.name if spec else name}")
    parser.add_argument("--size", choices=["small", "full"], default="small")
    parser.add_argument("--out", type=Path, default=Path("results") / name)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the experiment by name; default: all")
    given = parser.parse_args()
    arguments = Arguments(given.size, given.out, given.data, tuple(given.only))
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.process_time()
    record = main(arguments)
    summary = {
        "experiment": name,
        "size": arguments.size,
        "cpu_seconds": round(time.process_time() - began + record.earlier_seconds, 1),
        "threads": torch.get_num_threads(),
        "claims": record.claims,
    }
    details = {**summary, "settings": record.settings, "rows": record.rows, "machine": machine()}
    (arguments.out / "results.json").write_text(json.dumps(details, indent=1, default=plain))
    if record.figure is not None:
        summary["plot"] = save_plot(record.figure, arguments.out)
    print(json.dumps(summary, default=plain))


def save_plot(figure: go.Figure, out: Path) -> str:
    """Write plot.html, and plot.png if a browser for it is installed."""
    figure.write_html(out / "plot.html", include_plotlyjs="cdn")
    try:
        figure.write_image(out / "plot.png", width=900, height=520, scale=2)
    except (RuntimeError, ValueError, OSError) as problem:
        print(f"plot.png was not written: {problem}")
        return "plot.html"
    return "plot.png"


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


def plain(value: Any) -> Any:
    """numpy and torch scalars and arrays as JSON values."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def mean_and_deviation(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values)), "n": len(values)}


def say(text: str) -> None:
    print(text, flush=True)


def curves(rows: list[dict[str, Any]], x: str, y: str, *, by: str, title: str) -> go.Figure:
    """One line per method: the mean of `y` at each `x`, with the deviation as error bars."""
    figure = go.Figure(layout={"title": title, "xaxis_title": x, "yaxis_title": y, "template": "plotly_white"})
    for name in dict.fromkeys(row[by] for row in rows):
        own = [row for row in rows if row[by] == name]
        places = sorted({row[x] for row in own})
        groups = [[row[y] for row in own if row[x] == place] for place in places]
        figure.add_scatter(
            x=places,
            y=[float(np.mean(group)) for group in groups],
            error_y={"type": "data", "array": [float(np.std(group)) for group in groups]},
            name=str(name),
        )
    return figure
