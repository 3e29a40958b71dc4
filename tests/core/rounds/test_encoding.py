"""A round with an encoder: features instead of spectrograms, a head as the model, no test item used for either."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from core.acquisition import registry
from core.config import preset
from core.encoders.choice import with_encoder
from core.encoders.folders import open_encoder
from core.learning.models import load_model, save_model
from core.learning.prediction import predict
from core.rounds.context import StageContext
from core.rounds.encoding import encode_rows, join_encoded
from core.rounds.outputs import NoCommon, Predictions, TrainingResult
from core.rounds.pipeline import run_round
from core.rounds.stage import Outputs, run_stages
from core.rounds.stages import CHECK, ENCODE, PREDICT, PREPARE, REFINE, TRAIN
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED, PoolSnapshot
from experiments.benchmark.protocol import Pool, request_of
from experiments.benchmark.sets import FeatureSet
from tests.core.encoders import tiny
from tests.core.encoders.test_pool import Media, wav

N, TEST = 40, 10


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return open_encoder(tiny.write(tmp_path_factory.mktemp("encoders") / "tiny", tiny.linear()))


@pytest.fixture(scope="module")
def media():
    draw = np.random.default_rng(0)
    levels = np.where(np.arange(N) % 2, 0.6, -0.6) + 0.2 * draw.normal(size=N)
    return Media(*(wav(float(level)) for level in levels))


def snapshot(media: Media, n_labels: int, wrong_test: bool = False) -> PoolSnapshot:
    truth = np.arange(N) % 2
    held_out = np.arange(N) >= N - TEST
    labels = np.full(N, UNLABELED, np.int64)
    labels[:n_labels] = truth[:n_labels]
    known = 1 - truth if wrong_test else truth
    return PoolSnapshot(
        kind="audio", class_names=("low", "high"), item_ids=np.arange(N) + 100, hashes=media.hashes, labels=labels,
        held_out=held_out, held_out_labels=np.where(held_out, known, UNLABELED),
        eligible=~held_out & (labels == UNLABELED),
    )  # fmt: skip


def config(encoder, batch_size: int = 3):
    found = with_encoder(preset("encoder"), encoder)
    return dataclasses.replace(found, selection=dataclasses.replace(found.selection, batch_size=batch_size))


def run(encoder, media, cache, n_labels, **changes):
    return run_round(
        snapshot(media, n_labels, **changes), config(encoder), read=media, cache=cache, runtime=Runtime.create(0),
        encoder=encoder,
    )  # fmt: skip


def test_a_round_learns_from_features_and_makes_no_spectrogram(encoder, media):
    cache = MemoryRowCache()
    result = run(encoder, media, cache, 6)
    assert result.metrics["accuracy"] == 1.0
    assert list(cache._rows) == [encoder.feature_key]
    assert len(result.selection.item_ids) == 3 and result.map_points.shape == (N, 2)
    assert set(result.metrics["seconds"]) >= {"encode", "train", "predict", "select", "map"}
    assert "features" not in result.metrics["seconds"]


def test_before_the_first_label_the_batch_and_the_map_follow_the_features(encoder, media):
    result = run(encoder, media, MemoryRowCache(), 0)
    assert not result.metrics["has_model"]
    assert len(result.selection.item_ids) == 3
    sides = np.sign(result.embeddings[:, 0])
    assert len(set(sides[::2])) == 1 and len(set(sides[1::2])) == 1 and sides[0] != sides[1]


def test_test_labels_change_nothing_but_the_reported_accuracy(encoder, media):
    cache = MemoryRowCache()
    right, wrong = (run(encoder, media, cache, 6, wrong_test=flag) for flag in (False, True))
    np.testing.assert_array_equal(right.probabilities, wrong.probabilities)
    np.testing.assert_array_equal(right.selection.item_ids, wrong.selection.item_ids)
    assert (right.metrics["accuracy"], wrong.metrics["accuracy"]) == (1.0, 0.0)


def test_units_of_several_workers_give_what_one_worker_gives(encoder, media):
    alone, shared = MemoryRowCache(), MemoryRowCache()
    context = StageContext(
        snapshot=snapshot(media, 6), config=config(encoder), read=media, cache=alone, runtime=Runtime.create(0),
        encoder=encoder,
    )  # fmt: skip
    whole = ENCODE.run(context)
    blocks = [encode_rows(context, NoCommon(), start, min(start + 16, N)) for start in range(0, N, 16)]
    joined = join_encoded(dataclasses.replace(context, cache=shared), NoCommon(), blocks)
    np.testing.assert_array_equal(whole.pool.features(), joined.pool.features())


def test_the_stored_model_predicts_what_the_round_predicted(encoder, media, tmp_path):
    context = StageContext(
        snapshot=snapshot(media, 6), config=config(encoder), read=media, cache=MemoryRowCache(),
        runtime=Runtime.create(0), encoder=encoder,
    )  # fmt: skip
    outputs = Outputs()
    for _ in run_stages((ENCODE, PREPARE, CHECK, TRAIN, REFINE, PREDICT), context, outputs):
        pass
    model = outputs.get(TrainingResult).model
    save_model(model, tmp_path / "model.safetensors")
    again = load_model(tmp_path / "model.safetensors", context.runtime)
    inputs = outputs.find(PREPARE.gives)
    found = predict(again, inputs, runtime=context.runtime)
    np.testing.assert_allclose(found.probabilities[6:], outputs.get(Predictions).probabilities[6:], atol=1e-6)
    assert again.shape.name.startswith("head-")


def test_a_round_picks_what_the_benchmark_of_frozen_features_picks(encoder, media):
    """The benchmark's request has the head's graph; that of a round is computed from the same features."""
    taken, settings, runtime = snapshot(media, 6), config(encoder, batch_size=5), Runtime.create(0)
    round_ = run_round(taken, settings, read=media, cache=MemoryRowCache(), runtime=runtime, encoder=encoder)
    context = StageContext(
        snapshot=taken, config=settings, read=media, cache=MemoryRowCache(), runtime=runtime, encoder=encoder
    )
    features, rows = ENCODE.run(context).pool.features(), np.flatnonzero(~taken.held_out)
    data = FeatureSet(
        name="tiny", features=features[rows], classes=rows % 2, test_features=features[~np.isin(np.arange(N), rows)],
        test_classes=np.arange(TEST) % 2,
    )  # fmt: skip
    pool = Pool.of(data)
    request = request_of(pool, pool.fit(taken.labels[rows]), taken.labels[rows], 5, runtime.seed_for("select"))
    picked = registry.select(request, settings.selection).item_ids
    np.testing.assert_array_equal(round_.selection.item_ids, taken.item_ids[rows[picked]])
