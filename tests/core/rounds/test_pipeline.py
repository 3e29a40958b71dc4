"""One round as a pure function: what it promises with much, little and nothing to learn from."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import torch

from core.config import MediaConfig, RoundConfig, SimilarityConfig
from core.errors import Cancelled, TrainingFailed, WinnowError
from core.rounds import candidates, stages
from core.rounds.context import Previous, StageContext
from core.rounds.embedding_map import PreviousMap
from core.rounds.outputs import Batch, CandidateFeatures, Predictions, TrainingResult
from core.rounds.pipeline import resolve_preset, run_round, run_timed
from core.rounds.stage import Outputs, Stage, check_order, needed, run_stage
from core.rounds.stage_names import NAMES, TITLES
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, PoolSnapshot, Progress, RoundResult
from tests.app.worker_processes import quick_config
from tests.core.media.samples import tone, wav
from tests.round_pools import picture

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = ("bars", "blobs", "checks")


def pool(labels: dict[int, int], n: int = 40, held_out: int = 0, **changes) -> tuple[PoolSnapshot, dict[str, bytes]]:
    """`labels`: row -> class position. The first `held_out` rows are held out with their truth."""
    data = [picture(row % 3, row) for row in range(n)]
    hashes = tuple(hashlib.sha256(one).hexdigest() for one in data)
    given = np.full(n, UNLABELED)
    for row, label in labels.items():
        given[row] = label
    out = np.arange(n) < held_out
    values = {
        "kind": "image",
        "class_names": CLASSES,
        "item_ids": np.arange(n) * 10 + 5,
        "hashes": hashes,
        "labels": given,
        "held_out": out,
        "held_out_labels": np.where(out, np.arange(n) % 3, UNLABELED),
        "eligible": (given == UNLABELED) & ~out,
    }
    return PoolSnapshot(**(values | changes)), dict(zip(hashes, data, strict=True))


def run(snapshot: PoolSnapshot, media: dict[str, bytes], config: RoundConfig | None = None, **more) -> RoundResult:
    return run_round(
        snapshot,
        config or quick_config(),
        read=media.__getitem__,
        cache=more.pop("cache", None) or MemoryRowCache(),
        runtime=Runtime.create(0, "cpu"),
        **more,
    )


MANY = {row: row % 3 for row in range(9, 18)}


def test_a_round_leaves_everything_a_screen_shows():
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
    assert set(result.metrics["seconds"]) == {stage.name for stage in stages.STAGES}
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
def test_before_there_is_anything_to_learn_the_batch_covers_the_pool_and_says_why(labels, says):
    """No label, one label, one class."""
    snapshot, media = pool(labels)
    result = run(snapshot, media)
    assert len(set(result.selection.item_ids)) == 4
    assert not set(result.selection.item_ids) & set(snapshot.item_ids[snapshot.labeled])
    assert any(says in note for note in result.notes)
    assert result.metrics["has_model"] is False and "accuracy" not in result.metrics
    kinds = (result.selection.item_ids // 10) % 3
    assert len(set(kinds.tolist())) >= 2  # it spreads over what there is to see
    assert np.isfinite(result.map_points).all()


def test_a_class_with_a_single_example_is_learned_and_mentioned():
    """The round's notes mention it."""
    snapshot, media = pool({0: 0, 3: 0, 1: 1})
    result = run(snapshot, media)
    assert result.metrics["has_model"]
    assert any("have a single label" in note for note in result.notes)
    assert any("have no label yet" in note for note in result.notes)


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


def test_a_pool_in_which_nothing_can_be_read_fails_with_a_sentence():
    snapshot, _ = pool(MANY)
    with pytest.raises(WinnowError, match=r"\w+ \w+"):
        run(snapshot, dict.fromkeys(snapshot.hashes, b"no picture"))


def test_a_loss_that_is_not_a_number_stops_the_round_with_a_sentence():
    """An exception of its own class, in place of a model with broken weights."""
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
    """The rule in small; benchmarks/scaling.py runs 100,000 items."""
    snapshot, media = pool(MANY, n=130)
    result = run(snapshot, media, quick_config(max_candidates=100))
    assert any("Picked from 100 of 121 unlabeled items" in note for note in result.notes)
    assert len(result.selection.item_ids) == 4 and len(result.probabilities) == 130


def test_cancelling_stops_every_stage():
    """`report` raises, and nothing swallows it."""
    snapshot, media = pool(MANY)
    seen: list[str] = []
    run(snapshot, media, report=lambda progress: seen.append(progress.stage))
    for stage in dict.fromkeys(seen):

        def report(progress: Progress, stage: str = stage) -> None:
            if progress.stage == stage:
                raise Cancelled("stop")

        with pytest.raises(Cancelled):
            run(snapshot, media, report=report)


def test_the_next_round_goes_on_from_the_previous_model_map_and_landmarks():
    snapshot, media = pool(MANY)
    cache = MemoryRowCache()
    first = run(snapshot, media, cache=cache)
    last_map = PreviousMap(item_ids=snapshot.item_ids, points=first.map_points)
    previous = Previous(class_names=CLASSES, load_map=lambda: last_map)
    next_snapshot, _ = pool(MANY | {20: 2, 21: 0})
    second = run(next_snapshot, media, cache=cache, previous=previous)
    assert len(second.selection.item_ids) == 4


