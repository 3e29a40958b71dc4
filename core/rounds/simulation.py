"""What a strategy buys, on data whose labels are known: the stages of `core.rounds.pipeline`, with an oracle as
annotator.

A trial is one strategy with one seed. All strategies of a seed start from the same items; round 0 trains on them, every
round chooses `batch` more, the oracle answers, and so on. A trial is a stream of `RoundRecord`s; given those of an
interrupted trial, it goes on after them.

What is the same for several trials is computed once: the model of the initial labels (`start_file`, one for each seed),
and, through the cache, prepared inputs, banks of views, and kernel features of items and of their views.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.config import RoundConfig, require
from core.errors import TrainingFailed
from core.learning.training import TrainedModel, load_model, save_model
from core.media.inputs import Inputs
from core.rounds import pipeline
from core.rounds.candidates import choose_candidates, choose_landmarks, fit_kernel, kernel_features
from core.rounds.context import Candidates, Featured, PoolPredictions, Previous, Work
from core.rounds.pipeline import Clock
from core.rounds.simulation_plan import LabeledPool, Plan, RoundRecord
from core.runtime import Runtime, seed_for
from core.similarity.graph import MAX_ITEMS, SimilarityGraph
from core.types import UNLABELED, MediaReader, PoolSnapshot, Report, RowCache, Selection, ignore


def initial_rows(pool: LabeledPool, plan: Plan, seed: int) -> NDArray[np.int64]:
    """Uniform pool rows with at least one of each class while there is room; the same for every strategy."""
    rng = np.random.default_rng(seed_for(seed, "initial labels"))
    order = rng.permutation(np.flatnonzero(~pool.test))
    if plan.missing_class:
        order = order[pool.truth[order] != pool.position(plan.missing_class)]
    require(plan.start <= len(order), f"{plan.start} initial labels were requested, but the pool has {len(order)}.")
    _, first_of_class = np.unique(pool.truth[order], return_index=True)
    first = order[np.sort(first_of_class)][: plan.start]
    rest = order[~np.isin(order, first)][: plan.start - len(first)]
    return np.concatenate([first, rest])


def thinned(pool: LabeledPool, plan: Plan, seed: int) -> LabeledPool:
    """The pool with `rare_class` cut down to `rare_share` of what then remains; the test items stay."""
    if not plan.rare_class:
        return pool
    rng = np.random.default_rng(seed_for(seed, "rare class"))
    rare = np.flatnonzero(~pool.test & (pool.truth == pool.position(plan.rare_class)))
    n_others = int((~pool.test).sum()) - len(rare)
    keep = max(1, round(n_others * plan.rare_share / (1 - plan.rare_share)))
    dropped = rng.permutation(rare)[keep:]
    mask = ~np.isin(np.arange(len(pool.hashes)), dropped)
    hashes = tuple(h for h, kept in zip(pool.hashes, mask, strict=True) if kept)
    return replace(pool, hashes=hashes, truth=pool.truth[mask], test=pool.test[mask])


def answers(pool: LabeledPool, plan: Plan, seed: int) -> NDArray[np.int64]:
    """(n,) what the oracle says for each item: the truth, or for `wrong_share` of them another class. An item's answer
    depends on its hash and the seed alone, so strategies that ask about the same item hear the same."""
    given = pool.truth.copy()
    if plan.wrong_share == 0 or len(pool.class_names) < 2:
        return given
    for row, name in enumerate(pool.hashes):
        digest = hashlib.sha256(f"{seed}:oracle:{name}".encode()).digest()
        if int.from_bytes(digest[:4], "little") / 2**32 < plan.wrong_share:
            shift = 1 + int.from_bytes(digest[4:8], "little") % (len(pool.class_names) - 1)
            given[row] = (given[row] + shift) % len(pool.class_names)
    return given


def snapshot_with(pool: LabeledPool, given: NDArray[np.int64], labeled: NDArray[np.int64]) -> PoolSnapshot:
    """The pool as a project would hold it after the oracle labeled the rows `labeled`."""
    labels = np.full(len(pool.hashes), UNLABELED, np.int64)
    labels[labeled] = given[labeled]
    return PoolSnapshot(
        kind=pool.kind,
        class_names=pool.class_names,
        item_ids=np.arange(len(pool.hashes), dtype=np.int64),
        hashes=pool.hashes,
        labels=labels,
        held_out=pool.test,
        held_out_labels=np.where(pool.test, pool.truth, UNLABELED),
        eligible=~pool.test & (labels == UNLABELED),
    )


class _Kept:
    """What the rounds of a trial have in common: the pool as inputs, who is like whom, and its kernel features."""

    def __init__(self) -> None:
        self.inputs: Inputs | None = None
        self._likeness: tuple[SimilarityGraph | None] | None = None
        self._rows: NDArray[np.int64] | None = None
        self._featured: Featured | None = None

    def prepared(self, work: Work) -> Inputs:
        self.inputs = self.inputs or pipeline.prepare(work)
        return self.inputs

    def likeness(self, work: Work, inputs: Inputs) -> SimilarityGraph | None:
        """Found once while all items take part; in larger pools the labels decide who does."""
        if self._likeness is None or int(inputs.readable.sum()) > MAX_ITEMS:
            self._likeness = (pipeline.listen(work, inputs),)
        return self._likeness[0]

    def featured(self, work: Work, inputs: Inputs, candidates: Candidates) -> Featured:
        rows = candidates.rows
        if self._featured is None or self._rows is None or not np.array_equal(rows, self._rows):
            before = self._featured
            kernel = before.kernel if before else fit_kernel(work, inputs, choose_landmarks(work, inputs))
            self._featured = Featured(features=kernel_features(work, inputs, kernel, rows), kernel=kernel)
            self._rows = rows
        return self._featured


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One strategy, one seed. `config.selection` names the strategy; its batch size is the plan's."""

    pool: LabeledPool
    plan: Plan
    config: RoundConfig
    seed: int
    read: MediaReader
    cache: RowCache
    runtime: Runtime
    folder: Path | None = None  # keeps the last models and checkpoints, so that an interrupted trial can go on
    start_file: Path | None = None  # the model of the initial labels: the same for all strategies of a seed

    def run(self, done: Sequence[RoundRecord] = (), report: Report = ignore) -> Iterator[RoundRecord]:
        """The records after `done`, one for each round, as they are known."""
        pool, given, labeled = self._begin()
        row_of = {name: row for row, name in enumerate(pool.hashes)}
        model = self._model_after(done)
        done = done if model is not None or not self._goes_on else ()
        kept = _Kept()
        for number in range(self.plan.rounds + 1):
            if number < len(done):
                record = done[number]
            else:
                work = self._work(snapshot_with(pool, given, labeled), model, report)
                record, model = self._round(number, work, pool, kept)
                yield record
            labeled = np.concatenate([labeled, np.array([row_of[name] for name in record.picks], np.int64)])

    def train_start(self, report: Report = ignore) -> None:
        """Leaves the model of the initial labels in `start_file`, for every strategy of this seed."""
        pool, given, labeled = self._begin()
        work = self._work(snapshot_with(pool, given, labeled), None, report)
        self._learn(0, work, pipeline.prepare(work), Clock())

    def fit_pool(self, report: Report = ignore) -> None:
        """Leaves the kernel features of the pool in the cache, for every trial on it."""
        pool, given, labeled = self._begin()
        work, kept = self._work(snapshot_with(pool, given, labeled), None, report), _Kept()
        inputs = kept.prepared(work)
        kept.featured(work, inputs, choose_candidates(work, inputs))

    def _begin(self) -> tuple[LabeledPool, NDArray[np.int64], NDArray[np.int64]]:
        """The pool, what the oracle says about each item, and the rows labeled at first."""
        pool = thinned(self.pool, self.plan, self.seed)
        return pool, answers(pool, self.plan, self.seed), initial_rows(pool, self.plan, self.seed)

    @property
    def _goes_on(self) -> bool:
        """Whether a round starts from the last round's model."""
        return self.plan.warm and pipeline.settled(self.config, self.runtime).training.warm_steps > 0

    def _model_after(self, done: Sequence[RoundRecord]) -> TrainedModel | None:
        """The model that the last of these rounds left."""
        kept = self.folder / f"{len(done) - 1}.safetensors" if self.folder is not None and done else None
        return load_model(kept, self.runtime) if kept is not None and kept.exists() and self._goes_on else None

    def _keep(self, number: int, model: TrainedModel) -> None:
        """The last two models: a record may not have been written down before an interruption."""
        if self.folder is not None and self._goes_on:
            save_model(model, self.folder / f"{number}.safetensors")
            (self.folder / f"{number - 2}.safetensors").unlink(missing_ok=True)

    def _round(self, number: int, work: Work, pool: LabeledPool, kept: _Kept) -> tuple[RoundRecord, TrainedModel]:
        """Train, judge, and choose the next batch unless this is the last round. The stages are those of a round."""
        clock = Clock()
        with clock("prepare"):
            inputs = kept.prepared(work)
        model = self._learn(number, work, inputs, clock)
        with clock("predict"):
            guesses = pipeline.settle(work, pipeline.guess(work, inputs, model), kept.likeness(work, inputs))
        selection: Selection | None = None
        if number < self.plan.rounds:
            with clock("features"):
                chosen = choose_candidates(work, inputs)
                featured = kept.featured(work, inputs, chosen)
            with clock("select"):
                selection = pipeline.choose(work, inputs, guesses, chosen, featured)
        self._keep(number, model)
        return self._record(number, pool, guesses, selection, clock, work), model

    def _learn(self, number: int, work: Work, inputs: Inputs, clock: Clock) -> TrainedModel:
        """The model of this round. That of the initial labels is trained once and then read; the seconds told are
        always those of its training."""
        shared = self.start_file if number == 0 else None
        if shared is not None and shared.exists():
            model = load_model(shared, self.runtime)
            clock.seconds["train"] = model.metrics["train_seconds"]
            return model
        with clock("train"):
            trained = pipeline.learn(work, inputs)
        if trained is None:
            raise TrainingFailed(pipeline.why_no_model(work, inputs) or "There is nothing to train on.")
        if shared is not None:
            timed = {**trained.metrics, "train_seconds": clock.seconds["train"]}
            save_model(replace(trained, metrics=timed), shared)
        return trained

    def _record(
        self,
        number: int,
        pool: LabeledPool,
        guesses: PoolPredictions,
        selection: Selection | None,
        clock: Clock,
        work: Work,
    ) -> RoundRecord:
        guessed = guesses.probabilities.argmax(1)
        picks = selection.item_ids if selection is not None else np.empty(0, np.int64)
        return RoundRecord(
            strategy=self.config.selection.strategy,
            seed=self.seed,
            round=number,
            n_labels=int(work.snapshot.labeled.sum()),
            accuracy=float((guessed[pool.test] == pool.truth[pool.test]).mean()),
            wrong_guesses=int((guessed[picks] != pool.truth[picks]).sum()),
            seconds={stage: round(seconds, 3) for stage, seconds in clock.seconds.items()},
            picks=tuple(pool.hashes[row] for row in picks),
            notes=selection.notes if selection is not None else (),
        )

    def _work(self, snapshot: PoolSnapshot, last: TrainedModel | None, report: Report) -> Work:
        config = pipeline.settled(self.config, self.runtime)
        config = replace(config, selection=replace(config.selection, batch_size=self.plan.batch))
        previous = Previous(
            item_ids=np.empty(0, np.int64),
            map_points=np.empty((0, 2), np.float32),
            class_names=snapshot.class_names,
            model=last if self._goes_on else None,
        )
        return Work(
            snapshot=snapshot,
            config=config,
            read=self.read,
            cache=self.cache,
            runtime=self.runtime,
            previous=previous,
            checkpoints=self.folder,
            report=report,
        )
