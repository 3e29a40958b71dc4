"""The `laptop` preset on spoken digits: test accuracy at 10, 40 and 70 uniform labels.

    python -m experiments.laptop_learner --size full --out DIR

Predictions average over the clean clip and the preset's views, as in a round; `clean` is the accuracy without views.
small: one seed. full: three seeds, and MixMatch at 40 labels with as many steps as fit into the same time
(`MIXMATCH_STEPS` of the preset's; its step costs 1.8 times FixMatch's, see benchmarks.learning). `--only 1` runs only
seed 1.
"""

from __future__ import annotations

import dataclasses

from core.config import preset
from core.learning.training import predict, train
from core.runtime import Runtime
from experiments.record import Arguments, Record, curves, mean_and_deviation, run, say
from experiments.ssl_table import METHODS, load, uniform_labels

BUDGETS = (10, 40, 70)
MIXMATCH_STEPS = 1 / 1.8


def main(arguments: Arguments) -> Record:
    laptop = preset("laptop").training
    mixmatch = dataclasses.replace(laptop, steps=int(laptop.steps * MIXMATCH_STEPS), **METHODS["mixmatch"])
    cases = [("fixmatch", laptop, n_labels) for n_labels in BUDGETS] + [("mixmatch", mixmatch, 40)]
    pool = load("fsdd", arguments.data, small=False)
    seeds = [int(name) for name in arguments.only] or ([0] if arguments.small else [0, 1, 2])
    rows = []
    for seed in seeds:
        for method, config, n_labels in cases:
            model = train(
                pool.inputs, uniform_labels(pool, n_labels, seed), 10, config, runtime=Runtime.create(seed),
                held_out=(pool.test_rows, pool.classes[pool.test_rows]),
            )  # fmt: skip
            guesses = predict(
                model, pool.inputs, pool.test_rows, runtime=Runtime.create(seed), n_views=config.predict_views
            )
            accuracy = 100 * float((guesses.probabilities.argmax(1) == pool.classes[pool.test_rows]).mean())
            clean = 100 * model.metrics["held_out_accuracy"]
            rows.append({"labels": n_labels, "method": method, "seed": seed, "accuracy": accuracy, "clean": clean,
                         "temperature": model.temperature})  # fmt: skip
            say(f"{method}, {n_labels} labels, seed {seed}: {accuracy:.1f} %, without views {clean:.1f} %")
    claims = {
        f"{method}, {n_labels} labels": mean_and_deviation(
            [row["accuracy"] for row in rows if (row["method"], row["labels"]) == (method, n_labels)]
        )
        for method, _, n_labels in cases
    }
    figure = curves(rows, "labels", "accuracy", by="method", title="Spoken digits, laptop preset: accuracy, %")
    return Record(rows, {"config": dataclasses.asdict(laptop)}, claims, figure)


if __name__ == "__main__":
    run("laptop_learner", main)
