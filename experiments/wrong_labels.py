"""Labels that may be wrong, on frozen encoders: the accuracy that wrong answers cost, and how well they are found.

    python -m experiments.wrong_labels --part tune|test --data DIR --encoders DIR --out DIR [--only SET ...] [--seeds N]
    python -m experiments.wrong_labels --part test --report ...      the table from the trials that are there

Learning    one label per class, then three batches of bico as large (10 at least), every answer counted: new labels and
            second looks. Answers are wrong with probability 0.1 or 0, and a second look is an independent draw.
            "plain" trusts every label; "checked" weighs labels by trust and spends picks on second looks, as rounds do.
Suspects    200 random labels, a fifth of them wrong: the share of wrong ones among the 20 least trusted, and among the
            first 20 of cleanlab's ranking of the same out-of-fold probabilities.
Parts       tune: accuracy is measured on a quarter of the pool, and the test part is not read. test: on the test part.
            The settings of `core.labels` were chosen on tune.

`experiments.wrong_labels_scratch` is the same with training from scratch. The accuracy is inductive. A trial is one
file in OUT/trials/PART; an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.acquisition import registry
from core.labels.errors import suspect_labels
from core.labels.second_looks import with_second_looks
from core.labels.trust import (
    Trust,
    beliefs,
    fit_noise,
    head_predictor,
    label_trust,
    out_of_fold_logits,
    trusted,
)
from core.learning.head import Head, fit_head
from core.types import UNLABELED
from experiments.benchmark import sets
from experiments.benchmark.protocol import HEAD, SELECTION, Pool, first_labels, request_of
from experiments.benchmark.sets import FeatureSet
from experiments.record import DATA, machine, say

SETS = ("spoken_digit", "speech_commands", "sounds", "cifar10")
POOL = 1_000
WRONG = 0.1
BATCHES = 4
MANY, MANY_WRONG, TOP = 200, 0.2, 20


def tuning_part(full: FeatureSet) -> FeatureSet:
    """The pool alone, with a quarter of it as the part for evaluation."""
    order = np.random.default_rng(99).permutation(len(full.classes))
    test, pool = order[: len(order) // 4], order[len(order) // 4 :]
    return FeatureSet(full.name, full.features[pool], full.classes[pool], full.features[test], full.classes[test])


class Annotator:
    """Answers that are wrong with probability `wrong`; every answer for an item is an independent draw."""

    def __init__(self, classes: NDArray[np.int64], n_classes: int, wrong: float, seed: int) -> None:
        self.truth, self.n_classes, self.wrong, self.seed = classes, n_classes, wrong, seed
        self.labels = np.full(len(classes), UNLABELED)
        self.confirmed = np.zeros(len(classes), np.bool_)
        self.looks = np.zeros(len(classes), np.int64)

    def label(self, rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            rng = np.random.default_rng([self.seed, row, int(self.looks[row])])
            answer = int(self.truth[row])
            if rng.random() < self.wrong:
                answer = int((answer + rng.integers(1, self.n_classes)) % self.n_classes)
            self.confirmed[row] = self.looks[row] > 0 and answer == self.labels[row]
            self.labels[row] = answer
            self.looks[row] += 1


def trust_in(pool: Pool, labels: NDArray[np.int64], confirmed: NDArray[np.bool_] | None = None) -> Trust:
    n_classes = pool.data.n_classes
    return label_trust(labels, n_classes, head_predictor(pool.prepared, n_classes, HEAD), confirmed)


def fit(pool: Pool, labels: NDArray[np.int64], trust: Trust) -> Head:
    return fit_head(pool.data.features, labels, pool.data.n_classes, HEAD, pool.prepared, trust.weights)


def learn(pool: Pool, seed: int, wrong: float, checked: bool) -> dict[str, Any]:
    """One trial: the accuracy after the last batch, and the counts of the answers."""
    classes, n_classes = pool.data.classes, pool.data.n_classes
    step = max(10, n_classes)
    annotator = Annotator(classes, n_classes, wrong, seed)
    annotator.label(first_labels(classes, step, seed))
    accuracies, n_looks, n_corrected = [], 0, 0
    for batch in range(BATCHES):
        labels = annotator.labels
        trust = trust_in(pool, labels, annotator.confirmed) if checked else trusted(labels, n_classes)
        head = fit(pool, labels, trust)
        accuracies.append(pool.accuracy(head))
        if batch + 1 == BATCHES:
            break
        request = request_of(pool, head, labels, step, seed=1_000 * seed + batch)
        chosen = registry.select(request, dataclasses.replace(SELECTION, batch_size=step), explain=False)
        if checked:
            chosen, _ = with_second_looks(chosen, request, labels, trust.weights, trust.belief)
        again = chosen.item_ids[labels[chosen.item_ids] != UNLABELED]
        before = labels[again].copy()
        annotator.label(chosen.item_ids)
        n_looks += len(again)
        n_corrected += int(((before != classes[again]) & (annotator.labels[again] == classes[again])).sum())
    given = annotator.labels != UNLABELED
    return {
        "accuracy": accuracies,
        "answers": int(annotator.looks.sum()),
        "second_looks": n_looks,
        "corrected": n_corrected,
        "wrong_left": int((annotator.labels[given] != classes[given]).sum()),
    }


def find(pool: Pool, seed: int) -> dict[str, Any]:
    """How well wrong labels are found with the features of the encoder."""
    classes, n_classes = pool.data.classes, pool.data.n_classes
    labels, wrong = many_labels(classes, n_classes, seed)
    logits = out_of_fold_logits(labels, n_classes, head_predictor(pool.prepared, n_classes, HEAD))
    return found_among(labels, wrong, logits)


def many_labels(classes: NDArray[np.int64], n_classes: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n,) labels: 200 random ones, UNLABELED elsewhere; and the rows of the fifth of them that is wrong."""
    rows = first_labels(classes, MANY, seed)
    rng = np.random.default_rng([seed, 5])
    labels, n_wrong = np.full(len(classes), UNLABELED), round(MANY_WRONG * MANY)
    labels[rows] = classes[rows]
    wrong = rng.choice(rows, n_wrong, replace=False)
    labels[wrong] = (labels[wrong] + rng.integers(1, n_classes, n_wrong)) % n_classes
    return labels, wrong


