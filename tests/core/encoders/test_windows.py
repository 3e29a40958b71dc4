"""Items are cut into windows, which cover a clip, or crops of a picture; their vectors are pooled into one."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
import soundfile
from PIL import Image

from core.encoders.description import AudioInput, PictureInput
from core.encoders.predicting.standalone_predict import Model
from core.encoders.tensors import pixels_to_input, pool_positions, pool_shifts, pool_windows
from core.encoders.windows import audio_windows, picture_windows
from core.errors import InvalidInput

ANY = AudioInput(name="x", sample_rate=1_000, shortest=50, longest=300)


def ramp(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def starts(windows) -> list[int]:
    return [int(window[0]) for window in windows]


@pytest.mark.parametrize(
    ("n_samples", "expected"),
    [(40, [0]), (100, [0]), (101, [0, 1]), (150, [0, 50]), (250, [0, 50, 100, 150]), (1_000, [0, 300, 600, 900])],
)
def test_windows_cover_a_clip_from_its_start_to_its_end(n_samples, expected):
    source = AudioInput(name="x", sample_rate=1_000, window=100, hop=50, max_windows=4)
    windows = audio_windows(ramp(n_samples), 1_000, source)
    assert starts(windows) == expected
    assert {len(window) for window in windows} == {100}


def test_a_short_clip_is_followed_by_silence():
    source = AudioInput(name="x", sample_rate=1_000, window=100)
    (window,) = audio_windows(np.ones(30, np.float32), 1_000, source)
    assert window.tolist() == [1.0] * 30 + [0.0] * 70


@pytest.mark.parametrize(
    ("n_samples", "lengths"), [(20, [50]), (200, [200]), (300, [300]), (301, [151, 151]), (900, [300, 300, 300])]
)
def test_a_network_of_any_length_gets_whole_clips_or_equal_parts(n_samples, lengths):
    assert [len(window) for window in audio_windows(ramp(n_samples), 1_000, ANY)] == lengths


def test_clips_are_resampled_and_scaled_as_described():
    source = AudioInput(name="x", sample_rate=8_000, level="peak")
    (window,) = audio_windows(0.25 * np.sin(np.arange(16_000) / 20).astype(np.float32), 16_000, source)
    assert abs(len(window) - 8_000) <= 1
    assert np.abs(window).max() == pytest.approx(1.0)


@pytest.mark.parametrize(("shifts", "expected"), [(1, [10]), (2, [0, 20]), (3, [0, 10, 20])])
def test_a_clip_is_encoded_at_each_of_its_positions_in_the_margin(shifts, expected):
    source = AudioInput(name="x", sample_rate=1_000, shortest=50, longest=300, margin=20, shifts=shifts)
    windows = audio_windows(1.0 + ramp(30), 1_000, source)
    assert [int(np.flatnonzero(window)[0]) for window in windows] == expected
    for start, window in zip(expected, windows, strict=True):  # 30 samples, padded to 50, in 20 more
        assert len(window) == 70
        np.testing.assert_array_equal(window[start : start + 30], 1.0 + ramp(30))
        assert np.count_nonzero(window) == 30


def test_every_position_of_a_long_clip_has_its_own_windows():
    source = AudioInput(name="x", sample_rate=1_000, window=100, hop=50, margin=50, shifts=2)
    windows = audio_windows(1.0 + ramp(150), 1_000, source)
    assert [int(window[0]) for window in windows] == [1, 51, 101, 0, 1, 51]
    assert {len(window) for window in windows} == {100}


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("margin", "shifts"), [(0, 1), (30, 1), (41, 3)])
def test_an_exported_model_makes_the_same_windows_and_features(window, margin, shifts):
    source = AudioInput(
        name="x", sample_rate=1_000, window=window, shortest=50, longest=90, margin=margin, shifts=shifts
    )
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 170).astype(np.float32)
    file = io.BytesIO()
    soundfile.write(file, samples, 1_000, format="WAV", subtype="FLOAT")
    expected = audio_windows(samples, 1_000, source)
    model = Model.__new__(Model)  # without its networks
    model.kind, model.input, model.output = "audio", dataclasses.asdict(source), {"pooling": "mean+max"}
    found = model.clips(file.getvalue())
    assert len(found) == shifts
    np.testing.assert_array_equal(np.concatenate([one for windows in found for one in windows]), np.stack(expected))
    model.vector = lambda one: one[0, :10]
    vectors = np.stack(expected)[:, :10]
    np.testing.assert_allclose(model.features(file.getvalue()), pool_shifts(vectors, "mean+max", shifts), rtol=1e-6)


def test_a_picture_is_cropped_to_its_center_and_normalized():
    image = Image.new("RGB", (40, 20), (0, 0, 0))
    image.paste((255, 51, 0), (10, 0, 30, 20))
    source = PictureInput(name="x", size=(10, 10), range=1.0, mean=(0.5, 0.0, 0.0), std=(0.5, 0.2, 1.0))
    (pixels,) = picture_windows(image, source)
    assert pixels.shape == (10, 10, 3)
    values = pixels_to_input(pixels[None], source)
    assert values.shape == (1, 3, 10, 10)
    np.testing.assert_allclose(values[0, :, 5, 5], [1.0, 1.0, 0.0], atol=1e-6)


def test_blue_comes_first_if_the_description_says_so():
    image = Image.new("RGB", (10, 10), (10, 20, 30))
    source = PictureInput(name="x", size=(8, 8), colors="BGR", layout="NHWC")
    (pixels,) = picture_windows(image, source)
    assert pixels_to_input(pixels[None], source)[0, 0, 0].tolist() == [30.0, 20.0, 10.0]


def test_crops_cover_the_longer_side():
    image = Image.fromarray(np.repeat(np.arange(30, dtype=np.uint8)[None], 10, axis=0))
    source = PictureInput(name="x", size=(10, 10), crops=5, colors="L")
    crops = picture_windows(image, source)
    assert [int(crop[0, 0, 0]) for crop in crops] == [0, 10, 20]
    assert len(picture_windows(image, PictureInput(name="x", size=(10, 10), crops=2, colors="L"))) == 2
    assert len(picture_windows(image.crop((0, 0, 10, 10)), source)) == 1


def test_positions_and_windows_are_pooled():
    found = np.arange(24, dtype=np.float32).reshape(2, 3, 4)  # two windows of three positions
    both = pool_positions(found, 4, -1, "mean+max")
    np.testing.assert_allclose(both[0], [4, 5, 6, 7, 8, 9, 10, 11])
    item = pool_windows(both, "mean+max")
    np.testing.assert_allclose(item[:4], found.reshape(6, 4).mean(0))
    np.testing.assert_allclose(item[4:], found.reshape(6, 4).max(0))
    np.testing.assert_allclose(pool_positions(found, 4, -1, "first"), found[:, 0])
    np.testing.assert_allclose(pool_positions(found.swapaxes(1, 2)[..., None], 4, 1, "max"), found.max(1))


def test_shifts_are_averaged_after_the_windows_of_each_are_pooled():
    vectors = np.array([[0, 5], [2, 1], [4, 3], [8, 9]], np.float32)  # two shifts of two windows: mean, max
    np.testing.assert_allclose(pool_shifts(vectors, "mean+max", 2), [(1 + 6) / 2, (5 + 9) / 2])
    np.testing.assert_allclose(pool_shifts(vectors, "mean+max", 1), pool_windows(vectors, "mean+max"))
    np.testing.assert_allclose(pool_shifts(vectors[:1], "mean+max", 2), vectors[0])  # a probe has one window


def test_shifts_need_a_margin():
    with pytest.raises(InvalidInput, match="3 shifts need a margin above 0"):
        AudioInput(name="x", sample_rate=1_000, shifts=3)


def test_an_output_of_another_dimension_is_refused():
    with pytest.raises(InvalidInput, match=r"\(2, 3, 4\); its axis -1 must have the size 5"):
        pool_positions(np.zeros((2, 3, 4), np.float32), 5, -1, "mean")
    with pytest.raises(InvalidInput, match="3 positions per window"):
        pool_positions(np.zeros((2, 3, 4), np.float32), 4, -1, "none")
