"""Labels that may be wrong, with training from scratch: how well they are found, and the accuracy that they cost.

    python -m experiments.wrong_labels_scratch --part suspects --size full --data DIR --out DIR [--seeds 10]
    python -m experiments.wrong_labels_scratch --part learning --size small --data DIR --out DIR [--seeds 3]
                                                [--cases clean-checked clean-plain wrong-checked wrong-plain]
    python -m experiments.wrong_labels_scratch --part PART --size SIZE --data DIR --out DIR --report    from the results

suspects    200 random labels of the pool, a fifth of them wrong; no network is trained. The out-of-fold predictions are
            those of a round (`core.rounds.checking`): label propagation over the similarity graph of the clips.
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
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.simulation.dataset import cache_of, open_study
from app.simulation.local_runner import simulate
from app.simulation.results import Question, read_results
from app.simulation.trial_process import start_file
from core.config import LabelsConfig
from core.labels.trust import graph_predictor
from core.rounds.context import Previous, StageContext
from core.rounds.simulation import Oracle, initial_rows, snapshot_with
from core.rounds.stages import prepare_inputs
from core.runtime import Runtime
from core.similarity.graph import build_similarity_graph
from core.types import UNLABELED
from experiments.active_learning import ProgressLines
from experiments.benchmark import page, scratch
from experiments.benchmark.goals import mean_interval, with_half
from experiments.record import DATA, say
from experiments.wrong_labels import WRONG, found_among, many_labels
from storage.rounds.row_cache import FolderRowCache

SETS = ("spoken_digit", "speech_commands")
LAST = len(scratch.PER_CLASS) - 1
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
        labels = LabelsConfig(weigh=self.checked, second_looks=self.checked)
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


def find(name: str, run: scratch.Run, n_seeds: int) -> None:
    """Write how well wrong labels of the pool are found, for each seed."""
    question, folder = scratch.question(name, run, seed=0), suspects_file(name, run).parent
    folder.mkdir(parents=True, exist_ok=True)
    data = open_study(question, folder)
    pool, n_classes = data.pool, len(data.pool.class_names)
    context = StageContext(
        snapshot=snapshot_with(pool, pool.truth, np.empty(0, np.int64)),
        config=question.config,
        read=data.read,
        cache=FolderRowCache(folder / "cache"),
        runtime=Runtime.create(0, "cpu"),
        previous=Previous(),
    )
    inputs = prepare_inputs(context)
    graph = build_similarity_graph(inputs, context.snapshot.labels, pool.test, question.config.similarity)
    assert graph is not None
    predict = graph_predictor(graph, n_classes, len(pool.truth), question.config.similarity.reach)
    data.store.close()
    items, found = np.flatnonzero(~pool.test), []
    for seed in range(n_seeds):
        labels = np.full(len(pool.truth), UNLABELED)
        labels[items], wrong = many_labels(pool.truth[items], n_classes, seed)
        row = {"set": name, "pool": len(items), "seed": seed}
        found.append(row | found_among(labels, items[wrong], n_classes, predict))
    suspects_file(name, run).write_text(json.dumps(found, indent=1))


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
    parser.add_argument("--part", choices=["suspects", "learning"], required=True)
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
    if given.part == "suspects":
        for name in () if given.report else given.only or SETS:
            find(name, run, given.seeds)
        print(suspect_table(run))
        return
    for seed in () if given.report else range(given.seeds):
        for name in given.only or SETS:
            learn(name, run, seed, [CASES[case] for case in given.cases], given.processes)
    print(learning_table(run))


if __name__ == "__main__":
    main()
