"""The effect of label propagation alone: accuracy of the `laptop` preset before and after it, with uniform labels.

    python -m experiments.label_propagation --size small --only speech_commands --out DIR

For Spoken Digit and Speech Commands: the share of an item's nearest clips that have its class, their distance as a
share of the pool's typical distance, and the accuracy of the model's predictions and of the propagated ones, on the
test clips (new items beside the graph) and on the unlabeled clips of the pool. small: 40 labels, two seeds. full: 10,
40 and 70 labels, three seeds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from core.config import preset
from core.learning.training import predict, train
from core.runtime import Runtime
from core.similarity.graph import SimilarityGraph, build_similarity_graph, connect_new_items
from core.similarity.propagation import extended, propagate_labels
from core.types import UNLABELED
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.ssl_table import Dataset, load, uniform_labels

DATA_SETS = ("fsdd", "speech_commands")
LAPTOP = preset("laptop")


def about(pool: Dataset, graph: SimilarityGraph) -> dict[str, float]:
    """How often neighbors share a class, and how near they are."""
    classes = pool.classes[graph.rows]
    return {
        "same_class": float((classes[graph.neighbors] == classes[:, None]).mean()),
        "nearest_share_of_typical": float(np.median(graph.distances[:, 0]) / graph.typical),
        "farthest_share_of_typical": float(np.median(graph.distances[:, -1]) / graph.typical),
    }


def one(pool: Dataset, graph: SimilarityGraph, n_labels: int, seed: int) -> dict[str, float]:
    """Accuracy in % before and after propagation, for one training."""
    labels = uniform_labels(pool, n_labels, seed)
    runtime, config = Runtime.create(seed), LAPTOP.training
    held_out = (pool.test_rows, pool.classes[pool.test_rows])
    model = train(pool.inputs, labels, int(pool.classes.max()) + 1, config, runtime=runtime, held_out=held_out)
    own = predict(model, pool.inputs, runtime=runtime, n_views=config.predict_views).probabilities
    test = np.isin(np.arange(len(labels)), pool.test_rows)
    propagated = propagate_labels(graph, own, labels, LAPTOP.similarity.reach)
    new = connect_new_items(pool.inputs, graph, test)
    propagated[new.rows] = extended(graph, new, own[new.rows], propagated[graph.rows], LAPTOP.similarity.reach)
    parts = {"test": test, "pool": ~test & (labels == UNLABELED)}
    return {
        f"{part}, {name}": 100 * float((predictions[rows].argmax(1) == pool.classes[rows]).mean())
        for part, rows in parts.items()
        for name, predictions in (("model", own), ("propagated", propagated))
    }


def main(arguments: Arguments) -> Record:
    budgets, seeds = ((40,), (0, 1)) if arguments.small else ((10, 40, 70), (0, 1, 2))
    rows, claims = [], {}
    for name in arguments.only or DATA_SETS:
        pool = load(name, arguments.data, small=False)
        is_test = np.isin(np.arange(len(pool.classes)), pool.test_rows)
        unlabeled = np.full(len(pool.classes), UNLABELED)
        graph = build_similarity_graph(pool.inputs, unlabeled, is_test, LAPTOP.similarity)
        assert graph is not None
        claims[name] = about(pool, graph)
        for n_labels in budgets:
            for seed in seeds:
                found = one(pool, graph, n_labels, seed)
                rows += [{"data": name, "labels": n_labels, "seed": seed, "predictions": kind, "accuracy": accuracy}
                         for kind, accuracy in found.items()]  # fmt: skip
                say(f"{name}, {n_labels} labels, seed {seed}: {found}")
            claims[f"{name}, {n_labels} labels"] = {
                kind: mean_and_deviation(
                    [
                        r["accuracy"]
                        for r in rows
                        if (r["data"], r["labels"], r["predictions"]) == (name, n_labels, kind)
                    ]
                )
                for kind in found
            }
    lines = [{**row, "line": f"{row['data']}: {row['predictions']}"} for row in rows]
    figure = curves(lines, "labels", "accuracy", by="line", title="Before and after label propagation: accuracy, %")
    return Record(rows, {"similarity": dataclasses.asdict(LAPTOP.similarity)}, claims, figure)


if __name__ == "__main__":
    run("label_propagation", main)
