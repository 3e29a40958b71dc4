"""What a strategy buys, on data whose labels are known: the stages of `core.round`, with an oracle as annotator.

A trial is one strategy with one seed. All strategies of a seed start from the same items; round 0 trains on them, every
round chooses `batch` more, the oracle answers, and so on. A trial is a stream of `RoundRecord`s; given those of an
interrupted trial, it goes on after them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core import round as stages
from core.candidates import choose_candidates, choose_landmarks, fit_kernel, kernel_features
from core.config import RoundConfig, require
from core.errors import InvalidInput, TrainingFailed
from core.learning.training import TrainedModel, load_model, save_model
from core.round import Clock
from core.runtime import Runtime, seed_for
from core.types import UNLABELED, MediaKind, MediaReader, PoolSnapshot, Report, RowCache, Selection, ignore
from core.work import Featured, Previous, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledPool:
    """A data set with known answers: the pool to choose from and the test items to judge by."""

    kind: MediaKind
    class_names: tuple[str, ...]
    hashes: tuple[str, ...]  # (n,)
    truth: NDArray[np.int64]  # (n,) class positions
    test: NDArray[np.bool_]  # (n,)

    def __post_init__(self) -> None:
        n = len(self.hashes)
        if len(self.truth) != n or len(self.test) != n:
            raise InvalidInput(f"{n} items come with {len(self.truth)} labels and {len(self.test)} split marks.")
        if not self.test.any() or self.test.all():
            raise InvalidInput("A simulation needs a pool and a test split; mark test items with split=test.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a trial goes, and how hard the oracle makes it."""

    start: int = 10
    batch: int = 10
    rounds: int = 6
    wrong_share: float = 0.0  # share of answers that are wrong
    missing_class: int | None = None  # class position that has no initial label
    rare_class: int | None = None  # class position thinned out in the pool ...
    rare_share: float = 0.02  # ... to this share of it
    warm: bool = True  # each round may start from the last round's model, where the preset says so

    def __post_init__(self) -> None:
        require(self.start >= 0, f"A start of {self.start} labels makes no sense; use 0 or more.")
        require(self.batch >= 1, f"The batch is {self.batch}; use at least 1.")
        require(self.rounds >= 0, f"{self.rounds} rounds were asked for; use 0 or more.")
        require(0 <= self.wrong_share < 1, f"The share of wrong answers is {self.wrong_share}; use 0 to below 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One trained model and what it chose next."""

    strategy: str
    seed: int
    round: int
    n_labels: int
    accuracy: float  # on the test items
    wrong_guesses: int  # picks whose pseudo-label was wrong
    seconds: dict[str, float] = field(default_factory=dict)  # per stage
    picks: tuple[str, ...] = ()  # hashes in the order chosen; empty after the last round
    notes: tuple[str, ...] = ()


def initial_rows(pool: LabeledPool, plan: Plan, seed: int) -> NDArray[np.int64]:
    """Uniform pool rows with at least one of each class while there is room; the same for every strategy."""
    rng = np.random.default_rng(seed_for(seed, "initial labels"))
    order = rng.permutation(np.flatnonzero(~pool.test))
    order = order[pool.truth[order] != plan.missing_class] if plan.missing_class is not None else order
    require(plan.start <= len(order), f"{plan.start} initial labels were asked for, but the pool has {len(order)}.")
    _, first_of_class = np.unique(pool.truth[order], return_index=True)
    first = order[np.sort(first_of_class)][: plan.start]
    rest = order[~np.isin(order, first)][: plan.start - len(first)]
    return np.concatenate([first, rest])


def thinned(pool: LabeledPool, plan: Plan, seed: int) -> LabeledPool:
    """The pool with `rare_class` cut down to `rare_share` of what then remains; the test items stay."""
    if plan.rare_class is None:
        return pool
    rng = np.random.default_rng(seed_for(seed, "rare class"))
    rare = np.flatnonzero(~pool.test & (pool.truth == plan.rare_class))
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
    model_file: Path | None = None  # the last model, so that an interrupted trial can go on from it

    def run(self, done: Sequence[RoundRecord] = (), report: Report = ignore) -> Iterator[RoundRecord]:
        """The records after `done`, one for each round, as they are known."""
        pool = thinned(self.pool, self.plan, self.seed)
        given = answers(pool, self.plan, self.seed)
        row_of = {name: row for row, name in enumerate(pool.hashes)}
        labeled = initial_rows(pool, self.plan, self.seed)
        model = self._last_model() if done else None
        done = done if model is not None or not self._goes_on else ()
        for number in range(self.plan.rounds + 1):
            if number < len(done):
                record = done[number]
            else:
                snapshot = snapshot_with(pool, given, labeled)
                record, model = self._round(number, snapshot, pool, model, report)
                yield record
            labeled = np.concatenate([labeled, np.array([row_of[name] for name in record.picks], np.int64)])

    @property
    def _goes_on(self) -> bool:
        """Whether a round starts from the last round's model."""
        return self.plan.warm and stages.settled(self.config, self.runtime).training.warm_steps > 0

    def _last_model(self) -> TrainedModel | None:
        found = self.model_file is not None and self.model_file.exists() and self._goes_on
        return load_model(self.model_file, self.runtime) if found and self.model_file is not None else None

    def _round(
        self, number: int, snapshot: PoolSnapshot, pool: LabeledPool, last: TrainedModel | None, report: Report
    ) -> tuple[RoundRecord, TrainedModel]:
        """Train, judge, and choose the next batch unless this is the last round. The stages are those of a round."""
        clock, work = Clock(), self._work(snapshot, last, report)
        with clock("prepare"):
            inputs = stages.prepare(work)
        with clock("train"):
            model = stages.learn(work, inputs)
        if model is None:
            raise TrainingFailed(stages.why_no_model(work, inputs) or "There is nothing to learn from.")
        with clock("predict"):
            guesses = stages.guess(work, inputs, model)
        selection: Selection | None = None
        if number < self.plan.rounds:
            with clock("features"):
                chosen = choose_candidates(work, inputs)
                kernel = fit_kernel(work, inputs, choose_landmarks(work, inputs))
                features = kernel_features(work, inputs, kernel, chosen.rows)
            with clock("select"):
                selection = stages.choose(work, inputs, guesses, chosen, Featured(features=features, kernel=kernel))
        if self.model_file is not None and self._goes_on:
            save_model(model, self.model_file)
        guessed = guesses.probabilities.argmax(1)
        picks = selection.item_ids if selection is not None else np.empty(0, np.int64)
        record = RoundRecord(
            strategy=self.config.selection.strategy,
            seed=self.seed,
            round=number,
            n_labels=int(snapshot.labeled.sum()),
            accuracy=float((guessed[pool.test] == pool.truth[pool.test]).mean()),
            wrong_guesses=int((guessed[picks] != pool.truth[picks]).sum()),
            seconds={stage: round(seconds, 3) for stage, seconds in clock.seconds.items()},
            picks=tuple(pool.hashes[row] for row in picks),
            notes=selection.notes if selection is not None else (),
        )
        return record, model

    def _work(self, snapshot: PoolSnapshot, last: TrainedModel | None, report: Report) -> Work:
        config = stages.settled(self.config, self.runtime)
        config = replace(config, selection=replace(config.selection, batch_size=self.plan.batch))
        empty = Previous(
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
            previous=empty,
            report=report,
        )
