"""Wrong labels among those of rounds with training from scratch: what predictions of earlier rounds add to the check.

    python -m experiments.wrong_labels_rounds --data DIR --out DIR [--only SET ...] [--seeds 3] [--report]

The trials are those of `experiments.benchmark.scratch_tune`: bico with networks trained from scratch, size small, on
pool items alone. Answers are wrong for 10 % of the items or for none, and every label has full weight. The predictions
of each round are kept. The trust in the 20, 30 and 40 labels of the later rounds is computed from them: by the graph
and heads ("pooled"), and together with earlier rounds for several medians of gamma (`core.labels.clip_trust`). The
seeds are not those of other experiments. With --report the table is written from the trials that are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from app.simulation.dataset import open_study
from core.config import LabelsConfig
from core.labels.clip_trust import FOLDS, GAMMA, fit_pool
from core.labels.earlier_predictions import EarlierRound, earlier_log_probabilities
from core.labels.earlier_rounds import EarlierRounds
from core.labels.trust import SUSPECTED, beliefs, out_of_fold_logits
from core.rounds.checking import predictor_of_clips
from core.rounds.context import Previous, StageContext
from core.rounds.simulation import Trial, snapshot_with
from core.rounds.stages import prepare_inputs
from core.runtime import Runtime
from core.similarity.graph import build_similarity_graph
from experiments.benchmark import page, scratch, scratch_tune
from experiments.record import DATA, say
from experiments.wrong_labels import WRONG
from storage.rounds.row_cache import FolderRowCache

SETS = ("spoken_digit", "speech_commands")
FIRST_SEED = 10
MEDIANS = (0.25, 0.5, 1.0, 2.0)
BICO = "strategy=bico"


class KeepingTrial(Trial):
    """A trial without checks that keeps the predictions of its rounds."""

    @property
    def _reads_earlier(self) -> bool:
        return True


def rounds_of(name: str, run: scratch.Run, seed: int, wrong: float, train: bool) -> tuple[EarlierRound, ...]:
    """The rounds of a trial, oldest first; () if there is none and `train` is not set."""
    usual = scratch_tune.question(name, BICO, run, seed)
    home = run.out / "wrong_labels" / "rounds" / name
    folder = home / "models" / f"{seed}-{wrong}"
    folder.mkdir(parents=True, exist_ok=True)
    kept = EarlierRounds(folder)
    if kept.restore(usual.plan.rounds + 1):
        return kept.newest_first()[::-1]
    if not train:
        return ()
    data = open_study(usual, home)
    trial = KeepingTrial(
        pool=data.pool,
        plan=dataclasses.replace(usual.plan, wrong_share=wrong),
        config=dataclasses.replace(
            usual.config,
            labels=LabelsConfig(weigh=False, second_looks=False),
            selection=dataclasses.replace(usual.config.selection, strategy="bico"),
        ),
        seed=seed,
        read=data.read,
        cache=FolderRowCache(home / "cache"),
        runtime=Runtime.create(seed, "cpu"),
        folder=folder,
    )
    for record in trial.run():
        say(f"{name}, {wrong:.0%} wrong, seed {seed}, {record.n_labels} labels: {100 * record.accuracy:.1f} %")
    data.store.close()
    return rounds_of(name, run, seed, wrong, train=False)


@dataclasses.dataclass(frozen=True)
class Checked:
    """The labels of a round with the evidence about them."""

    wrong: float
    right: NDArray[np.bool_]  # (m,) of the labels that can be checked
    labels: NDArray[np.int64]  # (m,)
    both: NDArray[np.float64]  # (m, 2 C) by graph and heads
    earlier: NDArray[np.float64]  # (m, C) by earlier rounds, 0 where there is none

    def trust(self, median: float | None) -> NDArray[np.float64]:
        """(m,) without earlier rounds if there is no median."""
        earlier = None if median is None else self.earlier
        fit = fit_pool(self.both, self.labels, earlier, median or GAMMA)
        found = beliefs(fit.logits(self.both, earlier), self.labels, fit.beta, fit.e)
        return np.asarray(found[np.arange(len(self.labels)), self.labels])


def checked_rounds(name: str, run: scratch.Run, n_seeds: int, train: bool) -> Iterator[Checked]:
    """The later rounds of all trials of a set."""
    context: StageContext | None = None
    for seed, wrong in itertools.product(range(FIRST_SEED, FIRST_SEED + n_seeds), (0.0, WRONG)):
        rounds = rounds_of(name, run, seed, wrong, train)
        if not rounds:
            continue
        if context is None:
            context = _context(name, run, seed)
            inputs = prepare_inputs(context)
            similarity = context.config.similarity
            graph = build_similarity_graph(inputs, context.snapshot.labels, context.snapshot.held_out, similarity)
            assert graph is not None
        truth = context.snapshot.labels
        for number in range(1, len(rounds)):
            labels = rounds[number].labels
            predict = predictor_of_clips(context, inputs, graph, labels)
            both = out_of_fold_logits(labels, 2 * scratch.N_CLASSES, predict, n_folds=FOLDS)
            rows = np.flatnonzero(np.isfinite(both).all(1))
            names, ids = rounds[number].class_names, rounds[number].item_ids
            earlier = earlier_log_probabilities(ids, labels, names, reversed(rounds[:number]))[rows]
            earlier = np.where(np.isfinite(earlier), earlier, 0.0)
            yield Checked(wrong, labels[rows] == truth[rows], labels[rows], both[rows], earlier)


def _context(name: str, run: scratch.Run, seed: int) -> StageContext:
    """The context of a round on the pool; its labels are the true classes."""
    question = scratch_tune.question(name, BICO, run, seed)
    home = run.out / "wrong_labels" / "rounds" / name
    data = open_study(question, home)
    pool = np.flatnonzero(~data.pool.test)
    return StageContext(
        snapshot=snapshot_with(data.pool, data.pool.truth, pool),
        config=question.config,
        read=data.read,
        cache=FolderRowCache(home / "cache"),
        runtime=Runtime.create(0, "cpu"),
        previous=Previous(),
    )


def table(found: dict[str, list[Checked]]) -> str:
    """Sums and means over seeds and rounds."""
    cells = []
    for name, rounds in found.items():
        for wrong, median in itertools.product((0.0, WRONG), (None, *MEDIANS)):
            own = [one for one in rounds if one.wrong == wrong]
            if not own:
                continue
            trusts = [one.trust(median) for one in own]
            losses = [-np.log(np.clip(np.where(one.right, trust, 1.0 - trust), 1e-3, 1.0)).mean()
                      for one, trust in zip(own, trusts, strict=True)]  # fmt: skip
            right = np.concatenate([one.right for one in own])
            doubted = np.concatenate(trusts) < SUSPECTED
            cells.append([
                name, str(len(own)), f"{100 * wrong:.0f} %",
                "pooled" if median is None else f"with earlier rounds, median of gamma {median}",
                f"{np.mean(losses):.3f}", f"{(doubted & ~right).sum()} of {(~right).sum()}",
                f"{(doubted & right).sum()} of {right.sum()}",
            ])  # fmt: skip
    header = ["set", "rounds", "wrong answers", "check", "log loss of the trust", "wrong labels suspected",
              "right labels suspected"]  # fmt: skip
    return page.table(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmark"), help="as for experiments.benchmark")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", choices=SETS, default=[], help="sets by name")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="write the table from the trials that are there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run = scratch.Run(given.data, given.out, "small")
    names = given.only or SETS
    print(table({name: list(checked_rounds(name, run, given.seeds, not given.report)) for name in names}))


if __name__ == "__main__":
    main()
