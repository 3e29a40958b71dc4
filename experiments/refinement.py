"""Refinement of the network on propagated labels: its settings, chosen without test clips.

    python -m experiments.refinement --part tune --data DIR --out DIR

No test clip of Spoken Digit and Speech Commands is used. A quarter of the pool, drawn once per class, stands in for
them; it is in no batch, no graph and no target. Labels are drawn uniformly, at least one per class. For each data set,
number of labels and seed, the stages of a round run up to "propagate" with the `laptop` preset; every variant of
refinement then starts from the same weights. A variant is named after the targets of its turns: the propagated
probabilities or their most probable classes.

Accuracies in %: `network` is the network alone on the clips set aside (inductive), `extended` its predictions for them
with label propagation, `pool` the network on the unlabeled clips of the pool, `pool_propagated` the same after label
propagation, with its mean log loss `pool_log_loss`. An interrupted run continues when started again: every result is a
line of DIR/results.jsonl, and the trained networks are kept as checkpoints.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rounds import pool_measures, read_pool
from core.config import preset
from core.learning.training import TrainedModel, predict
from core.media.derivation import derive_media
from core.media.inputs import Inputs
from core.rounds.context import StageContext
from core.rounds.outputs import LabelTrust, PropagatedLabels, TrainingResult
from core.rounds.pipeline import run_timed
from core.rounds.round_model import pool_targets, refine_on
from core.rounds.simulation import initial_rows, snapshot_with
from core.rounds.simulation_plan import LabeledPool, Plan
from core.rounds.stage import Outputs, needed
from core.rounds.stages import STAGES
from core.runtime import Runtime
from core.similarity.graph import connect_new_items
from core.similarity.propagation import extended, propagate_labels
from core.types import UNLABELED
from experiments.record import DATA, machine, mean_and_deviation, say
from experiments.whole_items import Results, part_of
from storage.rounds.row_cache import FolderRowCache

DATA_SETS = ("fsdd", "speech_commands")
LABELS, SEEDS = (40, 70), (0, 1)


@dataclass(frozen=True)
class Variant:
    """The targets of each turn, classes or probabilities, and the steps and the learning rate of all turns."""

    as_classes: tuple[bool, ...] = (True,)
    steps: int = 700
    rate: float = 2e-3


VARIANTS = {
    "classes": Variant(),
    "classes; 350 steps": Variant(steps=350),
    "probabilities, classes": Variant((False, True)),
    "probabilities, classes; 350 steps": Variant((False, True), steps=350),
}


class Study:
    """One data set, one number of labels and one seed: a round up to its propagated labels."""

    def __init__(self, pool: LabeledPool, context: StageContext) -> None:
        self.pool, self.context, outputs = pool, context, Outputs()
        run_timed(needed(STAGES, PropagatedLabels), context, outputs)
        self.inputs, self.labels = outputs.get(Inputs), outputs.get(PropagatedLabels)
        model, trust = outputs.get(TrainingResult).model, outputs.find(LabelTrust)
        assert model is not None
        self.model = model
        self.trust = None if trust is None else np.asarray(trust.weights)
        self.test_rows = np.flatnonzero(pool.test & self.inputs.readable)

    def refined(self, variant: Variant) -> TrainedModel:
        """The network after the turns of a variant; each predicts and propagates with the network so far."""
        config, graph, model = self.context.config, self.labels.graph, self.model
        assert graph is not None
        steps = variant.steps // len(variant.as_classes)
        training = dataclasses.replace(config.training, refine_steps=steps, refine_rate=variant.rate)
        context = dataclasses.replace(
            self.context, config=dataclasses.replace(config, training=training), checkpoints=None
        )
        for turn, as_classes in enumerate(variant.as_classes):
            targets = pool_targets(context, self.inputs, model, graph, self.trust, as_classes)
            model = refine_on(context, self.inputs, model, targets, self.trust, turn)
        return model

    def measured(self, model: TrainedModel) -> dict[str, float]:
        """Accuracies in % of a network, with and without label propagation."""
        context, snapshot, graph = self.context, self.context.snapshot, self.labels.graph
        assert graph is not None
        reach, views = context.config.similarity.reach, context.config.training.predict_views
        alone = predict(model, self.inputs, self.test_rows, runtime=context.runtime).probabilities
        own = predict(model, self.inputs, runtime=context.runtime, n_views=views).probabilities
        after = propagate_labels(graph, own, snapshot.labels, reach, self.trust)
        new = self.labels.test_items or connect_new_items(self.inputs, graph, snapshot.held_out)
        beside = extended(graph, new, own[new.rows], after[graph.rows], reach)
        open_rows = graph.rows[snapshot.labels[graph.rows] == UNLABELED]
        found = {"network": (alone, self.test_rows), "extended": (beside, new.rows),
                 "pool": (own[open_rows], open_rows), "pool_propagated": (after[open_rows], open_rows)}  # fmt: skip
        accuracies = {
            name: round(100 * float((values.argmax(1) == self.pool.truth[rows]).mean()), 2)
            for name, (values, rows) in found.items()
        }
        of_truth = after[open_rows, self.pool.truth[open_rows]]
        return accuracies | {"pool_log_loss": round(float(-np.log(np.maximum(of_truth, 1e-6)).mean()), 4)}


def study_of(name: str, n_labels: int, seed: int, given: argparse.Namespace) -> Study:
    full, files = read_pool(given.data / name)
    pool = part_of(full, "tune")
    rows = initial_rows(pool, Plan(start=n_labels), seed)
    media = derive_media(full.kind, pool_measures(full, files))
    folder = given.out / f"{name}-{n_labels}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    laptop = preset("laptop", seed=seed)
    context = StageContext(
        snapshot=snapshot_with(pool, pool.truth, rows),
        config=dataclasses.replace(laptop, media=media, training=dataclasses.replace(laptop.training, refine_steps=0)),
        read=lambda key: files[key].read_bytes(),
        cache=FolderRowCache(given.out / "cache" / name),
        runtime=Runtime.create(seed, "cpu"),
        checkpoints=folder,
    )
    return Study(pool, context)


def tune(results: Results, given: argparse.Namespace) -> None:
    """Measure the variants that have no result yet; the network before refinement is the variant "none"."""
    names = ["none", *(given.variants or VARIANTS)]
    for seed in given.seeds:
        for n_labels in given.labels:
            for name in given.only or DATA_SETS:
                case = {"data": name, "labels": n_labels, "seed": seed}
                missing = [one for one in names if results.find(**case, variant=one) is None]
                study = study_of(name, n_labels, seed, given) if missing else None
                for one in missing:
                    assert study is not None
                    began = time.process_time()
                    model = study.refined(VARIANTS[one]) if one != "none" else study.model
                    cpu = round(time.process_time() - began, 1)
                    results.add(**case, variant=one, cpu_seconds=cpu, **study.measured(model))


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, by data set and number of labels, and over all of them."""
    found: dict[str, Any] = {}
    for one in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == one]
        groups = {f"{name}, {count}": [r["network"] for r in own if (r["data"], r["labels"]) == (name, count)]
                  for name in DATA_SETS for count in LABELS}  # fmt: skip
        found[one] = {name: mean_and_deviation(values) for name, values in groups.items() if values}
        found[one]["all"] = mean_and_deviation([row["network"] for row in own])
        found[one]["cpu_seconds"] = round(float(np.mean([row["cpu_seconds"] for row in own])), 1)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.refinement")
    parser.add_argument("--part", choices=["tune"], default="tune")
    parser.add_argument("--only", nargs="*", choices=DATA_SETS, default=[])
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=[])
    parser.add_argument("--labels", nargs="*", type=int, default=list(LABELS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("results") / "refinement")
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(given.out / "results.jsonl")
    tune(results, given)
    say(json.dumps({"experiment": "refinement", "machine": machine(), "table": table(results.rows)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
