"""Inputs of any shape: long clips and wide pictures in decoding, augmentation, kernels and networks."""

from __future__ import annotations

import dataclasses

import librosa
import numpy as np
import pytest
import torch

from core.config import MediaConfig
from core.errors import InvalidInput
from core.kernels import networks
from core.kernels.ntk import kernel
from core.learning.networks.registry import NetworkShape, fresh_network
from core.media.audio import to_clip, to_windows
from core.media.feeds import open_feed
from core.media.images import decode_image, to_picture
from core.media.inputs import media_key, prepare
from core.media.views import views
from core.rows import MemoryRowCache
from core.runtime import Runtime
from tests.core.media.samples import MemoryReader, png, tone, wav

FIVE_SECONDS = MediaConfig(seconds=5.0, hop=1024)  # 32 x 79
NARROW = MediaConfig(seconds=0.7, n_mels=20, hop=500, n_fft=1000)  # 20 x 23
ULTRASOUND = MediaConfig(sample_rate=192_000, seconds=0.2, n_fft=8192, hop=1200, f_max=0.0)
WIDE = MediaConfig(image_size=48, image_width=64)
TALL_GRAY = MediaConfig(image_size=37, image_width=11, channels=1, image_fit="fit", flip=True)


def clip_inputs(config):
    reader = MemoryReader(*(wav(tone(150 * k, seconds=0.4 * k)) for k in range(1, 7)))
    return prepare(reader.hashes, reader, "audio", config, MemoryRowCache())


def picture_inputs(config):
    rng = np.random.default_rng(0)
    reader = MemoryReader(*(png(rng.integers(0, 255, (30 + 9 * k, 80, 3))) for k in range(6)))
    return prepare(reader.hashes, reader, "image", config, MemoryRowCache())


CASES = {
    "5 s": (clip_inputs, FIVE_SECONDS, (32, 79, 1)),
    "20 mels": (clip_inputs, NARROW, (20, 23, 1)),
    "192 kHz": (clip_inputs, ULTRASOUND, (32, 33, 1)),
    "48x64": (picture_inputs, WIDE, (48, 64, 3)),
    "37x11 gray": (picture_inputs, TALL_GRAY, (37, 11, 1)),
}


@pytest.fixture(params=list(CASES))
def inputs(request):
    make, config, shape = CASES[request.param]
    made = make(config)
    assert made.shape == shape == config.input_shape(made.kind)
    return made


@pytest.mark.slow
def test_every_feed_and_view_keeps_the_shape(inputs):
    height, width, channels = inputs.shape
    rows = np.arange(6)
    for bank_views in (0, 2):
        feed = open_feed(inputs, torch.device("cpu"), bank_views)
        draws = np.random.default_rng(1).random((6, feed.n_draws), dtype=np.float32)
        for batch in (feed.clean(rows), *(getattr(feed, name)(rows, draws) for name in ("weak", "standard", "strong"))):
            assert batch.shape == (6, channels, height, width) and torch.isfinite(batch).all()
        assert feed.varied(rows, draws).shape == (6, channels, height, width)
    assert views(inputs, rows, 3).shape == (6, 3, height, width, channels)


@pytest.mark.parametrize("name", ["resnet-small", "wrn-10-1"])
def test_networks_take_the_shape(inputs, name):
    shape = NetworkShape(name=name, channels=inputs.shape[2], n_classes=5)
    network = fresh_network(shape, Runtime.create(0, "cpu")).eval()
    logits = network(torch.from_numpy(inputs.clean.take(np.arange(6))).permute(0, 3, 1, 2))
    assert logits.shape == (6, 5) and torch.isfinite(logits).all()


@pytest.mark.parametrize("name", ["scnn", "fnn", "wrn", "cntk6", "rbf", "linear"])
def test_both_kernel_paths_agree_on_the_shape(inputs, name):
    x = inputs.clean.take(np.arange(3))
    network = networks.by_name(name, block_size=1)
    fused = kernel(x, None, network)
    exact = kernel(torch.from_numpy(x).double(), None, network, backend="torch")
    np.testing.assert_allclose(fused, np.asarray(exact), rtol=2e-4, atol=2e-5)


