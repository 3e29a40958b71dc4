"""One round as a pure function: its guarantees with many labels, few labels and none."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from core.config import RoundConfig
from core.errors import Cancelled, TrainingFailed, WinnowError
from core.rounds import stages
from core.rounds.approach.presets import resolve_preset
from core.rounds.context import Previous
from core.rounds.embedding_map import PreviousMap
from core.rounds.pipeline import run_round
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import Progress
from tests.app.worker_processes import quick_config
from tests.core.rounds.small_rounds import CLASSES, MANY, pool, run
from tests.round_pools import picture

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_round_returns_everything_that_a_screen_shows():
    snapshot, media = pool(MANY, held_out=9)
    seen: list[str] = []
    result = run(snapshot, media, report=lambda progress: seen.append(progress.stage))
    assert len(result.selection.item_ids) == 4 == len(result.selection.reasons)
    assert set(result.selection.item_ids) <= set(snapshot.item_ids[snapshot.eligible])
    assert result.probabilities.shape == (40, 3) and np.allclose(result.probabilities.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(result.probabilities[9:18].argmax(1), [row % 3 for row in range(9, 18)])
    assert result.probabilities[9:18].max(1).min() == 1.0  # the human label on labeled rows
    assert result.map_points.shape == (40, 2) and len(result.embeddings) == 40
    assert np.sum(result.metrics["confusion"]) == result.metrics["n_held_out"] == 9
    assert 0 <= result.metrics["accuracy"] <= 1
    skipped = {"encode", "decide", "check", "refine", "rival"}
    assert set(result.metrics["seconds"]) == {stage.name for stage in stages.STAGES} - skipped
    assert list(dict.fromkeys(s for s in seen if s in ("prepare", "train", "predict", "select"))) == [
        "prepare",
        "train",
        "predict",
        "select",
    ]


def test_the_same_seed_and_snapshot_give_the_same_round_and_another_seed_another():
    """Probabilities, picks and map are compared bit for bit."""
    snapshot, media = pool(MANY)
    first, again = run(snapshot, media), run(snapshot, media)
    np.testing.assert_array_equal(first.selection.item_ids, again.selection.item_ids)
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    np.testing.assert_array_equal(first.map_points, again.map_points)
    other = run_round(
        snapshot, quick_config(), read=media.__getitem__, cache=MemoryRowCache(), runtime=Runtime.create(1, "cpu")
    )
    assert not np.array_equal(first.probabilities, other.probabilities)


@pytest.mark.slow
def test_one_thread_or_two_give_the_same_batch():
    """Probabilities agree to 1e-4 (sums are taken in another order), picks are identical."""
    snapshot, media = pool(MANY, n=24)
    config = quick_config()
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=3))
    results = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        results.append(run(snapshot, media, config))
    np.testing.assert_allclose(results[0].probabilities, results[1].probabilities, atol=1e-4)
    np.testing.assert_array_equal(results[0].selection.item_ids, results[1].selection.item_ids)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({}, "No item is labeled yet"),
        ({3: 1}, "All 1 labels are of one class"),
        ({3: 1, 4: 1, 5: 1}, "All 3 labels are of one class"),
    ],
)
def test_without_enough_labels_the_batch_covers_the_pool_and_a_note_says_why(labels, says):
    """No label, one label, one class."""
    snapshot, media = pool(labels)
    result = run(snapshot, media)
    assert len(set(result.selection.item_ids)) == 4
    assert not set(result.selection.item_ids) & set(snapshot.item_ids[snapshot.labeled])
    assert any(says in note for note in result.notes)
    assert result.metrics["has_model"] is False and "accuracy" not in result.metrics
    kinds = (result.selection.item_ids // 10) % 3
    assert len(set(kinds.tolist())) >= 2  # the picks are spread over the pool
    assert np.isfinite(result.map_points).all()


def test_a_class_with_a_single_example_is_learned_and_mentioned():
    """The round's notes mention it."""
    snapshot, media = pool({0: 0, 3: 0, 1: 1})
    result = run(snapshot, media)
    assert result.metrics["has_model"]
    assert any("a single label" in note for note in result.notes)
    assert any("no label yet" in note for note in result.notes)


def test_a_fully_labeled_pool_trains_and_chooses_nothing():
    """A pool without unlabeled items is not an error."""
    snapshot, media = pool({row: row % 3 for row in range(12)}, n=12)
    result = run(snapshot, media)
    assert len(result.selection.item_ids) == 0
    assert result.selection.notes == ("Nothing was picked: none of the 12 items is unlabeled.",)


