"""Training learns, is reproducible, reports problems, and can be stopped and warm-started."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from core.config import TrainingConfig
from core.errors import Cancelled, InvalidInput, TrainingFailed
from core.learning import learner as learner_module
from core.learning.calibration import PRIOR_TEMPERATURE, fitted_temperature
from core.learning.models import load_model, save_model
from core.learning.training import nothing_to_learn, predict, train
from core.runtime import Runtime
from tests.core.learning.pools import N_CLASSES, SMALL, clip_pool, picture_pool, some_labels

CPU = Runtime.create(0, "cpu")
POOL, CLASSES = picture_pool()


def weights(model) -> dict[str, torch.Tensor]:
    return model.network.state_dict()


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(first).values(), weights(second).values(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fixmatch", "mixmatch", "supervised"])
def test_every_method_learns_four_patterns_and_reports_its_metrics(method):
    reported = []
    config = dataclasses.replace(SMALL, method=method, steps=75)
    held_out = (np.arange(60, 80), CLASSES[60:80])
    labels = some_labels(CLASSES, 5)
    model = train(POOL, labels, N_CLASSES, config, runtime=CPU, held_out=held_out, report=reported.append)
    assert model.metrics["held_out_accuracy"] > 0.8
    epochs = [progress.metrics for progress in reported if progress.metrics]
    assert len(epochs) == len(model.history) == 3
    expected = {"loss", "labeled_loss", "unlabeled_loss", "labeled_accuracy", "confidence", "held_out_accuracy"}
    assert expected <= set(epochs[-1]) and reported[-1].done == reported[-1].total == 75


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    labels = some_labels(CLASSES, 2)
    first, second, other = (
        train(POOL, labels, N_CLASSES, SMALL, runtime=Runtime.create(seed, "cpu")) for seed in (1, 1, 2)
    )
    assert same(first, second) and not same(first, other)


def test_clips_train_from_the_bank_and_from_fresh_waveforms():
    inputs, classes = clip_pool()
    for bank_views in (2, 0):
        config = dataclasses.replace(SMALL, bank_views=bank_views, steps=3)
        model = train(inputs, some_labels(classes, 1), N_CLASSES, config, runtime=CPU)
        found = predict(model, inputs, runtime=CPU, n_views=2)
        assert found.probabilities.shape == (24, N_CLASSES) and found.embeddings.shape == (24, 64)
        assert found.view_probabilities.shape == (2, 24, N_CLASSES)
        np.testing.assert_allclose(found.probabilities.sum(1), 1, rtol=1e-5)


def test_views_of_a_prediction_are_the_first_of_the_bank():
    inputs, classes = clip_pool()
    model = train(inputs, some_labels(classes, 1), N_CLASSES, replace(SMALL, bank_views=4, steps=3), runtime=CPU)
    from_bank = predict(model, inputs, runtime=CPU, n_views=2)
    fresh = predict(replace(model, config=replace(SMALL, bank_views=0)), inputs, runtime=CPU, n_views=2)
    np.testing.assert_allclose(from_bank.view_probabilities, fresh.view_probabilities, atol=1e-3)


@pytest.mark.parametrize(
    "labels, reason",
    [(np.full(80, -1), "No item is labeled"), (np.where(np.arange(80) < 3, 2, -1), "All 3 labels are of one class")],
)
def test_labels_that_cannot_train_a_model_are_refused_with_the_reason(labels, reason):
    """Zero labels and one class only."""
    assert reason in nothing_to_learn(labels, N_CLASSES)
    with pytest.raises(TrainingFailed, match=reason):
        train(POOL, labels, N_CLASSES, SMALL, runtime=CPU)


def test_one_example_of_a_class_all_labeled_and_missing_classes_train_with_a_note():
    """A class with one example; all items labeled; fewer items than a batch."""
    labels = some_labels(CLASSES, 1)
    labels[CLASSES == 3] = -1
    config = dataclasses.replace(SMALL, steps=3)
    model = train(POOL, labels, N_CLASSES, config, runtime=CPU)
    assert any("1 of 4 classes has no label yet. Do not trust predictions of it." in note for note in model.notes)
    assert any("3 of 4 classes have a single label" in note for note in model.notes)
    tiny, classes = picture_pool(n=5)
    assert train(tiny, classes.astype(np.int64), N_CLASSES, config, runtime=CPU).metrics["loss"] > 0


def test_a_loss_that_is_not_a_number_stops_the_run_with_its_cause(tmp_path):
    """The earlier saved model stays readable."""
    config = dataclasses.replace(SMALL, learning_rate=1e18, method="supervised", warmup_steps=0, steps=60)
    with pytest.raises(TrainingFailed, match=r"not a number.*learning rate 1e\+18.*previous model stays"):
        train(POOL, some_labels(CLASSES, 2), N_CLASSES, config, runtime=CPU, checkpoint_dir=tmp_path)
    for path in tmp_path.iterdir():
        assert path.name == "checkpoint.safetensors"


def test_cancel_takes_effect_at_the_next_report(monkeypatch):
    """Reports come every half second, and after a step at the latest."""
    steps = []
    advance = learner_module.Learner.advance
    monkeypatch.setattr(learner_module.Learner, "advance", lambda self: (steps.append(1), advance(self)))

    def cancel(progress):
        if progress.stage == "train":
            raise Cancelled("stop")

    with pytest.raises(Cancelled):
        train(POOL, some_labels(CLASSES, 2), N_CLASSES, SMALL, runtime=CPU, report=cancel)
    assert len(steps) == 1


@pytest.mark.slow
def test_a_warm_start_continues_from_the_previous_model_even_with_another_class():
    labels = some_labels(CLASSES, 5)
    config = dataclasses.replace(SMALL, steps=60, warm_steps=10)
    first = train(POOL, labels, N_CLASSES, config, runtime=CPU)
    warm = train(POOL, labels, N_CLASSES, config, runtime=CPU, warm_start=first)
    cold = train(POOL, labels, N_CLASSES, dataclasses.replace(config, steps=10), runtime=CPU)
    assert warm.history[-1]["step"] == 10
    assert warm.history[-1]["labeled_loss"] < 0.5 * cold.history[-1]["labeled_loss"]
    wider = train(POOL, labels, N_CLASSES + 1, config, runtime=CPU, warm_start=first)
    assert wider.network.head.out_features == 5


def test_a_model_is_the_same_after_a_trip_through_its_file(tmp_path):
    model = train(POOL, some_labels(CLASSES, 1), N_CLASSES, dataclasses.replace(SMALL, steps=2), runtime=CPU)
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors", CPU)
    assert same(model, again) and again.config == model.config and again.metrics == model.metrics
    before, after = (predict(m, POOL, np.arange(9), runtime=CPU) for m in (model, again))
    np.testing.assert_array_equal(before.probabilities, after.probabilities)
    np.testing.assert_array_equal(before.embeddings, after.embeddings)
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors")
    with pytest.raises(InvalidInput, match="damaged"):
        load_model(tmp_path / "broken.safetensors", CPU)


def test_an_unreadable_item_is_left_out_of_training():
    readable = POOL.readable.copy()
    readable[0] = False
    inputs = dataclasses.replace(POOL, readable=readable, notes=("1 of 80 items cannot be read",))
    labels = np.full(80, -1)
    labels[[0, 1]] = [0, 1]
    model = train(inputs, labels, N_CLASSES, dataclasses.replace(SMALL, steps=2), runtime=CPU)
    assert model.notes[0] == "1 of 80 items cannot be read"
    labels[1] = -1
    labels[0] = 0
    with pytest.raises(TrainingFailed):
        train(inputs, labels, N_CLASSES, SMALL, runtime=CPU)


def test_the_temperature_lowers_overconfidence_and_keeps_the_predicted_class():
    rng = np.random.default_rng(0)
    true_logits = rng.normal(size=(4_000, 5))
    labels = (true_logits + rng.gumbel(size=true_logits.shape)).argmax(1)  # labels drawn from softmax(true_logits)
    assert fitted_temperature(3 * true_logits, labels) == pytest.approx(3, rel=0.1)
    assert fitted_temperature(0.5 * true_logits, labels) == pytest.approx(0.5, rel=0.1)


def test_few_labels_are_calibrated_by_the_prior_and_a_note_says_so():
    config = dataclasses.replace(SMALL, steps=2)
    labels = some_labels(CLASSES, 1)
    found = train(POOL, labels, N_CLASSES, config, runtime=CPU)
    assert (found.temperature, found.calibration) == (PRIOR_TEMPERATURE, "prior")
    assert any("not corrected yet" in note for note in found.notes)
    raw = train(POOL, labels, N_CLASSES, dataclasses.replace(config, calibrate=False), runtime=CPU)
    assert (raw.temperature, raw.calibration) == (1.0, "off")
    assert any("not calibrated" in note for note in raw.notes)


def test_with_enough_labels_the_temperature_is_cross_validated_on_them(tmp_path):
    labels = np.where(np.arange(80) < 40, CLASSES, -1)
    found = train(POOL, labels, N_CLASSES, dataclasses.replace(SMALL, steps=2), runtime=CPU)
    assert found.calibration == "cross-validation" and found.metrics["calibration_labels"] == 40
    assert not any("orrected" in note for note in found.notes)
    save_model(found, tmp_path / "model.safetensors")
    assert load_model(tmp_path / "model.safetensors", CPU).calibration == "cross-validation"


def test_labels_of_test_items_change_neither_the_weights_nor_the_temperature():
    labels = np.where(np.arange(80) < 40, CLASSES, -1)
    rows = np.arange(40, 80)
    config = dataclasses.replace(SMALL, steps=4)
    first = train(POOL, labels, N_CLASSES, config, runtime=CPU, held_out=(rows, CLASSES[rows]))
    other = train(POOL, labels, N_CLASSES, config, runtime=CPU, held_out=(rows, (CLASSES[rows] + 1) % N_CLASSES))
    assert first.temperature == other.temperature
    assert first.metrics["held_out_accuracy"] != other.metrics["held_out_accuracy"]
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, other.network.state_dict()[name]), name


def test_training_that_is_counted_in_epochs_passes_over_the_pool_that_often():
    config = dataclasses.replace(SMALL, steps=0, epochs=2)
    model = train(POOL, some_labels(CLASSES, 1), N_CLASSES, config, runtime=CPU)
    assert [entry["step"] for entry in model.history] == [5, 10]  # 80 items, 16 per step
    assert isinstance(model.config, TrainingConfig)
