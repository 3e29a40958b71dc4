"""Rounds of the preset `auto`: both approaches are trained and compared, and no test label is used."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from core.config import EncoderConfig, preset
from core.encoders.folders import open_encoder
from core.rounds.approach.evidence import PastRound
from core.rounds.approach.presets import both_approaches, resolve_at_start
from core.rounds.context import Previous, StageContext
from core.rounds.outputs import Approach, Batch, BothPredictions, Predictions
from core.rounds.pipeline import run_round
from core.rounds.simulation import Trial
from core.rounds.simulation_plan import LabeledPool, Plan
from core.rounds.stage import Outputs, needed, run_stages
from core.rounds.stages import STAGES
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED
from tests.core.encoders import tiny
from tests.core.encoders.test_pool import Media, wav
from tests.core.rounds.test_encoding import N, snapshot

pytestmark = pytest.mark.slow

LITTLE = {"steps": 2, "refine_steps": 2, "labeled_batch": 4, "unlabeled_batch": 4, "bank_views": 1, "predict_views": 0}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return open_encoder(tiny.write(tmp_path_factory.mktemp("encoders") / "tiny", tiny.linear()))


@pytest.fixture(scope="module")
def media():
    draw = np.random.default_rng(0)
    levels = np.where(np.arange(N) % 2, 0.6, -0.6) + 0.2 * draw.normal(size=N)
    return Media(*(wav(float(level)) for level in levels))


def config(encoder):
    found = preset("auto")
    return dataclasses.replace(
        found,
        media=dataclasses.replace(found.media, seconds=0.25),
        training=dataclasses.replace(found.training, **LITTLE),
        selection=dataclasses.replace(found.selection, batch_size=3, n_views=0),
        kernel=dataclasses.replace(found.kernel, network="fnn", n_landmarks=8),
        map=dataclasses.replace(found.map, n_neighbors=500),
        encoder=EncoderConfig(name=encoder.name, identity=encoder.identity),
        changed=(*(f"training.{name}" for name in LITTLE), "selection.n_views"),
    )


def decided(encoder, media, taken, past=()) -> Outputs:
    runtime = Runtime.create(0, "cpu")
    context = StageContext(
        snapshot=taken, config=resolve_at_start(config(encoder), runtime), read=media, cache=MemoryRowCache(),
        runtime=runtime, encoder=encoder, previous=Previous(load_past=lambda: tuple(past)),
    )  # fmt: skip
    outputs = Outputs()
    for _ in run_stages(needed(STAGES, Approach, BothPredictions, Batch), context, outputs):
        pass
    return outputs


def past(encoder, right: int) -> PastRound:
    """A round in which the approach `right` (0: the encoder) predicted every item correctly, and the other one none."""
    truth = np.arange(N) % 2
    classes = np.stack([truth, 1 - truth] if right == 0 else [1 - truth, truth], 1).astype(np.int32)
    return PastRound(
        n_labels=10, encoder=encoder.identity, uses_encoder=True, class_names=("low", "high"),
        item_ids=np.arange(N) + 100, classes=classes,
    )  # fmt: skip


def test_test_labels_leave_the_decision_and_what_follows_bit_equal(encoder, media):
    taken = snapshot(media, 12)
    draw = np.random.default_rng(1)
    shuffled = np.where(taken.held_out, draw.integers(0, 2, N), UNLABELED)
    found = [
        decided(encoder, media, dataclasses.replace(taken, held_out_labels=labels), [past(encoder, 1)])
        for labels in (taken.held_out_labels, shuffled, np.full(N, UNLABELED))
    ]
    for other in found[1:]:
        assert other.get(Approach) == found[0].get(Approach)
        np.testing.assert_array_equal(other.get(BothPredictions).classes, found[0].get(BothPredictions).classes)
        np.testing.assert_array_equal(other.get(Batch).selection.item_ids, found[0].get(Batch).selection.item_ids)


def test_the_first_round_trains_both_approaches_and_keeps_what_both_predict(encoder, media):
    outputs = decided(encoder, media, snapshot(media, 12))
    approach, both = outputs.get(Approach), outputs.get(BothPredictions).classes
    assert approach.config.preset == "encoder" and approach.config.encoder.identity == encoder.identity
    assert approach.rival is not None and approach.rival.preset == "laptop" and approach.rival.training.steps == 2
    assert (both[:12] == -1).all() and (both[12:] >= 0).all()
    own = np.asarray(outputs.get(Predictions).probabilities).argmax(1)
    np.testing.assert_array_equal(both[12:, 0], own[12:])


def test_an_approach_that_predicted_better_takes_over(encoder, media):
    scratch = decided(encoder, media, snapshot(media, 20), [past(encoder, 1)])
    found = scratch.get(Approach)
    assert found.config.preset == "laptop" and found.config.encoder.identity == ""
    assert found.note.startswith("Automatic: training from scratch: 100 % against 0 % on 20 labels")
    own = np.asarray(scratch.get(Predictions).probabilities).argmax(1)
    np.testing.assert_array_equal(scratch.get(BothPredictions).classes[20:, 1], own[20:])
    stays = decided(encoder, media, snapshot(media, 14), [past(encoder, 0)])
    assert stays.get(Approach).rival is None and stays.find(BothPredictions) is None


def test_a_round_in_one_process_reports_with_the_settings_it_decided_on(encoder, media):
    result = run_round(
        snapshot(media, 12), config(encoder), read=media, cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu"),
        encoder=encoder,
    )  # fmt: skip
    assert result.metrics["accuracy"] == 1.0 and {"decide", "rival"} <= set(result.metrics["seconds"])


def test_an_encoder_without_features_is_not_used(media, tmp_path):
    """The mean of the clips is negated: the root of a negative number is none."""
    nan = open_encoder(tiny.write(tmp_path / "tiny", tiny.root_of_mean()))
    quiet = Media(*(wav(-float(level)) for level in np.linspace(0.2, 0.6, N)))
    found = decided(nan, quiet, snapshot(quiet, 12))
    assert found.get(Approach).config.preset == "laptop" and found.find(BothPredictions) is None
    assert found.get(Approach).note.endswith("encoder tiny gives no features.")


def test_settings_that_were_changed_hold_for_both_approaches(encoder):
    found = dataclasses.replace(config(encoder), changed=("selection.uncertainty_power", "head.penalty"))
    found = dataclasses.replace(
        found,
        selection=dataclasses.replace(found.selection, uncertainty_power=3.0, strategy="margin"),
        head=dataclasses.replace(found.head, penalty=0.5),
    )
    approaches = both_approaches(found, Runtime.create(0, "cpu"))
    for approach in (approaches.encoder, approaches.scratch):
        selection = approach.selection
        assert (selection.uncertainty_power, selection.strategy, approach.head.penalty) == (3.0, "margin", 0.5)
    assert (approaches.encoder.selection.proxy, approaches.scratch.selection.proxy) == ("head", "similarity-head")


def test_a_simulation_decides_by_the_same_code_and_continues_where_it_stopped(encoder, media, tmp_path):
    truth = np.arange(N) % 2
    pool = LabeledPool(
        kind="audio", class_names=("low", "high"), hashes=media.hashes, truth=truth, test=np.arange(N) >= N - 10
    )

    def trial(folder) -> Trial:
        return Trial(
            pool=pool, plan=Plan(start=10, batch=3, rounds=2), config=config(encoder), seed=0, read=media,
            cache=MemoryRowCache(), runtime=Runtime.create(0, "cpu"), folder=folder / "trial",
            start_file=folder / "start.safetensors", encoder=encoder,
        )  # fmt: skip

    whole = list(trial(tmp_path / "one").run())
    assert all(record.notes[0].startswith("Automatic: encoder tiny") for record in whole)
    assert ["rival" in record.seconds for record in whole] == [True, False, False]
    trial(tmp_path / "two").train_start()
    first = next(iter(trial(tmp_path / "two").run()))
    assert "rival" not in first.seconds  # it was trained with the model of the initial labels
    rest = list(trial(tmp_path / "two").run([first]))
    assert [record.picks for record in (first, *rest)] == [record.picks for record in whole]
    assert [record.notes[0] for record in (first, *rest)] == [record.notes[0] for record in whole]
