"""The story of one round, top to bottom: from the pool as it was to the next batch.

`run_round` is a pure function of the snapshot, the settings, the seed and what the previous round left. Each stage is a
function of its own, because a worker runs the same stages one by one and keeps what each leaves behind
(`app.rounds.steps`).

Without a model. Before the first label, while all labels are of one class, or when nothing labeled can be read, there
is nothing to train: the batch then covers the pool by the kernel features alone, and a note says so.

Large pools: what strategies see of them is the concern of `core.rounds.candidates`; predictions and the map cover all.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.acquisition import catalog, registry
from core.config import Preset, RoundConfig, preset
from core.errors import TrainingFailed
from core.learning.training import TrainedModel, nothing_to_learn, predict, train
from core.media.inputs import Inputs
from core.media.inputs import prepare as prepare_inputs
from core.rounds.candidates import choose_candidates, choose_landmarks, fit_kernel, kernel_features, selection_request
from core.rounds.context import Candidates, Featured, PoolPredictions, Previous, Work
from core.rounds.embedding_map import MapRequest, PreviousMap, embed
from core.runtime import Runtime
from core.similarity.graph import SimilarityGraph, build_similarity_graph
from core.similarity.propagation import propagate_labels
from core.types import UNLABELED, MediaReader, PoolSnapshot, Report, RoundResult, RowCache, Selection, ignore

PROJECTED = 64  # dimensions of the stand-in for embeddings before the first model


def run_round(  # noqa: PLR0913 - the boundary every caller knows
    snapshot: PoolSnapshot,
    config: RoundConfig,
    *,
    read: MediaReader,
    cache: RowCache,
    runtime: Runtime,
    previous: Previous | None = None,
    report: Report = ignore,
) -> RoundResult:
    """The whole round, in this process."""
    config = settled(config, runtime)
    work = Work(
        snapshot=snapshot, config=config, read=read, cache=cache, runtime=runtime, previous=previous, report=report
    )
    clock = Clock()
    with clock("prepare"):
        inputs = prepare(work)
    with clock("train"):
        model = learn(work, inputs)
    with clock("predict"):
        guesses = settle(work, guess(work, inputs, model), listen(work, inputs))
    with clock("features"):
        candidates = choose_candidates(work, inputs)
        kernel = fit_kernel(work, inputs, choose_landmarks(work, inputs))
        features = kernel_features(work, inputs, kernel, candidates.rows)
    with clock("select"):
        selection = choose(work, inputs, guesses, candidates, Featured(features=features, kernel=kernel))
    with clock("map"):
        map_points = draw_map(work, guesses, selection)
    metrics = measure(work, model, guesses) | {"seconds": clock.seconds}
    return RoundResult(
        selection=selection,
        probabilities=guesses.probabilities,
        embeddings=guesses.embeddings,
        map_points=map_points,
        metrics=metrics,
        notes=round_notes(work, inputs, model, guesses, candidates),
    )


def settled(config: RoundConfig, runtime: Runtime) -> RoundConfig:
    """`auto` becomes the preset for this device, once, before the first stage: strategy, media and seed stay."""
    if config.preset != "auto":
        return config
    named = preset("auto", runtime.device.type, config.seed)
    selection = dataclasses.replace(
        config.selection,
        n_views=named.selection.n_views,
        proxy=named.selection.proxy,
        uncertainty_power=named.selection.uncertainty_power,
    )
    name: Preset = "paper" if runtime.is_cuda else "laptop"
    return dataclasses.replace(
        config, preset=name, training=named.training, selection=selection, similarity=named.similarity
    )


def prepare(work: Work) -> Inputs:
    """Network inputs of all items, computed once per item."""
    return prepare_inputs(
        work.snapshot.hashes, work.read, work.snapshot.kind, work.config.media, work.cache, work.report
    )


def why_no_model(work: Work, inputs: Inputs) -> str | None:
    """The sentence that says why nothing can be learned yet, or None."""
    labels = np.where(inputs.readable, work.snapshot.labels, UNLABELED)
    return nothing_to_learn(labels, work.snapshot.n_classes)


def learn(work: Work, inputs: Inputs) -> TrainedModel | None:
    """The model of this round; None where there is nothing to learn from yet."""
    if why_no_model(work, inputs):
        return None
    snapshot = work.snapshot
    unknown = snapshot.held_out & (snapshot.held_out_labels == UNLABELED)
    known = np.flatnonzero(snapshot.held_out & ~unknown & inputs.readable)
    previous = work.previous
    return train(
        dataclasses.replace(inputs, readable=inputs.readable & ~unknown),  # no held-out item is ever trained on
        snapshot.labels,
        snapshot.n_classes,
        work.config.training,
        runtime=work.runtime,
        checkpoint_dir=work.checkpoints,
        warm_start=previous.model if previous is not None and fits(previous, work, inputs) else None,
        held_out=(known, snapshot.held_out_labels[known]),
        report=work.report,
    )


def fits(previous: Previous | None, work: Work, inputs: Inputs) -> bool:
    """Whether training can go on from the previous model: the same network, and no class that changed its meaning.

    With more or fewer classes than before, training keeps the layers and draws a new head.
    """
    if previous is None or previous.model is None:
        return False
    shape, now = previous.model.shape, work.snapshot.class_names
    same_network = shape.name == work.config.training.network and shape.channels == inputs.shape[2]
    return same_network and (previous.class_names == now or len(previous.class_names) != len(now))


def guess(
    work: Work, inputs: Inputs, model: TrainedModel | None, rows: NDArray[np.int64] | None = None
) -> PoolPredictions:
    """Pseudo-labels and embeddings of `rows` (all when None). Labels given by people replace the model's guess."""
    rows = np.arange(len(inputs)) if rows is None else rows
    if model is None:
        n_classes = max(work.snapshot.n_classes, 1)
        even = np.full((len(rows), n_classes), 1.0 / n_classes, np.float32)
        return PoolPredictions(
            probabilities=with_labels(even, work.snapshot, rows),
            embeddings=project(inputs, rows, work),
            has_model=False,
        )
    n_views = max(work.config.training.predict_views, catalog.entry(work.config.selection.strategy).prediction_views)
    found = predict(model, inputs, rows, runtime=work.runtime, n_views=n_views, report=work.report)
    broken = int((~np.isfinite(found.probabilities).all(1)).sum())
    if broken:
        raise TrainingFailed(f"The predictions are not finite numbers for {broken} of {len(rows)} items.")
    return PoolPredictions(
        probabilities=with_labels(found.probabilities, work.snapshot, rows),
        embeddings=found.embeddings,
        view_probabilities=found.view_probabilities,
    )


