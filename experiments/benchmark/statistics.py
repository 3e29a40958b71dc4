"""The statistics of the benchmark: means, ranks, paired differences with bootstrap intervals, wins and losses.

A result is accuracy[set, strategy] (seeds, counts). Differences are paired by seed: all strategies of a seed share the
first labels. The bootstrap draws sets with replacement and, within a set, seeds with replacement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, t

DRAWS = 2_000
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with a 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


class Results:
    """The accuracies in percent of complete sets: every strategy, every seed, every count."""

    def __init__(self, rows: list[dict[str, object]], strategies: tuple[str, ...], counts: tuple[int, ...]) -> None:
        self.strategies, self.counts = strategies, counts
        found: dict[tuple[str, str], dict[int, list[float]]] = {}
        seconds: dict[str, list[float]] = {}
        for row in rows:
            name, strategy = str(row["set"]), str(row["strategy"])
            found.setdefault((name, strategy), {})[int(row["seed"])] = row["accuracy"]  # type: ignore[assignment,call-overload]
            seconds.setdefault(strategy, []).extend(row["select_seconds"])  # type: ignore[arg-type]
        names = list(dict.fromkeys(str(row["set"]) for row in rows))
        self.seeds = {
            name: sorted(set.intersection(*(set(found.get((name, s), {})) for s in strategies))) for name in names
        }
        self.sets = tuple(name for name in names if self.seeds[name])
        self.seconds = {strategy: float(np.mean(values)) for strategy, values in seconds.items() if values}
        self._values = {
            (name, strategy): 100 * np.array([found[name, strategy][seed] for seed in self.seeds[name]])
            for name in self.sets
            for strategy in strategies
        }

    def values(self, name: str, strategy: str) -> Values:
        """(seeds, counts)."""
        return self._values[name, strategy]

    def from_count(self, first: int) -> list[int]:
        """Positions of the counts from `first` labels per class on."""
        return [position for position, count in enumerate(self.counts) if count >= first]

    def ranks(self) -> Values:
        """(sets, strategies, counts) ranks of the mean accuracy, 1 = best; ties share their mean rank."""
        means = np.array([[self.values(name, s).mean(0) for s in self.strategies] for name in self.sets])
        return np.asarray(rankdata(-means.round(6), axis=1))

    def difference(self, strategy: str, other: str, positions: list[int], seed: int = 0) -> Interval:
        """Mean paired difference in points over sets, seeds and the counts at `positions`."""
        pairs = [(self.values(name, strategy) - self.values(name, other))[:, positions].mean(1) for name in self.sets]
        rng, total = np.random.default_rng(seed), np.zeros(DRAWS)
        for _ in pairs:
            chosen = rng.integers(len(pairs), size=DRAWS)
            means = np.stack([pair[rng.integers(len(pair), size=(DRAWS, len(pair)))].mean(1) for pair in pairs])
            total += means[chosen, np.arange(DRAWS)]
        drawn = total / len(pairs)
        low, high = np.quantile(drawn, [0.025, 0.975])
        return Interval(float(np.mean([pair.mean() for pair in pairs])), float(low), float(high))

    def verdict(self, name: str, strategy: str, other: str, position: int) -> str:
        """ "win", "tie" or "loss" of a strategy against another on one set at one count (paired t interval, 95 %)."""
        pair = (self.values(name, strategy) - self.values(name, other))[:, position]
        n = len(pair)
        spread = pair.std(ddof=1) / n**0.5 * t.ppf(0.975, n - 1) if n > 1 else np.inf
        return "win" if pair.mean() > spread else "loss" if pair.mean() < -spread else "tie"

    def area(self, name: str, strategy: str) -> float:
        """Area under the curve of the mean accuracy over labels per class, as a mean accuracy."""
        x = np.array(self.counts, float)
        return float(np.trapezoid(self.values(name, strategy).mean(0), x) / (x[-1] - x[0]))
