"""Clips that are longer than an input are predicted from several windows, whose probabilities are averaged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.rounds.shared_inputs import open_inputs, put_inputs
from core.config import MediaConfig, TrainingConfig
from core.learning.models import TrainedModel
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.prediction import predict
from core.media.inputs import prepare
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import ignore
from storage.rounds.artifacts import ArtifactFolder
from tests.core.media.samples import MemoryReader, tone, wav

RUNTIME = Runtime.create(0, "cpu")
ONE = MediaConfig(seconds=0.25)
SEVERAL = MediaConfig(seconds=0.25, predict_windows=4)


@pytest.fixture
def model():
    shape = NetworkShape(name="resnet-small", channels=1, n_classes=3)
    return TrainedModel(
        network=fresh_network(shape, RUNTIME), shape=shape, config=TrainingConfig(bank_views=2), temperature=1.0,
        metrics={},
    )  # fmt: skip


def clips():
    rng = np.random.default_rng(0)
    changing = np.concatenate([tone(300 * k, 0.25, amplitude=rng.uniform(0.1, 0.9)) for k in (1, 4, 2, 6)])
    return [tone(440, 0.2), changing, tone(900, 0.25), np.concatenate([tone(500, 0.25), tone(2_000, 0.2)])]


def prepared(files, config):
    reader = MemoryReader(*files)
    return prepare(reader.hashes, reader, "audio", config, MemoryRowCache())


@pytest.mark.parametrize("n_views", [0, 2])
def test_a_long_clip_has_the_mean_over_its_windows(model, n_views):
    """The reference: the same windows as separate clips, each predicted alone."""
    samples = clips()
    inputs = prepared([wav(x) for x in samples], SEVERAL)
    assert inputs.windows is not None and inputs.windows.rows.tolist() == [1, 3]
    found = predict(model, inputs, runtime=RUNTIME, n_views=n_views)
    before = predict(model, prepared([wav(x) for x in samples], ONE), runtime=RUNTIME, n_views=n_views)
    for row in (1, 3):
        starts = np.linspace(0, len(samples[row]) - 4_000, 4).round().astype(int)
        parts = prepared([wav(samples[row][start : start + 4_000], subtype="FLOAT") for start in starts], ONE)
        alone = predict(model, parts, runtime=RUNTIME).probabilities
        np.testing.assert_allclose(found.probabilities[row], alone.mean(0), atol=2e-3)
        assert np.abs(found.probabilities[row] - before.probabilities[row]).max() > 1e-4
    np.testing.assert_array_equal(found.probabilities[[0, 2]], before.probabilities[[0, 2]])
    np.testing.assert_array_equal(found.embeddings, before.embeddings)


def test_some_rows_in_any_order_have_the_same_predictions(model):
    inputs = prepared([wav(x) for x in clips()], SEVERAL)
    whole = predict(model, inputs, runtime=RUNTIME).probabilities
    some = predict(model, inputs, np.array([3, 0, 1]), runtime=RUNTIME).probabilities
    np.testing.assert_allclose(some, whole[[3, 0, 1]], atol=1e-6)


def test_no_long_clip_means_no_windows_and_the_number_is_limited():
    short = prepared([wav(tone(440, 0.25)), wav(tone(660, 0.1))], SEVERAL)
    assert short.windows is None
    long = prepared([wav(tone(440, 30.0))], SEVERAL)
    assert long.windows is not None and long.windows.pictures.shape == (1, 4, 32, 8, 1)


def test_a_file_that_disappeared_keeps_the_prediction_of_its_cached_clip(model):
    reader, cache = MemoryReader(*(wav(x) for x in clips())), MemoryRowCache()
    prepare(reader.hashes, reader, "audio", ONE, cache)
    lost = reader.hashes[1]

    def read(name: str) -> bytes:
        if name == lost:
            raise OSError("gone")
        return reader(name)

    inputs = prepare(reader.hashes, read, "audio", SEVERAL, cache)
    assert inputs.readable.all() and inputs.windows is not None and inputs.windows.rows.tolist() == [3]
    assert torch.isfinite(torch.from_numpy(predict(model, inputs, runtime=RUNTIME).probabilities)).all()
    again = prepare(reader.hashes, reader, "audio", SEVERAL, cache)
    assert again.windows is not None and again.windows.rows.tolist() == [1, 3]


def test_windows_are_shared_between_machines(model, tmp_path):
    inputs = prepared([wav(x) for x in clips()], SEVERAL)
    folder = ArtifactFolder(tmp_path)
    shared = open_inputs(folder, put_inputs(folder, inputs, ignore), "audio", SEVERAL, MemoryRowCache())
    expected = predict(model, inputs, runtime=RUNTIME).probabilities
    np.testing.assert_array_equal(predict(model, shared, runtime=RUNTIME).probabilities, expected)