def clips(held_out_truth: int = 0) -> tuple[PoolSnapshot, dict[str, bytes]]:
    """24 tones of three pitches, one of each labeled, the last three held out; their truth may be shifted."""
    rng = np.random.default_rng(0)
    data = [wav(tone(300 * (1 + 2 * (row % 3)) * rng.uniform(0.97, 1.03), seconds=0.2)) for row in range(24)]
    rows, out = np.arange(24), np.arange(24) >= 21
    taken, _ = pool({0: 0, 1: 1, 2: 2}, n=24, kind="audio")
    taken = dataclasses.replace(
        taken,
        hashes=tuple(hashlib.sha256(one).hexdigest() for one in data),
        held_out=out,
        held_out_labels=np.where(out, (rows + held_out_truth) % 3, UNLABELED),
        eligible=(rows > 2) & ~out,
    )
    return taken, {hashlib.sha256(one).hexdigest(): one for one in data}


def test_labels_propagate_over_similar_clips_and_the_labels_of_test_items_change_nothing():
    snapshot, media = clips()
    plain = dataclasses.replace(
        quick_config(proxy="similarity", uncertainty_power=1.0), media=MediaConfig(seconds=0.25)
    )
    similar = dataclasses.replace(plain, similarity=SimilarityConfig(neighbors=3))
    own, found = run(snapshot, media, plain), run(snapshot, media, similar)
    with_propagation = found.metrics["accuracy_with_propagation"]
    assert with_propagation == 1.0 > found.metrics["accuracy"]  # eight steps teach a network next to nothing
    assert found.metrics["accuracy"] == own.metrics["accuracy"] and "accuracy_with_propagation" not in own.metrics
    assert (found.probabilities.argmax(1) == np.arange(24) % 3)[:21].mean() > 0.9
    np.testing.assert_array_equal(found.probabilities[21:], own.probabilities[21:])  # test items are not in the graph
    assert np.allclose(found.probabilities.sum(1), 1, atol=1e-5) and len(found.selection.item_ids) == 4
    changed = int((found.probabilities.argmax(1) != own.probabilities.argmax(1)).sum())
    assert any(note.startswith(f"{changed} of 24 predictions were changed") for note in found.notes)
    assert not any("sound alike" in note for note in own.notes)
    shifted, _ = clips(held_out_truth=1)
    again = run(shifted, media, similar)
    np.testing.assert_array_equal(found.probabilities, again.probabilities)
    np.testing.assert_array_equal(found.selection.item_ids, again.selection.item_ids)


def test_before_the_first_label_nothing_is_propagated():
    snapshot, media = clips()
    snapshot = dataclasses.replace(snapshot, labels=np.full(24, UNLABELED), eligible=~snapshot.held_out)
    config = dataclasses.replace(
        quick_config(proxy="similarity"), media=MediaConfig(seconds=0.25), similarity=SimilarityConfig(neighbors=3)
    )
    result = run(snapshot, media, config)
    np.testing.assert_allclose(result.probabilities, 1 / 3, atol=1e-6)
    assert len(result.selection.item_ids) == 4