def found_among(labels: NDArray[np.int64], wrong: NDArray[np.int64], logits: NDArray[np.float64]) -> dict[str, Any]:
    """The share of wrong labels among the first 20 suspects, by trust, by this package's confident learning, and by
    cleanlab on the same probabilities, from out-of-fold logits (n, C); and how much the rankings agree."""
    from cleanlab.filter import find_label_issues  # a development dependency
    from cleanlab.rank import get_label_quality_scores
    from scipy.special import softmax
    from scipy.stats import spearmanr

    rows = np.flatnonzero(labels != UNLABELED)
    usable = rows[np.isfinite(logits[rows]).all(1)]
    given = labels[usable]
    beta, e = fit_noise(logits[usable], given)
    trust = beliefs(logits[usable], given, beta, e)[np.arange(len(usable)), given]
    p = softmax(beta * logits[usable], axis=1)
    p = np.maximum(p, 1e-9) / np.maximum(p, 1e-9).sum(1, keepdims=True)
    ranked = usable[suspect_labels(p, given).rows]
    dense = np.unique(given, return_inverse=True)
    columns = p[:, dense[0]] / p[:, dense[0]].sum(1, keepdims=True)
    quality = get_label_quality_scores(dense[1], columns, method="normalized_margin")
    issues = usable[find_label_issues(dense[1], columns, return_indices_ranked_by="normalized_margin")]
    own, theirs = suspect_labels(columns, dense[1]).rows, np.asarray(quality)
    return {
        "precision": float(np.isin(usable[np.argsort(trust, kind="stable")[:TOP]], wrong).mean()),
        "confident_learning": float(np.isin(ranked[:TOP], wrong).mean()),
        "cleanlab": float(np.isin(issues[:TOP], wrong).mean()),
        "rank_correlation": float(spearmanr(trust, theirs).statistic),
        "shared_top": float(np.isin(usable[np.argsort(trust, kind="stable")[:TOP]], issues[:TOP]).mean()),
        "shared_issues": float(np.isin(usable[own], issues).mean()) if len(own) else 1.0,
        "wrong_share": e,
    }


