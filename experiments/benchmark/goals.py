"""The goals of Winnow with an encoder: bico and uniform at stated numbers of labels, from the same first labels.

The first count of a set is the start that all strategies share: one label per class, plus uniform ones up to the count.
It shows the head alone. Intervals are t intervals over seeds; those of the difference are paired by seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t

from experiments.benchmark.statistics import Interval, Values


@dataclass(frozen=True)
class Goal:
    """The numbers of labels of a trial; `asked`: those shown in the table, with the goal in percent (None: no goal)."""

    counts: tuple[int, ...]
    asked: dict[int, float | None]


GOALS = {
    "cifar10": Goal((10, 20, 30, 40, 50, 60), {10: 38, 30: 58, 60: 69}),
    "flowers": Goal((10, 20, 30, 40, 50, 60, 70), {10: 60, 30: 76, 70: 84}),
    "speech_commands": Goal((10, 20, 30, 40), {10: 82, 20: 92, 40: 96}),
    "spoken_digit": Goal((10, 20, 30, 40, 50, 60, 70), {10: None, 40: None, 70: None}),
    "mnist": Goal((10, 20, 30, 40), {10: None, 40: None}),
    "sounds": Goal((40, 60, 80, 100, 120, 140, 160, 180, 200), {40: 52, 100: 66, 200: 75}),
}
STRATEGIES = ("bico", "uniform")


def mean_interval(values: Values) -> Interval:
    """The mean of values (n,) with its 95 % t interval; without a spread for a single value."""
    n, mean = len(values), float(values.mean())
    half = float(values.std(ddof=1) / n**0.5 * t.ppf(0.975, n - 1)) if n > 1 else float("nan")
    return Interval(mean, mean - half, mean + half)


def paired(rows: list[dict[str, Any]], name: str) -> dict[str, Values]:
    """Strategy -> (seeds, counts) accuracies in percent of the seeds that both strategies have."""
    found = {
        strategy: {row["seed"]: row["accuracy"] for row in rows if (row["set"], row["strategy"]) == (name, strategy)}
        for strategy in STRATEGIES
    }
    seeds = sorted(set.intersection(*(set(one) for one in found.values())))
    return {strategy: 100 * np.array([own[seed] for seed in seeds]) for strategy, own in found.items()}


def goal_rows(rows: list[dict[str, Any]], about: dict[str, Any]) -> list[list[str]]:
    """The cells of the table, a row for each set and count."""
    found = []
    for name, goal in GOALS.items():
        values = paired(rows, name)
        if not len(values["bico"]):
            continue
        ceiling = 100 * about.get(name, {}).get("ceiling", float("nan"))
        for count, asked in goal.asked.items():
            place = goal.counts.index(count)
            bico, uniform = (values[strategy][:, place] for strategy in STRATEGIES)
            reached = mean_interval(bico)
            met = "" if asked is None else "yes" if reached.mean >= asked else "no"
            lead = "the same" if place == 0 else str(mean_interval(bico - uniform))
            found.append([
                name, str(count), "" if asked is None else f"{asked:g}", with_half(reached), met,
                with_half(mean_interval(uniform)), lead, f"{ceiling:.1f}", str(len(bico)),
            ])  # fmt: skip
    return found


def with_half(interval: Interval) -> str:
    half = interval.high - interval.mean
    return f"{interval.mean:.1f}" if np.isnan(half) else f"{interval.mean:.1f} ± {half:.1f}"


HEADER = ["set", "labels", "goal", "bico", "met", "uniform", "bico minus uniform", "all pool labels", "seeds"]
