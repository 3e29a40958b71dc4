"""What settling on alike clips buys by itself: guesses of the `laptop` preset before and after, with uniform labels.

    python -m experiments.settled_guesses --size small --only speech_commands --out DIR

For Spoken Digit and Speech Commands: how many of an item's most alike clips are of its class, how far they are as a
share of the pool's typical distance, and the accuracy of the model's own guesses beside that of the settled ones, on
the held-out clips and on the unlabeled ones of the pool. small: 40 labels, two seeds. full: 10, 40 and 70 labels,
three seeds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from core.config import preset
from core.learning.training import predict, train
from core.runtime import Runtime
from core.similarity.graph import SimilarityGraph, build_similarity_graph
from core.similarity.propagation import propagate_labels
from core.types import UNLABELED
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.ssl_table import Pool, load, uniform_labels

DATA_SETS = ("fsdd", "speech_commands")
LAPTOP = preset("laptop")


def about(pool: Pool, likeness: SimilarityGraph) -> dict[str, float]:
    """What being alike is worth in this pool."""
    classes = pool.classes[likeness.rows]
    return {
        "same_class": float((classes[likeness.neighbors] == classes[:, None]).mean()),
        "nearest_share_of_typical": float(np.median(likeness.distances[:, 0]) / likeness.typical),
        "farthest_share_of_typical": float(np.median(likeness.distances[:, -1]) / likeness.typical),
    }


def one(pool: Pool, likeness: SimilarityGraph, n_labels: int, seed: int) -> dict[str, float]:
    """Accuracy in % before and after settling, for one training."""
    labels = uniform_labels(pool, n_labels, seed)
    runtime, config = Runtime.create(seed), LAPTOP.training
    held_out = (pool.test_rows, pool.classes[pool.test_rows])
    model = train(pool.inputs, labels, int(pool.classes.max()) + 1, config, runtime=runtime, held_out=held_out)
    own = predict(model, pool.inputs, runtime=runtime, n_views=config.predict_views).probabilities
    settled = propagate_labels(likeness, own, labels, LAPTOP.similarity.reach)
    test = np.isin(np.arange(len(labels)), pool.test_rows)
    parts = {"test": test, "pool": ~test & (labels == UNLABELED)}
    return {
        f"{part}, {name}": 100 * float((guesses[rows].argmax(1) == pool.classes[rows]).mean())
        for part, rows in parts.items()
        for name, guesses in (("own", own), ("settled", settled))
    }


def main(arguments: Arguments) -> Record:
    budgets, seeds = ((40,), (0, 1)) if arguments.small else ((10, 40, 70), (0, 1, 2))
    rows, claims = [], {}
    for name in arguments.only or DATA_SETS:
        pool = load(name, arguments.data, small=False)
        likeness = build_similarity_graph(pool.inputs, np.full(len(pool.classes), UNLABELED), LAPTOP.similarity)
        assert likeness is not None
        claims[name] = about(pool, likeness)
        for n_labels in budgets:
            for seed in seeds:
                found = one(pool, likeness, n_labels, seed)
                rows += [{"data": name, "labels": n_labels, "seed": seed, "guesses": kind, "accuracy": accuracy}
                         for kind, accuracy in found.items()]  # fmt: skip
                say(f"{name}, {n_labels} labels, seed {seed}: {found}")
            claims[f"{name}, {n_labels} labels"] = {
                kind: mean_and_deviation(
                    [r["accuracy"] for r in rows if (r["data"], r["labels"], r["guesses"]) == (name, n_labels, kind)]
                )
                for kind in found
            }
    lines = [{**row, "line": f"{row['data']}: {row['guesses']}"} for row in rows]
    figure = curves(
        lines, "labels", "accuracy", by="line", title="PoolPredictions before and after settling: accuracy, %"
    )
    return Record(rows, {"likeness": dataclasses.asdict(LAPTOP.similarity)}, claims, figure)


if __name__ == "__main__":
    run("settled_guesses", main)
