"""Labels of test items affect nothing but the reported accuracy: models, predictions, picks and maps are equal bit for
bit if these labels are shuffled or removed, for all presets, all strategies and both kinds of media; so are trials and
summaries."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from core.acquisition import catalog
from core.config import KernelConfig, MapConfig, MediaConfig, RoundConfig, preset
from core.media.inputs import Inputs
from core.rounds.approach.presets import resolve_preset
from core.rounds.context import StageContext
from core.rounds.outputs import Batch, MapPoints, Predictions, PropagatedLabels, RefinedModel, TrainingResult
from core.rounds.pipeline import final_training, round_result, run_timed
from core.rounds.simulation import Trial
from core.rounds.simulation_plan import LabeledPool, Plan
from core.rounds.stage import Outputs, needed
from core.rounds.stages import STAGES
from core.rounds.summary import SummaryConfig, View, summarize
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, MediaKind, PoolSnapshot
from tests.core.media.samples import tone, wav
from tests.round_pools import picture

pytestmark = pytest.mark.usefixtures("one_thread")

N, N_TEST = 84, 36  # at least 30 test labels, and 33 labels, so that the temperature is estimated from them
KINDS: tuple[MediaKind, ...] = ("audio", "image")
Media = dict[str, bytes]


def media_of(kind: MediaKind) -> tuple[tuple[str, ...], Media]:
    rng = np.random.default_rng(0)
    data = [
        picture(row % 3, row)
        if kind == "image"
        else wav(tone(300 * (1 + 2 * (row % 3)) * rng.uniform(0.9, 1.1), seconds=0.2))
        for row in range(N)
    ]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    return hashes, dict(zip(hashes, data, strict=True))


def variants() -> dict[str, np.ndarray]:
    """(N,) labels of the test items: the true ones, shuffled, partly removed, all of one class, and none."""
    test = np.arange(N) < N_TEST
    truth = np.where(test, np.arange(N) % 3, UNLABELED)
    shuffled = truth.copy()
    shuffled[test] = np.random.default_rng(1).permutation(truth[test])
    return {
        "true": truth,
        "shuffled": shuffled,
        "partly removed": np.where(np.arange(N) < 7, UNLABELED, truth),
        "of one class": np.where(test, 2, UNLABELED),
        "removed": np.full(N, UNLABELED),
    }


def snapshot(kind: MediaKind, hashes: tuple[str, ...], test_labels: np.ndarray) -> PoolSnapshot:
    test = np.arange(N) < N_TEST
    labels = np.where(~test & (np.arange(N) < N_TEST + 33), np.arange(N) % 3, UNLABELED)
    return PoolSnapshot(
        kind=kind,
        class_names=("one", "two", "three"),
        item_ids=np.arange(N) * 10 + 5,
        hashes=hashes,
        labels=labels,
        held_out=test,
        held_out_labels=test_labels,
        eligible=~test & (labels == UNLABELED),
    )


def reduced(name: str, strategy: str = "bico", steps: int = 2) -> RoundConfig:
    """A preset with its own method, proxy, views and graph, and as little computation as possible."""
    config = preset(name)  # type: ignore[arg-type]
    training = dataclasses.replace(
        config.training,
        network="resnet-small",
        steps=steps,
        epochs=0,
        warm_steps=min(config.training.warm_steps, 2),
        refine_steps=min(config.training.refine_steps, 2),
        labeled_batch=4,
        unlabeled_batch=4,
        bank_views=min(config.training.bank_views, 2),
        predict_views=min(config.training.predict_views, 2),
    )
    selection = dataclasses.replace(
        config.selection, strategy=strategy, batch_size=3, n_views=min(config.selection.n_views, 2)
    )
    return dataclasses.replace(
        config,
        media=MediaConfig(image_size=8, channels=3, seconds=0.25, patches=16),
        training=training,
        selection=selection,
        kernel=KernelConfig(network="fnn", n_landmarks=12),
        map=MapConfig(n_neighbors=500),
    )


def context_of(taken: PoolSnapshot, media: Media, config: RoundConfig, cache: MemoryRowCache) -> StageContext:
    runtime = Runtime.create(0, "cpu")
    return StageContext(
        snapshot=taken, config=resolve_preset(config, runtime), read=media.__getitem__, cache=cache, runtime=runtime
    )


def outputs_of(taken: PoolSnapshot, media: Media, config: RoundConfig, cache: MemoryRowCache) -> dict[str, Any]:
    """All outputs of a round, by name; and its metrics."""
    context = context_of(taken, media, config, cache)
    outputs = Outputs()
    seconds = run_timed(STAGES, context, outputs)
    result, model = round_result(context, outputs, seconds), final_training(outputs).model
    trained = outputs.get(TrainingResult).model
    assert model is not None and trained is not None
    is_refined = config.training.refine_steps > 0
    assert (model is not trained) == is_refined == ("refine" in seconds)
    labels, batch = outputs.get(PropagatedLabels), outputs.get(Batch)
    graph = labels.graph
    decided = {
        **{f"trained {name}": value.numpy() for name, value in trained.network.state_dict().items()},
        **{f"model {name}": value.numpy() for name, value in model.network.state_dict().items()},
        "temperature": np.array(model.temperature),
        "predictions": outputs.get(Predictions).probabilities,
        "embeddings": outputs.get(Predictions).embeddings,
        "propagated": labels.probabilities,
        "graph": graph.distances if graph is not None else np.empty(0),
        "picks": batch.selection.item_ids,
        "scores": batch.selection.scores,
        "reasons": np.array([str(reason) for reason in batch.selection.reasons]),
        "notes": np.array([*batch.selection.notes, *result.notes]),
        "map": outputs.get(MapPoints).points,
    }
    return {"decided": decided, "metrics": result.metrics, "model": model}


def assert_equal(first: dict[str, Any], other: dict[str, Any], which: str) -> None:
    assert first.keys() == other.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, other[name], err_msg=f"{name} with test labels {which}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["laptop", "paper", "smoke"])  # `auto` is one of the first two
def test_a_round_of_any_preset_does_not_depend_on_test_labels(kind, name):
    hashes, media = media_of(kind)
    cache = MemoryRowCache()
    found = {
        which: outputs_of(snapshot(kind, hashes, labels), media, reduced(name), cache)
        for which, labels in variants().items()
        if name == "laptop" or which in ("true", "shuffled", "removed")
    }
    for which, other in found.items():
        assert_equal(found["true"]["decided"], other["decided"], which)
    assert found["true"]["model"].calibration == ("off" if name == "paper" else "cross-validation")
    assert found["true"]["metrics"]["n_held_out"] == N_TEST and "accuracy" not in found["removed"]["metrics"]
    assert found["true"]["metrics"]["accuracy_measure"] == "inductive"
    if name == "laptop":  # only the report depends on the labels
        assert found["partly removed"]["metrics"]["n_held_out"] == N_TEST - 7
        assert found["true"]["metrics"]["confusion"] != found["of one class"]["metrics"]["confusion"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_picks_of_no_strategy_depend_on_test_labels(kind):
    """Inputs, model and graph of a variant are computed once; every strategy predicts, propagates and selects."""
    hashes, media = media_of(kind)
    cache, chosen = MemoryRowCache(), {}
    for which in ("true", "shuffled", "removed"):
        taken, before = snapshot(kind, hashes, variants()[which]), Outputs()
        run_timed(needed(STAGES, PropagatedLabels), context_of(taken, media, reduced("laptop"), cache), before)
        for entry in catalog.ENTRIES:
            outputs = Outputs()
            outputs.add(Inputs, before.get(Inputs))
            outputs.add(TrainingResult, before.get(TrainingResult))
            outputs.add(RefinedModel, before.find(RefinedModel))
            context = context_of(taken, media, reduced("laptop", entry.name), cache)
            context = dataclasses.replace(context, graph=before.get(PropagatedLabels).graph)
            run_timed(needed(STAGES, Batch), context, outputs)
            chosen[which, entry.name] = outputs.get(Batch).selection
    for (which, name), selection in chosen.items():
        first = chosen["true", name]
        assert len(first.item_ids) == 3
        np.testing.assert_array_equal(first.item_ids, selection.item_ids, err_msg=f"{name}, {which}")
        np.testing.assert_array_equal(first.scores, selection.scores, err_msg=f"{name}, {which}")
        assert (first.reasons, first.notes) == (selection.reasons, selection.notes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_simulated_trial_does_not_depend_on_test_labels(kind):
    hashes, media = media_of(kind)
    test, found = np.arange(N) < N_TEST, []
    for shift in (0, 1):
        truth = np.where(test, (np.arange(N) + shift) % 3, np.arange(N) % 3)
        pool = LabeledPool(kind=kind, class_names=("one", "two", "three"), hashes=hashes, truth=truth, test=test)
        trial = Trial(
            pool=pool,
            plan=Plan(start=32, batch=3, rounds=2, wrong_share=0.1),
            config=reduced("laptop"),
            seed=0,
            read=media.__getitem__,
            cache=MemoryRowCache(),
            runtime=Runtime.create(0, "cpu"),
        )
        found.append(list(trial.run()))
    for first, other in zip(*found, strict=True):
        assert first.picks == other.picks and first.wrong_guesses == other.wrong_guesses
        assert first.notes == other.notes and first.measure == "inductive"
        assert (first.accuracy_with_propagation is not None) == (kind == "audio")
    assert any(first.accuracy != other.accuracy for first, other in zip(*found, strict=True))


@pytest.mark.slow
def test_a_summary_does_not_depend_on_test_labels():
    """Another number of classes among the test labels, none of them, and no test item at all."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 3
    view = View(name="kernel", labeled=rng.normal(size=(40, 6)) + labels[:, None], test=rng.normal(size=(12, 6)))
    config = SummaryConfig(size=8, seed=0)
    first = summarize([view], labels, np.arange(12) % 3, config)
    for test_labels in (np.full(12, 4), (np.arange(12) + 1) % 3):
        other = summarize([view], labels, test_labels, config)
        np.testing.assert_array_equal(first.rows, other.rows)
        np.testing.assert_array_equal(first.weights, other.weights)
    alone = summarize([dataclasses.replace(view, test=np.empty((0, 6)))], labels, np.empty(0, np.int64), config)
    np.testing.assert_array_equal(first.rows, alone.rows)
    np.testing.assert_array_equal(first.weights, alone.weights)
    assert alone.accuracies == () and len(first.accuracies) == 1
