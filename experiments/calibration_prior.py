"""The prior temperature of `core.learning.calibration`, measured on pool items: no file of a test part is read.

    python -m experiments.calibration_prior --size small --only fsdd --out DIR

A `laptop` model is trained with uniform labels; the temperature is then fitted on the labels of the other pool items,
which were not used in training. `estimate` is what cross-validation on the training labels gives without the prior: the
difference shows its bias. The prior is the geometric mean over all rows, to one decimal. small: 40 labels, one seed,
`SMALL_POOL` items of the pool and `SMALL_STEPS` steps. full: 10, 40 and 70 labels, three seeds, the whole pool and the
steps of the preset.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path

import numpy as np

from core.config import preset
from core.learning.calibration import fitted_temperature, out_of_fold_logits
from core.learning.prediction import embeddings_and_logits, logits_of
from core.learning.training import train
from core.runtime import Runtime
from core.types import UNLABELED
from experiments.record import Arguments, Record, run, say
from experiments.ssl_table import Dataset, sound, uniform_labels

DATA_SETS = ("fsdd", "speech_commands")
SMALL_POOL, SMALL_STEPS = 900, 700


def pool_side(folder: Path, small: bool) -> Dataset:
    """The pool of a data set; the small size takes evenly spaced items. The files of its test part are not read."""
    return sound(folder, small, pool_only=True, most=SMALL_POOL if small else None)


def one(pool: Dataset, n_labels: int, seed: int, steps: int) -> dict[str, float]:
    """The fitted temperature of one training, and the cross-validated estimate."""
    labels, runtime = uniform_labels(pool, n_labels, seed), Runtime.create(seed)
    config = dataclasses.replace(preset("laptop").training, calibrate=False, steps=steps)
    model = train(pool.inputs, labels, int(pool.classes.max()) + 1, config, runtime=runtime)
    others, given = np.flatnonzero(labels == UNLABELED), np.flatnonzero(labels != UNLABELED)
    logits = logits_of(model.network, pool.inputs, others, runtime).cpu().numpy()
    embeddings, own = embeddings_and_logits(model.network, pool.inputs, given, runtime)
    left_out = out_of_fold_logits(embeddings, own, labels[given])
    positions = np.unique(labels[given], return_inverse=True)[1]
    return {
        "accuracy": 100 * float((logits.argmax(1) == pool.classes[others]).mean()),
        "temperature": fitted_temperature(logits, pool.classes[others]),
        "estimate": fitted_temperature(left_out, positions),
    }


def main(arguments: Arguments) -> Record:
    budgets, seeds = ((40,), (0,)) if arguments.small else ((10, 40, 70), (0, 1, 2))
    steps = SMALL_STEPS if arguments.small else preset("laptop").training.steps
    rows = []
    for name in arguments.only or DATA_SETS:
        pool = pool_side(arguments.data / name, arguments.small)
        for n_labels in budgets:
            for seed in seeds:
                found = one(pool, n_labels, seed, steps)
                rows.append({"data": name, "labels": n_labels, "seed": seed, **found})
                say(f"{name}, {n_labels} labels, seed {seed}: {found}")
    mean = math.exp(statistics.fmean(math.log(row["temperature"]) for row in rows))
    return Record(rows, {"steps": steps}, {"prior": round(mean, 1), "geometric_mean": mean})


if __name__ == "__main__":
    run("calibration_prior", main)
