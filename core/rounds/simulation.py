"""Simulated annotation on data whose labels are known: the stages of `core.rounds.stages`, with an oracle as annotator.

A trial is one strategy with one seed. All strategies of a seed start from the same items. Round 0 trains on them, every
round chooses `batch` more, the oracle labels these, and so on. A trial is a stream of `RoundRecord`s; given those of an
interrupted trial, it continues after them.

Results that several trials share are computed once: the model of the initial labels (`start_file`, one for each seed)
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
from core.encoders.folders import Encoder
from core.errors import TrainingFailed
from core.labels.earlier_rounds import EarlierRounds
from core.learning.training import TrainedModel, load_model, save_model
from core.media.inputs import Inputs
from core.rounds.approach.deciding import apply_decision
from core.rounds.approach.evidence import PastRound
from core.rounds.approach.past_files import load_past, save_past
from core.rounds.approach.presets import chooses_approach, resolve_at_start, resolve_preset
from core.rounds.candidates import choose_candidates
from core.rounds.context import Landmarks, Previous, StageContext
from core.rounds.outputs import (
    Approach,
    Batch,
    BothPredictions,
    CandidateFeatures,
    EncodedFeatures,
    PropagatedLabels,
    TrainingResult,
)
from core.rounds.pipeline import final_training, held_out_results, run_timed
from core.rounds.simulation_plan import LabeledPool, Plan, RoundRecord
from core.rounds.stage import Outputs, needed
from core.rounds.stages import PREPARE, STAGES
from core.runtime import Runtime, seed_for
from core.similarity.graph import MAX_ITEMS, NewItems, SimilarityGraph
from core.types import UNLABELED, MediaReader, PoolSnapshot, Report, RowCache, ignore


def initial_rows(pool: LabeledPool, plan: Plan, seed: int) -> NDArray[np.int64]:
    """Uniformly drawn pool rows, with at least one of each class if there is room; the same for every strategy."""
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
    """The pool with `rare_class` reduced to the share `rare_share` of the remaining pool; test items are kept."""
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


def answers(pool: LabeledPool, plan: Plan, seed: int, look: int = 0) -> NDArray[np.int64]:
    """(n,) the oracle's label of each item: the known label or, for a share `wrong_share` of the items, another class.
    It depends on the item's hash, the seed and the number of earlier answers for the item (`look`), so all strategies
    get the same first label, and a second look is an independent draw."""
    given = pool.truth.copy()
    if plan.wrong_share == 0 or len(pool.class_names) < 2:
        return given
    again = f":look {look}" if look else ""
    for row, name in enumerate(pool.hashes):
        digest = hashlib.sha256(f"{seed}:oracle:{name}{again}".encode()).digest()
        if int.from_bytes(digest[:4], "little") / 2**32 < plan.wrong_share:
            shift = 1 + int.from_bytes(digest[4:8], "little") % (len(pool.class_names) - 1)
            given[row] = (given[row] + shift) % len(pool.class_names)
    return given


def snapshot_with(pool: LabeledPool, given: NDArray[np.int64], labeled: NDArray[np.int64]) -> PoolSnapshot:
    """The snapshot of a project in which the rows `labeled` have the labels `given` (n,)."""
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


class Oracle:
    """The labels of a simulated annotator: the newest label of an item counts; two equal ones confirm each other."""

    def __init__(self, pool: LabeledPool, plan: Plan, seed: int) -> None:
        self.pool, self.plan, self.seed = pool, plan, seed
        self.labels = np.full(len(pool.hashes), UNLABELED, np.int64)
        self.confirmed = np.zeros(len(pool.hashes), np.bool_)
        self._answers: list[NDArray[np.int64]] = []
        self._looks = np.zeros(len(pool.hashes), np.int64)

    def label(self, rows: NDArray[np.int64]) -> None:
        """Label these rows; rows that have a label get another one."""
        for row in rows.tolist():
            look = int(self._looks[row])
            while len(self._answers) <= look:
                self._answers.append(answers(self.pool, self.plan, self.seed, len(self._answers)))
            answer = self._answers[look][row]
            self.confirmed[row] = look > 0 and answer == self.labels[row]
            self.labels[row] = answer
            self._looks[row] += 1

    def snapshot(self) -> PoolSnapshot:
        """The snapshot of a project with the present labels."""
        given = np.flatnonzero(self.labels != UNLABELED)
        return replace(snapshot_with(self.pool, self.labels, given), confirmed=self.confirmed.copy())


class _Kept:
    """The outputs that the rounds of a trial with the same approach share: the pool as inputs, its similarity graph,
    and its kernel features."""

    def __init__(self) -> None:
        self.inputs: Inputs | None = None
        self.graph: SimilarityGraph | None = None
        self.test_items: NewItems | None = None
        self._rows: NDArray[np.int64] | None = None
        self._features: CandidateFeatures | None = None

    def landmarks(self) -> Landmarks | None:
        return self._features.fitted.landmarks if self._features is not None else None

    def begin(self, context: StageContext, outputs: Outputs) -> None:
        """Add the outputs that are the same as in earlier rounds."""
        if self.inputs is None:
            return
        outputs.add(Inputs, self.inputs)
        rows = choose_candidates(context, self.inputs).rows
        if self._features is not None and self._rows is not None and np.array_equal(rows, self._rows):
            outputs.add(CandidateFeatures, self._features)

    def keep(self, context: StageContext, outputs: Outputs) -> None:
        """Keep inputs, features, and the graph if it holds all items; in larger pools it depends on the labels."""
        self.inputs = outputs.get(Inputs)
        if outputs.has(PropagatedLabels) and int(self.inputs.readable.sum()) <= MAX_ITEMS:
            self.graph = outputs.get(PropagatedLabels).graph
            self.test_items = outputs.get(PropagatedLabels).test_items
        found = outputs.find(CandidateFeatures) if outputs.has(CandidateFeatures) else None
        if found is not None and found is not self._features:
            self._features, self._rows = found, choose_candidates(context, self.inputs).rows


class _State:
    """The state of a trial between rounds."""

    def __init__(self, folder: Path | None = None) -> None:
        self.encoded: EncodedFeatures | None = None
        self.past: list[PastRound] = []  # of the preset `auto`
        self.earlier = EarlierRounds(folder)
        self._kept = {True: _Kept(), False: _Kept()}

    def of(self, context: StageContext) -> _Kept:
        """The shared outputs of rounds with an encoder, or of those without."""
        return self._kept[context.encoder is not None]

    def landmarks(self) -> Landmarks | None:
        return self._kept[False].landmarks()


def approach_note(outputs: Outputs) -> tuple[str, ...]:
    found = outputs.find(Approach) if outputs.has(Approach) else None
    return (found.note,) if found is not None else ()


def past_round(context: StageContext, outputs: Outputs) -> PastRound:
    """A round of the preset `auto`, in the form that later rounds read."""
    snapshot, both = context.snapshot, outputs.find(BothPredictions)
    return PastRound(
        n_labels=int(snapshot.labeled.sum()),
        encoder=context.encoding.identity if context.encoding is not None else "",
        uses_encoder=context.encoder is not None,
        class_names=snapshot.class_names,
        item_ids=snapshot.item_ids if both is not None else None,
        classes=both.classes if both is not None else None,
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
    folder: Path | None = None  # keeps the last models and checkpoints, so that an interrupted trial can continue
    start_file: Path | None = None  # the model of the initial labels: the same for all strategies of a seed
    encoder: Encoder | None = None  # None: a network is trained from scratch

    def run(self, done: Sequence[RoundRecord] = (), report: Report = ignore) -> Iterator[RoundRecord]:
        """The records after `done`, one for each round, as soon as they are known."""
        pool, oracle = self._begin()
        row_of = {name: row for row, name in enumerate(pool.hashes)}
        model = self._model_after(done)
        done = done if model is not None or not self._is_warm else ()
        state = _State(self.folder)
        state.past = self._past_of(done)
        done = done if not chooses_approach(self.config) or len(state.past) == len(done) else ()
        done = done if not self._reads_earlier or state.earlier.restore(len(done)) else ()
        state.past = state.past[: len(done)]
        for number in range(self.plan.rounds + 1):
            if number < len(done):
                record = done[number]
            else:
                context = self._context(oracle.snapshot(), model, report, state)
                record, model = self._round(number, context, pool, state)
                yield record
            oracle.label(np.array([row_of[name] for name in record.picks], np.int64))

    def train_start(self, report: Report = ignore) -> None:
        """Train the model of the initial labels and store it in `start_file`, for every strategy of this seed."""
        _, oracle = self._begin()
        context, outputs = self._context(oracle.snapshot(), None, report, _State()), Outputs()
        run_timed(needed(STAGES, Approach), context, outputs)
        context = apply_decision(context, outputs.find(Approach))
        self._train(0, context, outputs, {})
        if context.rival is not None and self.start_file is not None:
            self._compare(0, context, outputs)

    def fit_pool(self, report: Report = ignore) -> None:
        """Compute the kernel features of the pool and cache them, for every trial that reads them."""
        _, oracle = self._begin()
        context = self._context(oracle.snapshot(), None, report, _State())
        wanted = EncodedFeatures if chooses_approach(self.config) else CandidateFeatures
        run_timed(needed(STAGES, wanted), context, Outputs())

    def _begin(self) -> tuple[LabeledPool, Oracle]:
        """The pool, and the oracle after the first labels."""
        pool = thinned(self.pool, self.plan, self.seed)
        oracle = Oracle(pool, self.plan, self.seed)
        oracle.label(initial_rows(pool, self.plan, self.seed))
        return pool, oracle

    @property
    def _is_warm(self) -> bool:
        """Whether a round starts from the last round's model."""
        return self.plan.warm and resolve_preset(self.config, self.runtime).training.warm_steps > 0

    @property
    def _reads_earlier(self) -> bool:
        """Whether the check of labels reads predictions of earlier rounds: that of clips without an encoder does."""
        without_encoder = self.encoder is None or chooses_approach(self.config)
        wanted = self.config.labels.weigh and self.config.labels.earlier_rounds
        return wanted and self.pool.kind == "audio" and without_encoder

    def _model_after(self, done: Sequence[RoundRecord]) -> TrainedModel | None:
        """The model of the last of these rounds."""
        kept = self.folder / f"{len(done) - 1}.safetensors" if self.folder is not None and done else None
        return load_model(kept, self.runtime) if kept is not None and kept.exists() and self._is_warm else None

    def _keep(self, number: int, model: TrainedModel) -> None:
        """Store the model, and keep the last two: an interruption may come before the record is stored."""
        if self.folder is not None and self._is_warm:
            save_model(model, self.folder / f"{number}.safetensors")
            (self.folder / f"{number - 2}.safetensors").unlink(missing_ok=True)

    def _round(
        self, number: int, context: StageContext, pool: LabeledPool, state: _State
    ) -> tuple[RoundRecord, TrainedModel]:
        """Train, measure, and choose the next batch unless this is the last round."""
        outputs = Outputs()
        if state.encoded is not None:
            outputs.add(EncodedFeatures, state.encoded)
        began = run_timed(needed(STAGES, Approach), context, outputs)
        context = apply_decision(context, outputs.find(Approach))
        kept = state.of(context)
        context = replace(context, graph=kept.graph, test_items=kept.test_items)
        kept.begin(context, outputs)
        seconds = {PREPARE.name: 0.0} | began
        self._train(number, context, outputs, seconds)
        wanted = (PropagatedLabels, Batch) if number < self.plan.rounds else (PropagatedLabels,)
        seconds |= run_timed(needed(STAGES, *wanted), context, outputs)
        kept.keep(context, outputs)
        model = final_training(outputs).model
        assert model is not None
        state.encoded = outputs.find(EncodedFeatures)
        if outputs.find(Approach) is not None:
            seconds |= self._compare(number, context, outputs)
            state.past.append(past_round(context, outputs))
            if self.folder is not None:
                save_past(state.past[-1], self.folder / f"{number}.past.npz")
        if self._reads_earlier:
            state.earlier.add(context.snapshot, outputs.get(PropagatedLabels).probabilities)
        self._keep(number, model)
        return self._record(number, pool, context, outputs, seconds), model

    def _train(self, number: int, context: StageContext, outputs: Outputs, seconds: dict[str, float]) -> None:
        """Add the trained model of this round to `outputs`. The model of the initial labels is trained once and read
        after that; `seconds` always gets the duration of its training."""
        shared = self.start_file if number == 0 else None
        model = load_model(shared, self.runtime) if shared is not None and shared.exists() else None
        if model is not None and model.calibration:  # the temperature of models without it was set on test labels
            seconds["train"] = model.metrics["train_seconds"]
            outputs.add(TrainingResult, TrainingResult(model=model))
            return
        seconds |= run_timed(needed(STAGES, TrainingResult), context, outputs)
        result = outputs.get(TrainingResult)
        if result.model is None:
            raise TrainingFailed(result.why_no_model)
        if shared is not None:
            timed = {**result.model.metrics, "train_seconds": seconds["train"]}
            save_model(replace(result.model, metrics=timed), shared)

    def _record(
        self, number: int, pool: LabeledPool, context: StageContext, outputs: Outputs, seconds: dict[str, float]
    ) -> RoundRecord:
        labels = outputs.get(PropagatedLabels)
        predicted = labels.probabilities.argmax(1)
        model = final_training(outputs).model
        assert model is not None
        measured = held_out_results(context, outputs.get(Inputs), model, labels)
        selection = outputs.get(Batch).selection if outputs.has(Batch) else None
        picks = selection.item_ids if selection is not None else np.empty(0, np.int64)
        return RoundRecord(
            strategy=self.config.selection.strategy,
            seed=self.seed,
            round=number,
            n_labels=int(context.snapshot.labeled.sum()),
            accuracy=measured["accuracy"],
            accuracy_with_propagation=measured.get("accuracy_with_propagation"),
            wrong_guesses=int((predicted[picks] != pool.truth[picks]).sum()),
            seconds={stage: round(taken, 3) for stage, taken in seconds.items()},
            picks=tuple(pool.hashes[row] for row in picks),
            notes=(*approach_note(outputs), *(selection.notes if selection is not None else ())),
        )

    def _compare(self, number: int, context: StageContext, outputs: Outputs) -> dict[str, float]:
        """In rounds that compare both approaches, train the other one and add it to `outputs`. That of the initial
        labels is trained once and read after that."""
        shared = self.start_file.with_suffix(".past.npz") if number == 0 and self.start_file is not None else None
        if shared is not None and shared.exists() and context.rival is not None:
            classes = load_past(shared).classes
            outputs.add(BothPredictions, BothPredictions(classes=classes) if classes is not None else None)
            return {}
        seconds = run_timed(needed(STAGES, BothPredictions), context, outputs)
        if shared is not None and outputs.find(BothPredictions) is not None:
            save_past(past_round(context, outputs), shared)
        return seconds

    def _past_of(self, done: Sequence[RoundRecord]) -> list[PastRound]:
        """The earlier rounds that are stored in the folder."""
        files = [self.folder / f"{number}.past.npz" for number in range(len(done))] if self.folder is not None else []
        return [load_past(file) for file in files if file.exists()]

    def _context(
        self, snapshot: PoolSnapshot, last: TrainedModel | None, report: Report, state: _State
    ) -> StageContext:
        config = resolve_at_start(self.config, self.runtime)
        config = replace(config, selection=replace(config.selection, batch_size=self.plan.batch))
        model = last if self._is_warm else None
        return StageContext(
            snapshot=snapshot,
            config=config,
            read=self.read,
            cache=self.cache,
            runtime=self.runtime,
            previous=Previous(
                class_names=snapshot.class_names,
                load_model=lambda: model,
                load_landmarks=state.landmarks,
                load_past=lambda: tuple(state.past),
                load_predictions=state.earlier.newest_first,
            ),
            encoder=self.encoder,
            checkpoints=self.folder,
            explain=False,
            report=report,
        )
