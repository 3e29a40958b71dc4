"""Measures how often the interval of a drawn test set contains the accuracy of the whole pool.

python -m experiments.interval_coverage [--draws 500]
Items     for each accuracy and size of the test set: the share of draws whose 95 % Wilson interval contains the
          accuracy of all items of a pool of 5,000, for a plain draw and for one in proportion to 20 groups of
          different difficulty.
Groups    test sets of 200 items from whole groups, of 24 equal, 60 and 200 uneven groups whose accuracies differ (the
          correlation of two items of a group is `correlation`): the interval over groups, and for comparison the one
          that treats the items as independent.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from app.views.figures.charts import wilson
from app.views.measuring import Share
from storage.labeling.groups import choose_groups
from storage.labeling.test_sets import choose_items

POOL, GROUPS, TESTS = 5_000, 20, 200


def coverage(accuracy: float, n_items: int, n_draws: int, *, grouped: bool, seed: int = 0) -> float:
    """The share of draws whose interval contains the accuracy of the pool."""
    rng = np.random.default_rng([seed, n_items, round(1_000 * accuracy)])
    group = rng.integers(0, GROUPS, POOL)
    difficulty = np.clip(accuracy + 0.6 * (1 - accuracy) * np.cos(group), 0, 1)
    correct = rng.random(POOL) < difficulty
    names = [str(one) for one in group] if grouped else ()
    hits = 0
    for _ in range(n_draws):
        drawn = choose_items(np.arange(POOL), n_items, rng, names)
        low, high = wilson(int(correct[drawn].sum()), n_items)
        hits += low <= correct.mean() <= high
    return hits / n_draws


def group_coverage(
    accuracy: float, n_groups: int, correlation: float, n_draws: int, *, seed: int = 0
) -> tuple[float, float]:
    """The shares of draws of whole groups whose interval contains the accuracy of the pool: over groups, and as if the
    items were independent."""
    rng = np.random.default_rng([seed, n_groups, round(1_000 * accuracy), round(1_000 * correlation)])
    size = np.full(n_groups, 100) if n_groups < 30 else np.maximum(rng.lognormal(4, 0.8, n_groups).astype(np.int64), 3)
    rate = np.full(n_groups, accuracy)
    if correlation:
        total = 1 / correlation - 1
        rate = rng.beta(accuracy * total, (1 - accuracy) * total, n_groups)
    group = np.repeat(np.arange(n_groups), size)
    correct = rng.random(len(group)) < rate[group]
    names, hits, naive = [f"{one:04d}" for one in group], 0, 0
    for _ in range(n_draws):
        chosen = choose_groups(names, TESTS, rng)
        inside = np.flatnonzero(np.isin(group, [int(one) for one in chosen]))
        drawn = choose_items(inside, min(TESTS, len(inside)), rng, [names[at] for at in inside])
        share = Share.of(correct[drawn], group[drawn])
        hits += share.interval[0] <= correct.mean() <= share.interval[1]
        low, high = wilson(share.correct, share.n)
        naive += low <= correct.mean() <= high
    return hits / n_draws, naive / n_draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    rows = [
        {
            "accuracy": accuracy,
            "test_items": n_items,
            "plain": coverage(accuracy, n_items, wanted.draws, grouped=False),
            "by_group": coverage(accuracy, n_items, wanted.draws, grouped=True),
        }
        for accuracy in (0.7, 0.85, 0.95)
        for n_items in (100, 200, 400)
    ]
    whole = [
        dict(
            zip(("over_groups", "as_independent"), group_coverage(accuracy, n, correlation, wanted.draws), strict=True)
        )
        | {"accuracy": accuracy, "groups": n, "correlation": correlation}
        for accuracy in (0.7, 0.85, 0.95)
        for n in (24, 60, 200)
        for correlation in (0.0, 0.1, 0.3)
    ]
    if wanted.json:
        print(json.dumps({"items": rows, "groups": whole}, indent=1))
        return
    print("accuracy  test items  plain draw  by group")
    for row in rows:
        print(f"{row['accuracy']:8.2f}  {row['test_items']:10d}  {row['plain']:9.1%}  {row['by_group']:8.1%}")
    print("\naccuracy  groups  correlation  interval over groups  items as independent")
    for row in whole:
        print(
            f"{row['accuracy']:8.2f}  {row['groups']:6d}  {row['correlation']:11.1f}  {row['over_groups']:20.1%}  "
            f"{row['as_independent']:20.1%}"
        )


if __name__ == "__main__":
    main()