def test_a_pool_smaller_than_the_batch_gives_what_it_has():
    """Fewer picks than the batch size, and no error."""
    snapshot, media = pool({0: 0, 1: 1, 2: 2}, n=5)
    result = run(snapshot, media)
    assert sorted(result.selection.item_ids) == [35, 45]
    assert "Asked for 4 items; only 2 can be picked." in result.selection.notes


def test_unreadable_items_are_left_out_and_counted():
    snapshot, media = pool(MANY)
    broken = [snapshot.hashes[row] for row in (0, 9, 30)]
    for name in broken:
        media[name] = b"no picture"
    result = run(snapshot, media)
    assert not {5, 95, 305} & set(result.selection.item_ids)
    assert any("3" in note for note in result.notes)


def test_a_pool_in_which_nothing_can_be_read_fails_with_a_message():
    snapshot, _ = pool(MANY)
    with pytest.raises(WinnowError, match=r"\w+ \w+"):
        run(snapshot, dict.fromkeys(snapshot.hashes, b"no picture"))


def test_a_loss_that_is_not_a_number_stops_the_round_with_a_message():
    """A specific exception is raised, and no model with broken weights is returned."""
    snapshot, media = pool(MANY)
    config = quick_config()
    wild = dataclasses.replace(config, training=dataclasses.replace(config.training, learning_rate=1e30, steps=40))
    with pytest.raises(TrainingFailed, match="not a number"):
        run(snapshot, media, wild)


def test_identical_items_make_a_kernel_of_rank_one_and_still_a_batch():
    """Duplicate rows in the kernel."""
    same = picture(0, 0)
    name = hashlib.sha256(same).hexdigest()
    snapshot, _ = pool({0: 0, 1: 1}, n=12, hashes=(name,) * 12)
    result = run(snapshot, {name: same})
    assert len(set(result.selection.item_ids)) == 4
    assert np.isfinite(result.selection.scores).all()


def test_a_large_pool_is_chosen_from_by_a_stated_sample():
    """The rule on a small pool; benchmarks/scaling.py runs 100,000 items."""
    snapshot, media = pool(MANY, n=130)
    result = run(snapshot, media, quick_config(max_candidates=100))
    assert any("Picked from 100 of 121 unlabeled items" in note for note in result.notes)
    assert len(result.selection.item_ids) == 4 and len(result.probabilities) == 130


def test_cancelling_stops_every_stage():
    """`report` raises, and the exception reaches the caller."""
    snapshot, media = pool(MANY)
    seen: list[str] = []
    run(snapshot, media, report=lambda progress: seen.append(progress.stage))
    for stage in dict.fromkeys(seen):

        def report(progress: Progress, stage: str = stage) -> None:
            if progress.stage == stage:
                raise Cancelled("stop")

        with pytest.raises(Cancelled):
            run(snapshot, media, report=report)


def test_the_next_round_continues_from_the_previous_model_map_and_landmarks():
    snapshot, media = pool(MANY)
    cache = MemoryRowCache()
    first = run(snapshot, media, cache=cache)
    last_map = PreviousMap(item_ids=snapshot.item_ids, points=first.map_points)
    previous = Previous(class_names=CLASSES, load_map=lambda: last_map)
    next_snapshot, _ = pool(MANY | {20: 2, 21: 0})
    second = run(next_snapshot, media, cache=cache, previous=previous)
    assert len(second.selection.item_ids) == 4


def test_the_automatic_preset_is_resolved_for_the_device():
    config = RoundConfig(preset="auto")
    on_cpu, on_gpu = (
        resolve_preset(config, Runtime.create(0, "cpu")),
        resolve_preset(config, Runtime(0, torch.device("cuda"))),
    )
    assert (on_cpu.preset, on_cpu.training.network) == ("laptop", "resnet-small")
    assert (on_cpu.selection.proxy, on_cpu.selection.uncertainty_power, on_cpu.similarity.neighbors) == (
        "similarity-head",
        1.0,
        10,
    )
    assert (on_gpu.preset, on_gpu.training.network) == ("paper", "wrn-28-10")
    assert (on_gpu.selection.proxy, on_gpu.selection.uncertainty_power, on_gpu.similarity.neighbors) == (
        "kernel",
        0.0,
        0,
    )
    assert resolve_preset(on_gpu, Runtime.create(0, "cpu")) == on_gpu