def test_the_automatic_preset_is_resolved_for_the_device():
    config = RoundConfig(preset="auto")
    on_cpu, on_gpu = (
        resolve_preset(config, Runtime.create(0, "cpu")),
        resolve_preset(config, Runtime(0, torch.device("cuda"))),
    )
    assert (on_cpu.preset, on_cpu.training.network) == ("laptop", "resnet-small")
    assert (on_cpu.selection.proxy, on_cpu.selection.uncertainty_power, on_cpu.similarity.neighbors) == (
        "similarity",
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


def context_of(snapshot: PoolSnapshot, media: dict[str, bytes], config: RoundConfig, **more) -> StageContext:
    return StageContext(
        snapshot=snapshot,
        config=config,
        read=media.__getitem__,
        cache=MemoryRowCache(),
        runtime=Runtime.create(0, "cpu"),
        **more,
    )


def similar_clips(**selection) -> RoundConfig:
    """Settings of a round on clips whose proxy is the similarity graph."""
    return dataclasses.replace(
        quick_config(**({"proxy": "similarity"} | selection)),
        media=MediaConfig(seconds=0.25),
        similarity=SimilarityConfig(neighbors=3),
    )


@pytest.mark.parametrize("strategy", ["bico", "margin", "k_center", "badge"])
def test_a_round_that_reads_no_kernel_features_computes_none(strategy, monkeypatch):
    """The picks are those of a round that has the features. Near-duplicates, which are found on the inputs instead, are
    left out of the comparison: only equal items count."""
    snapshot, media = clips()
    config = similar_clips(strategy=strategy, near_duplicate=0.0)
    context, outputs = context_of(snapshot, media, config), Outputs()
    run_timed(needed(stages.STAGES, Predictions), context, outputs)
    with_features = Outputs()
    for gives in (Predictions, TrainingResult, stages.Inputs):
        with_features.add(gives, outputs.get(gives))
    with_features.add(CandidateFeatures, stages.compute_features(context, outputs.get(stages.Inputs)))
    run_timed(needed(stages.STAGES, Batch, known=with_features), context, with_features)

    def refuse(*args, **more):
        raise AssertionError("kernel features were computed")

    monkeypatch.setattr(candidates.KernelFeatures, "prepare", refuse)
    result = run(snapshot, media, config)
    assert "features" not in result.metrics["seconds"]
    expected = with_features.get(Batch).selection
    np.testing.assert_array_equal(result.selection.item_ids, expected.item_ids)
    np.testing.assert_array_equal(result.selection.scores, expected.scores)
    assert result.selection.reasons == expected.reasons


def test_near_duplicates_are_found_without_kernel_features():
    """Two equal clips under two names: only one of them is chosen while others remain."""
    snapshot, media = clips()
    names = list(snapshot.hashes)
    copy = media[names[6]] + b"\0\0\0\0"  # bytes after the last chunk: another hash, the same sound
    names[9] = hashlib.sha256(copy).hexdigest()
    media[names[9]] = copy
    snapshot = dataclasses.replace(snapshot, hashes=tuple(names))
    config = similar_clips(batch_size=17)
    result = run(snapshot, media, config)
    assert "features" not in result.metrics["seconds"]
    picked = result.selection.item_ids.tolist()
    assert len({95, 65} & set(picked)) == 1 and len(picked) == 17


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        (similar_clips(proxy="kernel"), None),
        (similar_clips(proxy="embedding"), None),
        (dataclasses.replace(similar_clips(), similarity=SimilarityConfig(neighbors=0)), None),
        (similar_clips(), np.full(24, UNLABELED)),
    ],
    ids=["kernel proxy", "embedding proxy", "no similarity graph", "no labels"],
)
def test_rounds_that_read_kernel_features_compute_them(config, labels):
    snapshot, media = clips()
    if labels is not None:
        snapshot = dataclasses.replace(snapshot, labels=labels, eligible=~snapshot.held_out)
    assert "features" in run(snapshot, media, config).metrics["seconds"]


def test_pictures_have_no_similarity_graph_and_keep_their_kernel_features():
    snapshot, media = pool(MANY)
    config = dataclasses.replace(quick_config(proxy="similarity"), similarity=SimilarityConfig(neighbors=3))
    assert "features" in run(snapshot, media, config).metrics["seconds"]


def test_only_training_loads_the_previous_model():
    snapshot, media = pool(MANY)
    loaded: list[str] = []
    outputs = Outputs()

    def load_model():
        loaded.append(stage.name)
        return None

    context = context_of(snapshot, media, quick_config(), previous=Previous(class_names=CLASSES, load_model=load_model))
    for stage in stages.STAGES:
        outputs.add(stage.gives, run_stage(stage, context, outputs))
    assert loaded == ["train"]
    cold = dataclasses.replace(context.config.training, warm_steps=0)
    stages.train_model(
        dataclasses.replace(context, config=dataclasses.replace(context.config, training=cold)),
        outputs.get(stages.Inputs),
    )
    assert loaded == ["train"]  # training from scratch needs no previous model


def test_the_stages_have_the_stored_names_and_titles_in_order():
    assert ("snapshot", *(stage.name for stage in stages.STAGES), "finish") == NAMES
    assert all(stage.title == TITLES[stage.name] for stage in stages.STAGES)


@dataclasses.dataclass(frozen=True)
class ClassShares:
    shares: np.ndarray


def class_shares(context: StageContext, predictions: Predictions) -> ClassShares:
    return ClassShares(predictions.probabilities.mean(0))


CLASS_SHARES: Stage[ClassShares] = Stage(
    name="shares", title="Class shares", needs=(Predictions,), gives=ClassShares, run=class_shares
)


def test_a_new_stage_is_one_record_with_its_function_and_its_output():
    snapshot, media = pool(MANY)
    longer = (*stages.STAGES[:4], CLASS_SHARES, *stages.STAGES[4:])
    check_order(longer)
    outputs = Outputs()
    seconds = run_timed(longer, context_of(snapshot, media, quick_config()), outputs)
    assert list(seconds) == [stage.name for stage in longer]
    assert outputs.get(ClassShares).shares.sum() == pytest.approx(1.0, abs=1e-5)
    assert [stage.name for stage in needed(longer, ClassShares)] == ["prepare", "train", "predict", "shares"]


def test_a_stage_whose_needs_no_earlier_stage_gives_is_refused():
    with pytest.raises(WinnowError, match="shares needs Predictions, which no earlier stage gives"):
        check_order((CLASS_SHARES, *stages.STAGES))


def test_a_stage_that_gives_something_else_than_it_says_is_refused():
    snapshot, media = pool(MANY)
    wrong = dataclasses.replace(CLASS_SHARES, needs=(), run=lambda context: None)
    with pytest.raises(WinnowError, match="shares gave NoneType; it must give ClassShares"):
        run_stage(wrong, context_of(snapshot, media, quick_config()), Outputs())
