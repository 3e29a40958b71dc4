"""Label propagation alone, with uniform labels and the `laptop` preset: its settings, and its effect.

    python -m experiments.label_propagation --only settings --out DIR                    the pool alone
    python -m experiments.label_propagation --only effect --size full --out DIR          also the test clips

settings   Spoken Digit and Speech Commands, without their test clips: accuracy on the unlabeled clips of the pool for
           several numbers of neighbors and reaches, after one training per seed. The presets use the best pair.
effect     With the presets' settings: the share of an item's nearest clips that have its class, their distance as a
           share of the pool's typical distance, and the accuracy of the model's predictions and of the propagated ones,
           on the test clips (new items outside of the graph) and on the unlabeled clips of the pool.

small: 40 labels, two seeds. full: 10, 40 and 70 labels, three seeds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import preset
from core.learning.training import predict, train
from core.runtime import Runtime
from core.similarity.graph import SimilarityGraph, build_similarity_graph, connect_new_items
from core.similarity.propagation import extended, propagate_labels
from core.types import UNLABELED
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.ssl_table import Dataset, load, uniform_labels

DATA_SETS = ("fsdd", "speech_commands")
PARTS = ("settings", "effect")
LAPTOP = preset("laptop")
NEIGHBORS, REACHES = (5, 10, 20), (0.4, 0.55, 0.7, 0.85, 1.0)


def about(pool: Dataset, graph: SimilarityGraph) -> dict[str, float]:
    """The share of neighbors with the same class, and the distances of neighbors."""
    classes = pool.classes[graph.rows]
    return {
        "same_class": float((classes[graph.neighbors] == classes[:, None]).mean()),
        "nearest_share_of_typical": float(np.median(graph.distances[:, 0]) / graph.typical),
        "farthest_share_of_typical": float(np.median(graph.distances[:, -1]) / graph.typical),
    }


def trained(pool: Dataset, labels: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    """(n, C) predictions of the network that the preset trains on these labels."""
    runtime, config = Runtime.create(seed), LAPTOP.training
    held_out = (pool.test_rows, pool.classes[pool.test_rows])  # left out of training; nothing here reads their labels
    model = train(pool.inputs, labels, int(pool.classes.max()) + 1, config, runtime=runtime, held_out=held_out)
    return predict(model, pool.inputs, runtime=runtime, n_views=config.predict_views).probabilities


def nearest(graph: SimilarityGraph, n_neighbors: int) -> SimilarityGraph:
    """The graph with fewer neighbors of each item."""
    neighbors, distances = graph.neighbors[:, :n_neighbors], graph.distances[:, :n_neighbors]
    return dataclasses.replace(graph, neighbors=neighbors, distances=distances)


def graph_of(pool: Dataset, n_neighbors: int) -> SimilarityGraph:
    """The graph of the pool without its test clips."""
    is_test = np.isin(np.arange(len(pool.classes)), pool.test_rows)
    config = dataclasses.replace(LAPTOP.similarity, neighbors=n_neighbors)
    graph = build_similarity_graph(pool.inputs, np.full(len(pool.classes), UNLABELED), is_test, config)
    assert graph is not None
    return graph


def settings_rows(name: str, pool: Dataset, n_labels: int, seed: int) -> list[dict[str, Any]]:
    """Accuracy in % on the unlabeled clips of the pool, for every pair of settings and without propagation."""
    graph, labels = graph_of(pool, max(NEIGHBORS)), uniform_labels(pool, n_labels, seed)
    own = trained(pool, labels, seed)
    rows = graph.rows[labels[graph.rows] == UNLABELED]

    def row(predictions: NDArray[np.float32], neighbors: int, reach: float) -> dict[str, Any]:
        accuracy = 100 * float((predictions[rows].argmax(1) == pool.classes[rows]).mean())
        return {"part": "settings", "data": name, "labels": n_labels, "seed": seed, "neighbors": neighbors,
                "reach": reach, "accuracy": round(accuracy, 2)}  # fmt: skip

    pairs = [(neighbors, reach) for neighbors in NEIGHBORS for reach in REACHES]
    return [row(own, 0, 0.0)] + [row(propagate_labels(nearest(graph, k), own, labels, r), k, r) for k, r in pairs]


def effect_rows(name: str, pool: Dataset, graph: SimilarityGraph, n_labels: int, seed: int) -> list[dict[str, Any]]:
    """Accuracy in % before and after propagation, for one training."""
    labels = uniform_labels(pool, n_labels, seed)
    own = trained(pool, labels, seed)
    test = np.isin(np.arange(len(labels)), pool.test_rows)
    propagated = propagate_labels(graph, own, labels, LAPTOP.similarity.reach)
    new = connect_new_items(pool.inputs, graph, test)
    propagated[new.rows] = extended(graph, new, own[new.rows], propagated[graph.rows], LAPTOP.similarity.reach)
    parts = {"test": test, "pool": ~test & (labels == UNLABELED)}
    return [
        {"part": "effect", "data": name, "labels": n_labels, "seed": seed, "predictions": f"{part}, {kind}",
         "accuracy": 100 * float((predictions[rows].argmax(1) == pool.classes[rows]).mean())}
        for part, rows in parts.items()
        for kind, predictions in (("model", own), ("propagated", propagated))
    ]  # fmt: skip


def means(rows: list[dict[str, Any]], *by: str) -> dict[str, Any]:
    """Mean and deviation of the accuracy, by the values of these columns."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(", ".join(str(row[name]) for name in by), []).append(row["accuracy"])
    return {key: mean_and_deviation(values) for key, values in found.items()}


def main(arguments: Arguments) -> Record:
    budgets, seeds = ((40,), (0, 1)) if arguments.small else ((10, 40, 70), (0, 1, 2))
    settings: list[dict[str, Any]] = []
    effects: list[dict[str, Any]] = []
    claims: dict[str, Any] = {}
    for name in DATA_SETS:
        pool = load(name, arguments.data, small=False)
        graph = graph_of(pool, LAPTOP.similarity.neighbors)
        trials = [(n_labels, seed) for n_labels in budgets for seed in seeds]
        for n_labels, seed in trials:
            if "settings" in (arguments.only or PARTS):
                settings += settings_rows(name, pool, n_labels, seed)
            if "effect" in (arguments.only or PARTS):
                effects += effect_rows(name, pool, graph, n_labels, seed)
            say(f"{name}, {n_labels} labels, seed {seed}")
        if effects:
            claims[name] = about(pool, graph)
    claims["settings, by data"] = means(settings, "data", "neighbors", "reach")
    claims["settings, over both"] = means(settings, "neighbors", "reach")
    claims["effect"] = means(effects, "data", "labels", "predictions")
    lines = [{**row, "line": f"{row['data']}: {row['predictions']}"} for row in effects]
    lines += [{**row, "line": f"{row['data']}: {row['neighbors']}, {row['reach']}"} for row in settings]
    figure = curves(lines, "labels", "accuracy", by="line", title="Before and after label propagation: accuracy, %")
    return Record([*settings, *effects], {"similarity": dataclasses.asdict(LAPTOP.similarity)}, claims, figure)


if __name__ == "__main__":
    run("label_propagation", main)
