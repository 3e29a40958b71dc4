"""Labels that may be wrong, with training from scratch: how well they are found, and the accuracy that they cost.

    python -m experiments.wrong_labels_scratch --part trust --size small --data DIR --out DIR [--seeds 10]
    python -m experiments.wrong_labels_scratch --part suspects --size full --data DIR --out DIR [--seeds 10]
    python -m experiments.wrong_labels_scratch --part learning --size small --data DIR --out DIR [--seeds 3]
                                                [--cases clean-checked clean-plain wrong-checked wrong-plain]
    python -m experiments.wrong_labels_scratch --part PART --size SIZE --data DIR --out DIR --report    from the results

trust       40 labels of the pool, ten first ones and three batches of bico, without wrong answers and with 10 %: the
            trust in right and in wrong labels, and the accuracy for the other items of the pool by a head with label
            propagation, in place of a network, with these weights. By the graph alone, as in earlier versions, and by
            the pool of graph and heads, as rounds do (`core.labels.clip_trust`). No network is trained, and no test
            item is used. The settings of `core.labels.clip_trust` were chosen in this way.
suspects    200 random labels of the pool, a fifth of them wrong; no network is trained. The out-of-fold predictions are
            those of a round, the pool of graph and heads.
learning    the trials of bico of `experiments.benchmark.scratch`: ten labels, one of each class at least, then three
            batches of ten. Every answer counts, second looks too. With 10 % wrong answers and without, each time with
            the checks of labels (weights by trust, second looks), as the preset has them, and with neither ("plain").
            The test items measure accuracy alone.

The sizes are those of `experiments.benchmark.scratch`. Both parts may use its folder OUT: trials without wrong answers
are then those of the benchmark. The model of the first ten labels is trained once, because labels are checked from 20
on. An interrupted run continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.simulation.dataset import cache_of, open_study
from app.simulation.local_runner import simulate
from app.simulation.results import Question, read_results
from app.simulation.trial_process import start_file
from core.acquisition import registry
from core.config import LabelsConfig
from core.labels.clip_trust import FOLDS, clip_trust, fit_pool
from core.labels.trust import Predict, graph_predictor, label_trust, out_of_fold_logits
from core.learning.head import fit_head, prepare
from core.media.inputs import Inputs
from core.rounds.candidates import project
from core.rounds.checking import PROJECTED, predictor_of_clips
from core.rounds.context import Previous, StageContext
from core.rounds.simulation import Oracle, initial_rows, snapshot_with
from core.rounds.stages import prepare_inputs
from core.runtime import Runtime
from core.similarity.diffusion import diffusion_features
from core.similarity.graph import SimilarityGraph, build_similarity_graph
from core.similarity.propagation import propagate_labels
from core.types import UNLABELED, SelectionRequest
from experiments.active_learning import ProgressLines
from experiments.benchmark import page, scratch
from experiments.benchmark.goals import mean_interval, with_half
from experiments.benchmark.protocol import first_labels
from experiments.record import DATA, say
from experiments.wrong_labels import WRONG, Annotator, found_among, many_labels
from storage.rounds.row_cache import FolderRowCache

SETS = ("spoken_digit", "speech_commands")
LAST = len(scratch.PER_CLASS) - 1
DOUBTED = 0.75  # a label with less trust has less weight
ANSWERS = scratch.N_CLASSES * scratch.PER_CLASS[-1]


@dataclasses.dataclass(frozen=True)
class Case:
    """The share of wrong answers, and whether labels are checked."""

    wrong: float
    checked: bool

    def __str__(self) -> str:
        return f"{'wrong' if self.wrong else 'clean'}-{'checked' if self.checked else 'plain'}"

    def folder(self, name: str, run: scratch.Run) -> Path:
        """The results; without wrong answers and with checks they are those of the benchmark."""
        if self == CLEAN_CHECKED:
            return run.folder(name)
        return run.out / "wrong_labels" / "scratch" / run.size / f"{name}-{self}"

    def question(self, name: str, run: scratch.Run, seed: int) -> Question:
        usual = scratch.question(name, run, seed)
        labels = LabelsConfig(weigh=self.checked, second_looks=self.checked, earlier_rounds=self.checked)
        return dataclasses.replace(
            usual,
            strategies=("bico",),
            plan=dataclasses.replace(usual.plan, wrong_share=self.wrong),
            config=dataclasses.replace(usual.config, labels=labels),
        )


CLEAN_CHECKED, CLEAN_PLAIN = Case(0.0, checked=True), Case(0.0, checked=False)
WRONG_CHECKED, WRONG_PLAIN = Case(WRONG, checked=True), Case(WRONG, checked=False)
CASES = {"clean-checked": CLEAN_CHECKED, "clean-plain": CLEAN_PLAIN, "wrong-checked": WRONG_CHECKED,
         "wrong-plain": WRONG_PLAIN}  # fmt: skip


def learn(name: str, run: scratch.Run, seed: int, cases: Sequence[Case], processes: int | None) -> None:
    """The trials of one seed that have no results yet."""
    cache = cache_of(CLEAN_CHECKED.question(name, run, seed), run.folder(name))
    for case in cases:
        twin = dataclasses.replace(case, checked=not case.checked)
        share_start(twin.folder(name, run), case.folder(name, run), seed)
        question, folder = case.question(name, run, seed), case.folder(name, run)
        say(f"{name}, {case}, seed {seed}")
        simulate(question, folder, processes=processes, cache=cache, report=ProgressLines())


def share_start(source: Path, target: Path, seed: int) -> None:
    """Copy the model of the first labels, on which the checks have no influence."""
    known, wanted = start_file(source, seed), start_file(target, seed)
    if known.exists() and not wanted.exists():
        wanted.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(known, wanted)


def suspects_file(name: str, run: scratch.Run) -> Path:
    return run.out / "wrong_labels" / "scratch" / run.size / f"{name}-suspects" / "found.json"


@dataclasses.dataclass(frozen=True)
class Clips:
    """The pool of a set with its similarity graph, and the context of a round on it."""

    context: StageContext
    inputs: Inputs
    graph: SimilarityGraph
    truth: NDArray[np.int64]
    items: NDArray[np.int64]  # rows of the pool; the others are test items

    @property
    def n_classes(self) -> int:
        return self.context.snapshot.n_classes

    def labeled(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The labels of all rows, from those of the pool."""
        found = np.full(len(self.truth), UNLABELED)
        found[self.items] = labels
        return found

    def predictor(self, labels: NDArray[np.int64], pooled: bool) -> Predict:
        """That of a round with these labels: the pool of graph and heads, or the graph alone."""
        if pooled:
            return predictor_of_clips(self.context, self.inputs, self.graph, labels)
        return graph_predictor(self.graph, self.n_classes, len(labels), self.context.config.similarity.reach)