def listen(work: Work, inputs: Inputs) -> SimilarityGraph | None:
    """Who is like whom in the pool, held-out items included; None where the settings or the media know of nothing."""
    return build_similarity_graph(inputs, work.snapshot.labels, work.config.similarity, work.report)


def settle(work: Work, guesses: PoolPredictions, likeness: SimilarityGraph | None) -> PoolPredictions:
    """The guesses for the whole pool, made to agree with what is alike (`core.similarity.propagation`). Without a model
    or a likeness they stay as they are. Labels of held-out items are not in `snapshot.labels`, so no walk ever ends at
    one."""
    if likeness is None:
        return guesses
    if not guesses.has_model:
        return dataclasses.replace(guesses, likeness=likeness)
    before, reach = guesses.probabilities, work.config.similarity.reach
    after = propagate_labels(likeness, before, work.snapshot.labels, reach)
    n_changed = int((after.argmax(1) != before.argmax(1)).sum())
    return dataclasses.replace(guesses, probabilities=after, likeness=likeness, n_changed=n_changed)


def with_labels(
    probabilities: NDArray[np.float32], snapshot: PoolSnapshot, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """One-hot on labeled rows."""
    labels = snapshot.labels[rows]
    given = np.flatnonzero(labels != UNLABELED)
    probabilities[given] = 0.0
    probabilities[given, labels[given]] = 1.0
    return probabilities


def project(inputs: Inputs, rows: NDArray[np.int64], work: Work) -> NDArray[np.float32]:
    """(len(rows), PROJECTED) random projection of the inputs: distances without a model, for the first map."""
    size = int(np.prod(inputs.shape))
    axes = work.runtime.numpy_generator("projection").normal(size=(size, PROJECTED)).astype(np.float32)
    projected = np.empty((len(rows), PROJECTED), np.float32)
    for start in range(0, len(rows), 1024):
        block = rows[start : start + 1024]
        projected[start : start + 1024] = inputs.clean.take(block).reshape(len(block), size) @ axes / np.sqrt(size)
    return projected


def choose(
    work: Work, inputs: Inputs, guesses: PoolPredictions, candidates: Candidates, featured: Featured
) -> Selection:
    """The next batch: as many as asked for, or as can be chosen."""
    request, notes = selection_request(work, inputs, guesses, candidates, featured)
    if request is None:
        empty = np.empty(0, np.int64)
        return Selection(
            item_ids=empty, scores=empty.astype(np.float32), strategy=work.config.selection.strategy, notes=notes
        )
    selection = registry.select(request, work.config.selection, work.report)
    return dataclasses.replace(selection, notes=(*selection.notes, *notes))


def draw_map(work: Work, guesses: PoolPredictions, selection: Selection) -> NDArray[np.float32]:
    """(n, 2), starting from the last map."""
    snapshot, previous = work.snapshot, work.previous
    past = PreviousMap(item_ids=previous.item_ids, points=previous.map_points) if previous is not None else None
    request = MapRequest(
        item_ids=snapshot.item_ids,
        vectors=guesses.embeddings,
        keep=snapshot.labeled | np.isin(snapshot.item_ids, selection.item_ids),
        previous=past,
    )
    return embed(request, work.config.map, seed=work.runtime.seed_for("map"), report=work.report)


def measure(work: Work, model: TrainedModel | None, guesses: PoolPredictions) -> dict[str, Any]:
    """What the round learned, as plain numbers: held-out accuracy with its n, confusions, loss curves."""
    snapshot = work.snapshot
    known = np.flatnonzero(snapshot.held_out_labels != UNLABELED)
    metrics: dict[str, Any] = {
        "n_items": len(snapshot.item_ids),
        "n_labeled": int(snapshot.labeled.sum()),
        "n_held_out": len(known),
        "class_names": list(snapshot.class_names),
        "has_model": model is not None,
    }
    if model is None:
        return metrics
    metrics |= {"training": dict(model.metrics), "history": [dict(entry) for entry in model.history]}
    if len(known):
        guessed = np.asarray(guesses.probabilities[known]).argmax(1)
        truth = snapshot.held_out_labels[known]
        confusion = np.zeros((snapshot.n_classes, snapshot.n_classes), np.int64)  # rows: truth, columns: guess
        np.add.at(confusion, (truth, guessed), 1)
        metrics |= {"accuracy": float((guessed == truth).mean()), "confusion": confusion.tolist()}
    return metrics


def round_notes(
    work: Work, inputs: Inputs, model: TrainedModel | None, guesses: PoolPredictions, candidates: Candidates
) -> tuple[str, ...]:
    """What people should know about this round, beside what the strategy says itself."""
    told: tuple[str, ...] = model.notes if model is not None else inputs.notes
    if model is None and (reason := why_no_model(work, inputs)):
        told = (*told, f"{reason} Until then, picks cover the pool.")
    if guesses.n_changed:
        share = f"{guesses.n_changed:,} of {len(work.snapshot.item_ids):,}"
        told = (*told, f"{share} predictions were changed by label propagation.")
    return (*told, *candidates.notes)


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - began, 3)
