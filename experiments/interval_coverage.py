"""How often the interval of a drawn test set contains the accuracy of the whole pool.

python -m experiments.interval_coverage [--draws 500]
For each accuracy and size of the test set: the share of draws whose 95 % Wilson interval contains the accuracy of all
items of a pool of 5,000, for a plain draw and for one in proportion to 20 groups of different difficulty.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from app.views.figures.charts import wilson
from storage.labeling.test_sets import choose_items

POOL, GROUPS = 5_000, 20


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
    if wanted.json:
        print(json.dumps(rows, indent=1))
        return
    print("accuracy  test items  plain draw  by group")
    for row in rows:
        print(f"{row['accuracy']:8.2f}  {row['test_items']:10d}  {row['plain']:9.1%}  {row['by_group']:8.1%}")


if __name__ == "__main__":
    main()