def open_clips(name: str, run: scratch.Run, folder: Path) -> Clips:
    question = scratch.question(name, run, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    data = open_study(question, folder)
    context = StageContext(
        snapshot=snapshot_with(data.pool, data.pool.truth, np.empty(0, np.int64)),
        config=question.config,
        read=data.read,
        cache=FolderRowCache(folder / "cache"),
        runtime=Runtime.create(0, "cpu"),
        previous=Previous(),
    )
    inputs = prepare_inputs(context)
    graph = build_similarity_graph(inputs, context.snapshot.labels, data.pool.test, question.config.similarity)
    assert graph is not None
    data.store.close()
    return Clips(context, inputs, graph, data.pool.truth, np.flatnonzero(~data.pool.test))


def find(name: str, run: scratch.Run, n_seeds: int) -> None:
    """Write how well wrong labels of the pool are found, for each seed."""
    clips, found = open_clips(name, run, suspects_file(name, run).parent), []
    for seed in range(n_seeds):
        given, wrong = many_labels(clips.truth[clips.items], clips.n_classes, seed)
        labels = clips.labeled(given)
        both = out_of_fold_logits(labels, 2 * clips.n_classes, clips.predictor(labels, pooled=True), n_folds=FOLDS)
        rows = np.flatnonzero(np.isfinite(both).all(1))
        logits = np.full((len(labels), clips.n_classes), np.nan)
        logits[rows] = fit_pool(both[rows], labels[rows]).logits(both[rows])
        row = {"set": name, "pool": len(clips.items), "seed": seed}
        found.append(row | found_among(labels, clips.items[wrong], logits))
    suspects_file(name, run).write_text(json.dumps(found, indent=1))


def trust_file(name: str, run: scratch.Run) -> Path:
    return run.out / "wrong_labels" / "scratch" / run.size / f"{name}-trust" / "trust.json"


class QuickLearner:
    """A head on a projection of the inputs with label propagation, in place of a network."""

    def __init__(self, clips: Clips) -> None:
        self.clips, self.config = clips, clips.context.config
        self.features = project(clips.inputs, clips.items, clips.context, PROJECTED)
        self.prepared = prepare(self.features, clips.n_classes, self.config.head)
        self.diffusion = diffusion_features(clips.graph)

    def predictions(self, labels: NDArray[np.int64], weights: NDArray[np.floating]) -> NDArray[np.float32]:
        """(m, C) for the items of the pool, from labels and weights of all rows."""
        items, n_classes = self.clips.items, self.clips.n_classes
        head = fit_head(self.features, labels[items], n_classes, self.config.head, self.prepared, weights[items])
        start = np.full((len(labels), n_classes), 1.0 / n_classes, np.float32)
        start[items] = head.probabilities(self.features)
        return propagate_labels(self.clips.graph, start, labels, self.config.similarity.reach, weights)[items]

    def accuracy(self, labels: NDArray[np.int64], weights: NDArray[np.floating]) -> float:
        """For the unlabeled items of the pool."""
        items = self.clips.items
        right = self.predictions(labels, weights).argmax(1) == self.clips.truth[items]
        return float(right[labels[items] == UNLABELED].mean())

    def batch(self, labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Positions of the next items in the pool, by bico as the preset has it."""
        labeled = labels[self.clips.items] != UNLABELED
        request = SelectionRequest(
            item_ids=np.arange(len(labeled)),
            labeled=labeled,
            eligible=~labeled,
            probabilities=self.predictions(labels, np.ones(len(labels))),
            embeddings=np.asarray(self.prepared.z, np.float32),
            features=np.empty((len(labeled), 0), np.float32),
            batch_size=scratch.N_CLASSES,
            seed=seed,
            similarity_features=lambda: self.diffusion,
        )
        return registry.select(request, self.config.selection, explain=False).item_ids


def measure_trust(name: str, run: scratch.Run, n_seeds: int) -> None:
    """Write the trust in right and wrong labels of the pool and what the weights change, for each seed."""
    clips = open_clips(name, run, trust_file(name, run).parent)
    learner, found = QuickLearner(clips), []
    for seed, wrong in itertools.product(range(n_seeds), (0.0, WRONG)):
        annotator = Annotator(clips.truth[clips.items], clips.n_classes, wrong, seed)
        annotator.label(first_labels(annotator.truth, scratch.N_CLASSES, seed))
        for batch in range(LAST):
            annotator.label(learner.batch(clips.labeled(annotator.labels), seed=1_000 * seed + batch))
        labels = clips.labeled(annotator.labels)
        row: dict[str, Any] = {"wrong": wrong, "seed": seed, "plain": learner.accuracy(labels, np.ones(len(labels)))}
        for kind, check in (("graph", label_trust), ("pooled", clip_trust)):
            trust = check(labels, clips.n_classes, clips.predictor(labels, kind == "pooled"))
            given = np.flatnonzero(labels != UNLABELED)
            own, right = trust.belief[given, labels[given]], labels[given] == clips.truth[given]
            row[kind] = {
                "accuracy": learner.accuracy(labels, trust.weights),
                "wrong": int((~right).sum()),
                "found": int((own[~right] < DOUBTED).sum()),
                "false": int((own[right] < DOUBTED).sum()),
                "loss": float(-np.log(np.clip(np.where(right, own, 1.0 - own), 1e-3, 1.0)).mean()),
            }
        found.append(row)
    trust_file(name, run).write_text(json.dumps(found, indent=1))


def trust_table(run: scratch.Run) -> str:
    """Means over seeds."""
    cells = []
    for name in SETS:
        rows = json.loads(trust_file(name, run).read_text()) if trust_file(name, run).exists() else []
        for wrong, kind in itertools.product((0.0, WRONG), ("graph", "pooled")):
            own = [row for row in rows if row["wrong"] == wrong]
            if not own:
                continue
            mean = {key: float(np.mean([row[kind][key] for row in own])) for key in own[0][kind]}
            plain = 100 * float(np.mean([row["plain"] for row in own]))
            cells.append([
                name, str(len(own)), f"{100 * wrong:.0f} %", kind, f"{mean['loss']:.3f}",
                f"{mean['found']:.1f} of {mean['wrong']:.1f}", f"{mean['false']:.1f}", f"{plain:.1f}",
                f"{100 * mean['accuracy']:.1f}",
            ])  # fmt: skip
    header = ["set", "seeds", "wrong answers", "predictors", "log loss of the trust", "wrong labels in doubt",
              "right labels in doubt", "pool, plain", "pool, weighed"]  # fmt: skip
    return page.table(header, cells)


def suspect_table(run: scratch.Run) -> str:
    """The means over seeds, with 95 % t intervals."""
    cells = []
    for name in SETS:
        if not suspects_file(name, run).exists():
            continue
        own = json.loads(suspects_file(name, run).read_text())
        shares = ("precision", "confident_learning", "cleanlab", "wrong_share")
        values = [with_half(mean_interval(np.array([100 * row[share] for row in own]))) for share in shares]
        cells.append([name, str(own[0]["pool"]), str(len(own)), *values])
    header = ["set", "pool", "seeds", "wrong among the 20 least trusted", "confident learning", "cleanlab",
              "estimated share of wrong labels"]  # fmt: skip
    return page.table(header, cells)


def learned(name: str, run: scratch.Run) -> dict[Case, dict[int, dict[str, Any]]]:
    """The last record of each case that has some, by seed."""
    found: dict[Case, dict[int, dict[str, Any]]] = {}
    for case in CASES.values():
        file = case.folder(name, run) / "results.json"
        for record in read_results(file)["records"] if file.exists() else []:
            if record["strategy"] == "bico" and record["round"] == LAST:
                found.setdefault(case, {})[record["seed"]] = record
    return found


def wrong_labels_at_the_end(name: str, run: scratch.Run, seed: int) -> int:
    """How many labels of the last model are wrong, of the trial with wrong answers and checks."""
    folder, question = WRONG_CHECKED.folder(name, run), WRONG_CHECKED.question(name, run, seed)
    data = open_study(question, folder)
    data.store.close()
    oracle = Oracle(data.pool, question.plan, seed)
    oracle.label(initial_rows(data.pool, question.plan, seed))
    row_of = {item: row for row, item in enumerate(data.pool.hashes)}
    records = [one for one in read_results(folder / "results.json")["records"] if one["seed"] == seed]
    for record in sorted(records, key=lambda one: int(one["round"])):
        oracle.label(np.array([row_of[item] for item in record["picks"]], np.int64))
    return int(((oracle.labels != UNLABELED) & (oracle.labels != data.pool.truth)).sum())


def learning_table(run: scratch.Run) -> str:
    """Means over the seeds that all three cases without `wrong-plain` have, with 95 % t intervals; differences are
    paired by seed. `wrong-plain` is of the same seeds, or "not run"."""
    cells = []
    for name in SETS:
        found = learned(name, run)
        needed = (CLEAN_PLAIN, CLEAN_CHECKED, WRONG_CHECKED)
        seeds = sorted(set.intersection(*(set(found.get(case, {})) for case in needed)))
        if not seeds:
            continue
        value = {case: 100 * np.array([own[seed]["accuracy"] for seed in seeds]) for case, own in found.items()
                 if set(seeds) <= set(own)}  # fmt: skip
        looks = [float(np.mean([ANSWERS - found[case][seed]["n_labels"] for seed in seeds]))
                 for case in (CLEAN_CHECKED, WRONG_CHECKED)]  # fmt: skip
        means = {case: f"{value[case].mean():.1f}" if case in value else "not run" for case in CASES.values()}
        lost = {case: str(mean_interval(value[CLEAN_PLAIN] - value[case])) if case in value else "not run"
                for case in CASES.values()}  # fmt: skip
        cells.append([
            name, str(len(seeds)), means[CLEAN_PLAIN], means[CLEAN_CHECKED], lost[CLEAN_CHECKED],
            means[WRONG_PLAIN], means[WRONG_CHECKED], lost[WRONG_PLAIN], lost[WRONG_CHECKED],
            " / ".join(f"{mean:.1f}" for mean in looks),
            ", ".join(str(wrong_labels_at_the_end(name, run, seed)) for seed in seeds),
        ])  # fmt: skip
    header = ["set", "seeds", "clean", "checked, clean", "lost by checks", "10 % wrong, plain", "10 % wrong, checked",
              "cost, plain", "cost, checked", "second looks, clean / wrong", "wrong labels at the end"]  # fmt: skip
    return page.table(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["trust", "suspects", "learning"], required=True)
    parser.add_argument("--size", choices=list(scratch.SIZES), default="small")
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"), help="as for experiments.benchmark")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", choices=SETS, default=[], help="sets by name")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES), help="of the part learning")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, help="of the part learning; one per core by default")
    parser.add_argument("--report", action="store_true", help="write the table from the results that are there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = scratch.Run(given.data, given.out, given.size)
    if given.part != "learning":
        measure, table = (find, suspect_table) if given.part == "suspects" else (measure_trust, trust_table)
        for name in () if given.report else given.only or SETS:
            measure(name, run, given.seeds)
        print(table(run))
        return
    for seed in () if given.report else range(given.seeds):
        for name in given.only or SETS:
            learn(name, run, seed, [CASES[case] for case in given.cases], given.processes)
    print(learning_table(run))


if __name__ == "__main__":
    main()
