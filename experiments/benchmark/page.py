"""benchmark.md and curves.svg from the rows of trials.

Text that does not depend on results is in `docs/benchmark.md`. The text between the markers of a section is
replaced, if there are trials for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmark.figure import write_curves
from experiments.benchmark.statistics import Results

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
FIRST = 3  # labels per class from which the summary counts


@dataclass(frozen=True)
class Inputs:
    """The data of the page."""

    curve: list[dict[str, Any]]
    about: dict[str, Any]
    strategies: tuple[str, ...]
    per_class: tuple[int, ...]
    size: str


def write(inputs: Inputs, others: dict[str, str], folder: Path) -> dict[str, Any]:
    """Write the page and its figure; return the summary. `others` are the texts of sections by name, "" where there are
    no results."""
    full = [row for row in inputs.curve if len(row["accuracy"]) == len(inputs.per_class)]
    strategies = tuple(s for s in inputs.strategies if any(row["strategy"] == s for row in full))
    results = Results(full, strategies, inputs.per_class)
    folder.mkdir(parents=True, exist_ok=True)
    sections = dict(others)
    if results.sets:
        write_curves(results, folder / "benchmark_curves.svg")
        sections["tables"] = curve_section(results, inputs)
    page = folder / "benchmark.md"
    text = page.read_text() if page.exists() else "# Benchmark\n"
    for name, section in sections.items():
        if section:
            text = with_section(text, name, section)
    page.write_text(text)
    return summary(results) if results.sets else {"sets": 0}


def curve_section(results: Results, inputs: Inputs) -> str:
    parts = [
        _about_table(results, inputs),
        "![Learning curves](benchmark_curves.svg)",
        "### Summary\n\n" + summary_table(results),
        "### Paired difference to uniform, by labels per class\n\n" + difference_table(results),
        f"### bico against each strategy, sets and counts from {FIRST} labels per class on\n\n"
        + verdict_table(results),
        "### Mean accuracy by set\n\n" + accuracy_tables(results),
    ]
    return "\n\n".join(parts)


def with_section(text: str, name: str, section: str) -> str:
    """The page with the text between the markers of `name` replaced; if the page has none, they are added at its
    end."""
    begin, end = BEGIN.format(name), END.format(name)
    head, found, rest = text.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    return f"{head if found else head + chr(10)}{begin}\n\n{section}\n\n{end}{after}"


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _about_table(results: Results, inputs: Inputs) -> str:
    rows = []
    for name in results.sets:
        about = inputs.about.get(name, {})
        rows.append(
            [name, *(str(about.get(key, "")) for key in ("classes", "pool", "test")), str(len(results.seeds[name])),
             f"{100 * about.get('ceiling', float('nan')):.1f}"]
        )  # fmt: skip
    return f"Size `{inputs.size}`.\n\n" + table(["set", "classes", "pool", "test", "seeds", "all pool labels"], rows)


def mean_ranks(results: Results) -> dict[str, float]:
    ranks = results.ranks()[:, :, results.from_count(FIRST)]
    return dict(zip(results.strategies, ranks.mean((0, 2)).tolist(), strict=True))


def summary(results: Results) -> dict[str, Any]:
    """The claims as data."""
    late = results.from_count(FIRST)
    ranks = mean_ranks(results)
    others = [s for s in results.strategies if s != "uniform"]
    return {
        "sets": len(results.sets),
        "mean_rank": {s: round(r, 2) for s, r in sorted(ranks.items(), key=lambda pair: pair[1])},
        "difference_to_uniform": {s: str(results.difference(s, "uniform", late)) for s in others},
        "cpu_seconds_per_round": {s: round(v, 3) for s, v in results.seconds.items()},
    }


def summary_table(results: Results, cost: str = "CPU per selection") -> str:
    """Mean rank, area, difference to uniform, bico's difference to it, and cost; best mean rank first."""
    late, ranks = results.from_count(FIRST), mean_ranks(results)
    rows = []
    for strategy in sorted(results.strategies, key=lambda s: ranks[s]):
        area = np.mean([results.area(name, strategy) for name in results.sets])
        to_uniform = "" if strategy == "uniform" else str(results.difference(strategy, "uniform", late))
        to_bico = "" if strategy == "bico" else str(results.difference("bico", strategy, late))
        rows.append(
            [
                strategy,
                f"{ranks[strategy]:.2f}",
                f"{area:.1f}",
                to_uniform,
                to_bico,
                f"{results.seconds[strategy]:.2f} s",
            ]
        )
    header = ["strategy", f"mean rank from {FIRST}", "area", "minus uniform", "bico minus it", cost]
    return table(header, rows)


def difference_table(results: Results) -> str:
    positions = range(1, len(results.counts))
    rows = [
        [strategy, *(str(results.difference(strategy, "uniform", [position])) for position in positions)]
        for strategy in results.strategies
        if strategy != "uniform"
    ]
    return table(["strategy", *(str(results.counts[position]) for position in positions)], rows)


def verdict_table(results: Results) -> str:
    """Wins, ties and losses of bico."""
    rows = []
    for other in results.strategies:
        if other == "bico":
            continue
        found = [
            results.verdict(name, "bico", other, position)
            for name in results.sets
            for position in results.from_count(FIRST)
        ]
        rows.append([other, *(str(found.count(kind)) for kind in ("win", "tie", "loss"))])
    return table(["against", "win", "tie", "loss"], rows)


def accuracy_tables(results: Results) -> str:
    parts = []
    for name in results.sets:
        rows = [
            [strategy, *(f"{value:.1f}" for value in results.values(name, strategy).mean(0))]
            for strategy in results.strategies
        ]
        parts.append(f"{name}\n\n" + table(["labels per class", *map(str, results.counts)], rows))
    return "\n\n".join(parts)