TASKS = {
    "clean plain": lambda pool, seed: learn(pool, seed, 0.0, False),
    "clean checked": lambda pool, seed: learn(pool, seed, 0.0, True),
    "wrong plain": lambda pool, seed: learn(pool, seed, WRONG, False),
    "wrong checked": lambda pool, seed: learn(pool, seed, WRONG, True),
    "suspects": find,
}


def run_all(given: argparse.Namespace, folder: Path) -> None:
    places = sets.Places(given.data, given.encoders, given.out, POOL)
    known = sets.known_sources(given.data, given.out)
    pools: dict[str, Pool] = {}
    for seed in range(given.seeds):
        for name in given.only or SETS:
            for task, run in TASKS.items():
                file = folder / f"{name}.{task.replace(' ', '-')}.{seed}.json"
                if file.exists():
                    continue
                if name not in pools:
                    full = sets.load(known[name], places)
                    pools[name] = Pool.of(tuning_part(full) if given.part == "tune" else full)
                row = {"set": name, "task": task, "seed": seed, **run(pools[name], seed)}
                file.with_suffix(".part").write_text(json.dumps(row))
                file.with_suffix(".part").replace(file)
        say(f"seed {seed}: done")


def summarize(folder: Path) -> dict[str, Any]:
    """Means over seeds, by set."""
    rows = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        of = {task: [row for row in rows if row["set"] == name and row["task"] == task] for task in TASKS}
        last = {task: np.array([row["accuracy"][-1] for row in of[task]]) for task in TASKS if task != "suspects"}
        n = min(len(one) for one in of.values())
        paired = {task: last[task][:n] - last["clean plain"][:n] for task in last}
        found[name] = {
            "seeds": n,
            "accuracy": {task: float(values.mean()) for task, values in last.items()},
            "cost": {task: float(-values.mean()) for task, values in paired.items()},
            "cost_error": {task: float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else None
                           for task, values in paired.items()},
            "second_looks": float(np.mean([row["second_looks"] for row in of["wrong checked"]])),
            "looks_when_clean": float(np.mean([row["second_looks"] for row in of["clean checked"]])),
            "corrected": float(np.mean([row["corrected"] for row in of["wrong checked"]])),
            "answers": of["wrong checked"][0]["answers"],
            "suspects": {key: float(np.mean([row[key] for row in of["suspects"]]))
                         for key in of["suspects"][0] if key not in ("set", "task", "seed")},
        }  # fmt: skip
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        "| set | answers | clean | checked, clean | 10 % wrong, plain | 10 % wrong, checked | cost (points) "
        "| second looks | top 20 suspects | cleanlab |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        of, cost = one["accuracy"], 100 * one["cost"]["wrong checked"]
        error = one["cost_error"]["wrong checked"]
        spread = f" ± {100 * error:.1f}" if error is not None else ""
        lines.append(
            f"| {name} | {one['answers']} | {100 * of['clean plain']:.1f} | {100 * of['clean checked']:.1f} "
            f"| {100 * of['wrong plain']:.1f} | {100 * of['wrong checked']:.1f} | {cost:.1f}{spread} "
            f"| {one['second_looks']:.1f} | {one['suspects']['precision']:.2f} | {one['suspects']['cleanlab']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["tune", "test"], default="tune")
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"), help="as for experiments.benchmark")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--encoders", type=Path, default=Path("encoders"), help="folder of encoder folders")
    parser.add_argument("--only", nargs="*", default=[], help="sets by name")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--report", action="store_true", help="write the table from the trials that are there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.out / "wrong_labels" / given.part
    folder.mkdir(parents=True, exist_ok=True)
    if not given.report:
        run_all(given, folder)
    found = summarize(folder)
    (folder.parent / f"{given.part}_results.json").write_text(
        json.dumps({"sets": found, "machine": machine()}, indent=1)
    )
    print(table(found))


if __name__ == "__main__":
    main()
