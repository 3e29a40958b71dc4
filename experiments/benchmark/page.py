"""benchmark.md and curves.svg from the rows of trials. Words that do not depend on numbers are in `docs/benchmark.md`
between the markers; the tables are written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from experiments.benchmark.figure import write_curves
from experiments.benchmark.statistics import Results

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
FIRST = 3  # labels per class from which the summary counts


@dataclass(frozen=True)
class Inputs:
    """What the page is made of."""

    curve: list[dict[str, Any]]
    about: dict[str, Any]
    goal: list[dict[str, Any]]
    goal_about: dict[str, Any]
    strategies: tuple[str, ...]
    per_class: tuple[int, ...]
    size: str


def write(inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Write the page and its figure; the summary."""
    full = [row for row in inputs.curve if len(row["accuracy"]) == len(inputs.per_class)]
    strategies = tuple(s for s in inputs.strategies if any(row["strategy"] == s for row in full))
    results = Results(full, strategies, inputs.per_class)
    folder.mkdir(parents=True, exist_ok=True)
    if not results.sets:
        return {"sets": 0}
    write_curves(results, folder / "benchmark_curves.svg")
    parts = [
        _about_table(results, inputs),
        "![Learning curves](benchmark_curves.svg)",
        "### Summary\n\n" + summary_table(results),
        "### Paired difference to uniform, by labels per class\n\n" + difference_table(results),
        f"### bico against each strategy, sets and counts from {FIRST} labels per class on\n\n"
        + verdict_table(results),
        "### Mean accuracy by set\n\n" + accuracy_tables(results),
        "### Batches of ten or twenty, bico and uniform\n\n" + goal_table(inputs),
    ]
    text = f"{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}"
    page = folder / "benchmark.md"
    before = page.read_text() if page.exists() else f"# Benchmark\n\n{BEGIN}\n{END}\n"
    head, rest = before.split(BEGIN)
    page.write_text(head + text + rest.split(END)[1])
    return summary(results)


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


def summary_table(results: Results) -> str:
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
    header = ["strategy", f"mean rank from {FIRST}", "area", "minus uniform", "bico minus it", "CPU per selection"]
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


def goal_table(inputs: Inputs) -> str:
    """Mean and 95 % interval of the mean over seeds at some numbers of labels."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in inputs.goal:
        groups.setdefault((row["set"], row["strategy"]), []).append(row)
    rows = []
    for (name, strategy), own in sorted(groups.items()):
        values = 100 * np.array([row["accuracy"] for row in own])
        n = len(values)
        spread = values.std(0, ddof=1) / n**0.5 if n > 1 else np.full(values.shape[1], np.nan)
        half = t.ppf(0.975, max(n - 1, 1)) * spread
        cells = ", ".join(
            f"{count}: {mean:.1f} ± {error:.1f}"
            for count, mean, error in zip(own[0]["counts"], values.mean(0), half, strict=True)
        )
        ceiling = inputs.goal_about.get(name, {}).get("ceiling", float("nan"))
        rows.append([name, strategy, str(len(own)), cells, f"{100 * ceiling:.1f}"])
    return table(["set", "strategy", "seeds", "labels: accuracy", "all pool labels"], rows)