def test_rows_that_older_versions_cached_keep_their_names():
    """Clips: the key of version 0.1. Pictures have another one since color profiles are converted."""
    assert media_key(MediaConfig(), "audio") == "audio-22b089abe4424a11"
    assert media_key(MediaConfig(), "image") == "image-f00111a877665108"
    others = [MediaConfig(clip_from="start"), MediaConfig(image_width=48)]
    assert media_key(others[0], "audio") != media_key(MediaConfig(), "audio")
    assert media_key(others[1], "image") != media_key(MediaConfig(), "image")


@pytest.mark.parametrize(("where", "first"), [("start", 0), ("center", 8_000), ("loudest", 16_000)])
def test_a_long_clip_is_cut_where_the_settings_say(where, first):
    samples = np.linspace(0.01, 0.5, 32_000, dtype=np.float32)  # the amplitude grows, so the last second is the loudest
    clip = to_clip(samples, 16_000, MediaConfig(clip_from=where))
    part = samples[first : first + 16_000]
    np.testing.assert_allclose(clip, part / part.max(), atol=1e-6)


@pytest.mark.parametrize(("where", "before"), [("start", 0), ("center", 4_000), ("loudest", 4_000)])
def test_a_short_clip_is_padded_where_the_settings_say(where, before):
    clip = to_clip(np.ones(8_000, np.float32), 16_000, MediaConfig(clip_from=where))
    assert np.flatnonzero(clip).tolist() == list(range(before, before + 8_000))


def test_windows_cover_a_long_clip_evenly():
    samples = np.arange(1, 40_001, dtype=np.float32)  # 2.5 s
    windows = to_windows(samples, 16_000, 3, MediaConfig())
    np.testing.assert_allclose(windows * np.array([[16_000], [28_000], [40_000]]), [
        samples[start : start + 16_000] for start in (0, 12_000, 24_000)
    ], rtol=1e-5)  # fmt: skip
    short = to_windows(samples[:100], 16_000, 3, MediaConfig())
    np.testing.assert_array_equal(short, np.repeat(to_clip(samples[:100], 16_000, MediaConfig())[None], 3, 0))


def test_the_mel_band_follows_the_rate_where_f_max_is_0():
    assert ULTRASOUND.f_top == 96_000 and MediaConfig(f_max=0.0).f_top == 8_000
    reader = MemoryReader(wav(tone(90_000, seconds=0.2, rate=192_000), 192_000))
    inputs = prepare(reader.hashes, reader, "audio", ULTRASOUND, MemoryRowCache())
    picture = inputs.clean.take(np.array([0]))[0, :, 16, 0]
    centers = librosa.mel_frequencies(34, fmin=20, fmax=96_000)[1:-1]
    assert abs(centers[picture.argmax()] - 90_000) < centers[-1] - centers[-3]


def test_a_fitted_picture_is_whole_with_borders_of_its_mean_color():
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, :30] = 200
    config = MediaConfig(image_size=40, image_width=60, image_fit="fit")
    picture = to_picture(decode_image(png(wide)), config)
    assert picture.shape == (40, 60, 3)
    assert (picture[:10] == 100).all() and (picture[30:] == 100).all()  # the mean of 200 and 0
    np.testing.assert_array_equal(picture[10:30], wide)


def test_a_cropped_picture_keeps_its_aspect():
    wide = np.zeros((20, 100, 3), np.uint8)
    wide[:, 35:65] = 255
    picture = to_picture(decode_image(png(wide)), MediaConfig(image_size=40, image_width=60, image_fit="crop"))
    assert picture.shape == (40, 60, 3) and picture[:, 1:-1].min() == 255  # the middle 30 columns of 20 rows are 3:2


def test_settings_outside_their_range_are_refused_with_a_message():
    for wrong, words in [
        ({"image_width": 4}, "image width of 4"),
        ({"predict_windows": 0}, "0 windows"),
        ({"f_min": 9_000.0, "f_max": 0.0}, "leave no band"),
    ]:
        with pytest.raises(InvalidInput, match=words):
            dataclasses.replace(MediaConfig(), **wrong)
