"""Drawings compared with independent references: pure tones, scipy's STFT, a clip read in one piece."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from PIL import Image
from scipy.signal import stft

from app.views.previews import drawing as previews
from core.media import audio


def wav(samples, rate=16_000):
    out = io.BytesIO()
    soundfile.write(out, np.asarray(samples, np.float32), rate, format="WAV", subtype="FLOAT")
    return out.getvalue()


@pytest.mark.parametrize(
    ("rate", "hertz"), [(16_000, 1000), (16_000, 6500), (8_000, 3000), (44_100, 440), (44_100, 9000)]
)
def test_a_tone_is_drawn_where_the_frequency_axis_shows_it(rate, hertz):
    t = np.arange(rate) / rate
    sound = previews.analyze(wav(0.5 * np.sin(2 * np.pi * hertz * t), rate))
    row = int(sound.decibels[:, sound.decibels.shape[1] // 2].argmax())
    height = 1 - (row + 0.5) / previews.N_ROWS
    assert height == pytest.approx(float(previews.scale(rate)(np.array(float(hertz)))), abs=0.012)


def test_the_spectrogram_agrees_with_scipy():
    """The drawing's column at each hop against scipy's STFT with the same window, in decibels below the maximum."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal(16_000).astype(np.float32) * np.linspace(0.1, 1, 16_000).astype(np.float32)
    sound = previews.analyze(wav(samples))
    _, _, other = stft(samples, nperseg=1024, noverlap=1024 - 64, window="hann", boundary="zeros", padded=True)
    reference = 20 * np.log10(np.maximum(np.abs(other), 1e-12) / np.abs(other).max())
    bins = np.linspace(0, 512, previews.N_ROWS + 1)
    for row in (40, 160, 300):
        low, high = bins[previews.N_ROWS - 1 - row], bins[previews.N_ROWS - row]
        expected = reference[int(low) : int(np.ceil(high)) + 1].max(0)[: sound.decibels.shape[1]]
        assert np.allclose(sound.decibels[row][10:-20], expected[10 : len(sound.decibels[row]) - 20], atol=0.2)


def test_reading_in_blocks_draws_the_same_as_a_short_clip_would(monkeypatch):
    samples = np.random.default_rng(1).standard_normal(60_000)
    whole = previews.analyze(wav(samples))
    monkeypatch.setattr(audio, "BLOCK_SAMPLES", 777)
    monkeypatch.setattr(previews, "KEPT_SAMPLES", 10_000)
    pieces = previews.analyze(wav(samples))
    assert np.array_equal(whole.decibels, pieces.decibels) and np.array_equal(whole.peaks, pieces.peaks)


@pytest.mark.parametrize("samples", [[0.0], np.zeros(5000), [np.nan, np.inf, 0.5] * 200, np.ones((3000, 2))])
def test_silence_tiny_stereo_and_broken_samples_are_drawn(samples):
    sound = previews.analyze(wav(samples))
    assert np.all(np.isfinite(sound.decibels)) and np.all(np.isfinite(sound.peaks))
    assert Image.open(io.BytesIO(previews.spectrogram_png(sound))).size == (900, 320)


def test_a_long_clip_has_bounded_columns_and_peaks_in_the_right_place():
    samples = np.zeros(16_000 * 60, np.float32)
    samples[16_000 * 30] = 1.0
    sound = previews.analyze(wav(samples))
    assert sound.decibels.shape == (previews.N_ROWS, 900) and sound.seconds == 60
    assert int(sound.peaks.argmax()) == previews.N_PEAKS // 2


def test_the_colors_are_magma():
    """Against matplotlib's table, which comes with umap's plotting stack when it is installed."""
    colormaps = pytest.importorskip("matplotlib").colormaps
    reference = np.array([colormaps["magma"](i)[:3] for i in range(256)]) * 255
    assert np.abs(previews.magma() - reference).max() < 12


def test_pictures_are_upright_within_bounds_and_without_metadata():
    image = Image.new("RGB", (3000, 1000), "red")
    exif = image.getexif()
    exif[0x0112] = 6
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif)
    drawn = Image.open(io.BytesIO(previews.image_png(out.getvalue(), (600, 600))))
    assert drawn.size == (200, 600) and not drawn.getexif()


def test_frequency_marks_are_round_and_within_the_axis():
    assert [tick["text"] for tick in previews.ticks(16_000)] == ["0", "2 kHz", "4 kHz", "6 kHz", "8 kHz"]
    for rate in (8_000, 11_025, 22_050, 44_100, 48_000, 192_000):
        marks = previews.ticks(rate)
        assert 3 <= len(marks) <= 8 and all(0 <= mark["height"] <= 1 for mark in marks)
