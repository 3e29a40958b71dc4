"""The stages of a round: which of them run, what they share, and how one is added."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from core.config import MediaConfig, SimilarityConfig
from core.errors import WinnowError
from core.rounds import candidates, stages
from core.rounds.context import Previous, StageContext
from core.rounds.outputs import Batch, CandidateFeatures, Predictions, TrainingResult
from core.rounds.pipeline import run_timed
from core.rounds.stage import Outputs, Stage, check_order, needed, run_stage
from core.rounds.stage_names import NAMES, TITLES
from core.types import UNLABELED
from tests.app.worker_processes import quick_config
from tests.core.rounds.small_rounds import CLASSES, MANY, clips, context_of, pool, run, similar_clips

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_labels_propagate_over_similar_clips_and_the_labels_of_test_items_change_nothing():
    snapshot, media = clips()
    plain = dataclasses.replace(
        quick_config(proxy="similarity", uncertainty_power=1.0), media=MediaConfig(seconds=0.25)
    )
    similar = dataclasses.replace(plain, similarity=SimilarityConfig(neighbors=3))
    own, found = run(snapshot, media, plain), run(snapshot, media, similar)
    with_propagation = found.metrics["accuracy_with_propagation"]
    assert with_propagation == 1.0 > found.metrics["accuracy"]  # with eight steps a network learns almost nothing
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


@pytest.mark.parametrize("strategy", ["bico", "margin", "k_center", "badge"])
def test_a_round_that_reads_no_kernel_features_computes_none(strategy, monkeypatch):
    """The picks are those of a round that has the features. Near-duplicates, which are found on the inputs instead, are
    excluded from the comparison: only equal items count."""
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


def test_pictures_are_selected_by_the_head_without_kernel_features_once_there_is_a_model():
    snapshot, media = pool(MANY)
    config = quick_config(proxy="similarity-head", uncertainty_power=1.0, near_duplicate=0.0)
    found, head = (run(snapshot, media, changed) for changed in (config, with_proxy(config, "head")))
    assert "features" not in found.metrics["seconds"] and "features" in head.metrics["seconds"]
    np.testing.assert_array_equal(found.selection.item_ids, head.selection.item_ids)
    unlabeled = dataclasses.replace(
        snapshot, labels=np.full(len(snapshot.labels), UNLABELED), eligible=~snapshot.held_out
    )
    first, kernel = (run(unlabeled, media, changed) for changed in (config, with_proxy(config, "kernel")))
    assert "features" in first.metrics["seconds"]
    np.testing.assert_array_equal(first.selection.item_ids, kernel.selection.item_ids)


def with_proxy(config, proxy):
    return dataclasses.replace(config, selection=dataclasses.replace(config.selection, proxy=proxy))


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
    after = stages.STAGES.index(stages.PREDICT) + 1
    longer = (*stages.STAGES[:after], CLASS_SHARES, *stages.STAGES[after:])
    check_order(longer)
    outputs = Outputs()
    seconds = run_timed(longer, context_of(snapshot, media, quick_config()), outputs)
    skipped = ("encode", "decide", "check", "refine", "rival")
    assert list(seconds) == [stage.name for stage in longer if stage.name not in skipped]
    assert outputs.get(ClassShares).shares.sum() == pytest.approx(1.0, abs=1e-5)
    assert [stage.name for stage in needed(longer, ClassShares)] == [
        "encode", "prepare", "check", "train", "refine", "predict", "shares"
    ]  # fmt: skip


def test_a_stage_whose_needs_no_earlier_stage_gives_is_refused():
    with pytest.raises(WinnowError, match="shares needs Predictions, which no earlier stage gives"):
        check_order((CLASS_SHARES, *stages.STAGES))


def test_a_stage_that_returns_another_type_than_declared_is_refused():
    snapshot, media = pool(MANY)
    wrong = dataclasses.replace(CLASS_SHARES, needs=(), run=lambda context: None)
    with pytest.raises(WinnowError, match="shares gave NoneType; it must give ClassShares"):
        run_stage(wrong, context_of(snapshot, media, quick_config()), Outputs())
