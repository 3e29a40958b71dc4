"""Augmentation against hand computation, numpy and librosa on known signals."""

from __future__ import annotations

from itertools import pairwise

import librosa
import numpy as np
import pytest
import torch

from core.config import AugmentationConfig, MediaConfig
from core.errors import InvalidInput
from core.media.augment_audio import (
    add_noise,
    augment_waveforms,
    move_in_time,
    pick_noise,
    view_pictures,
    warp_pictures,
)
from core.media.augment_images import (
    crop_and_jitter,
    distort,
    jitter_colors,
    mask_rectangle,
    rotate_hue,
    shift_and_flip,
)
from core.media.mel import log_mel
from core.media.noise import colored_noise, noise_clips, noise_key
from tests.core.media.samples import tone, wav

ONE = torch.ones(1)


def test_a_shifted_click_is_at_the_expected_sample():
    click = torch.zeros(1, 1_000)
    click[0, 500] = 1
    moved = move_in_time(click, ONE, torch.tensor([120.0]))
    assert moved[0].argmax() == 620 and moved[0, 620] == pytest.approx(1, abs=1e-2)
    gone = move_in_time(click, ONE, torch.tensor([600.0]))
    assert gone.abs().max() == 0


def test_speed_is_interpolation_about_the_center_as_numpy_has_it():
    x = np.random.default_rng(0).standard_normal(801).astype(np.float32)
    moved = move_in_time(torch.from_numpy(x)[None], torch.tensor([1.2]), torch.zeros(1))[0].numpy()
    source = 400 + 1.2 * (np.arange(801) - 400)
    expected = np.interp(source, np.arange(801), x)
    inside = (source >= 0) & (source <= 800)
    np.testing.assert_allclose(moved[inside], expected[inside], atol=2e-3)
    assert np.abs(moved[(source < -1) | (source > 801)]).max() == 0


@pytest.mark.slow
def test_speed_raises_the_pitch_in_librosas_spectrogram():
    x = torch.from_numpy(tone(400, seconds=1.0))[None]
    fast = move_in_time(x, torch.tensor([1.25]), torch.zeros(1))[0].numpy()
    loudest = np.abs(librosa.stft(fast, n_fft=4096)).mean(1).argmax()
    assert librosa.fft_frequencies(sr=16_000, n_fft=4096)[loudest] == pytest.approx(500, abs=5)


@pytest.mark.parametrize("snr", [0.0, 13.0, 40.0])
def test_noise_has_the_requested_signal_to_noise_ratio(snr):
    x = torch.from_numpy(tone())[None]
    noise = torch.from_numpy(colored_noise(1.0, x.shape[1], np.random.default_rng(0)))[None]
    added = add_noise(x, noise, torch.tensor([snr])) - x
    assert 10 * torch.log10(x.square().sum() / added.square().sum()) == pytest.approx(snr, abs=1e-3)


def test_silence_stays_silent_under_noise():
    assert add_noise(torch.zeros(1, 100), torch.ones(1, 100), torch.zeros(1)).abs().max() == 0


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_noise_has_its_color(exponent):
    noise = colored_noise(exponent, 2**17, np.random.default_rng(0))
    power = np.abs(np.fft.rfft(noise)) ** 2
    frequency = np.arange(len(power))
    bins = np.geomspace(20, len(power) // 2, 20).astype(int)
    levels = [power[a:b].mean() for a, b in pairwise(bins)]
    centers = [frequency[a:b].mean() for a, b in pairwise(bins)]
    slope = np.polyfit(np.log(centers), np.log(levels), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.1)
    assert np.mean(noise**2) == pytest.approx(1, rel=1e-3)


def test_a_folder_of_noise_replaces_the_generated_noise(tmp_path):
    (tmp_path / "hum.wav").write_bytes(wav(tone(50, seconds=3.0)))
    config = MediaConfig(noise_folder=str(tmp_path))
    clips = noise_clips(config)
    assert clips.shape == (1, 160_000) and np.abs(np.fft.rfft(clips[0])).argmax() == pytest.approx(500, abs=2)
    assert noise_key(config) != noise_key(MediaConfig())
    with pytest.raises(InvalidInput, match="does not exist"):
        noise_clips(MediaConfig(noise_folder=str(tmp_path / "none")))


def test_each_augmentation_has_probability_one_half_and_its_range():
    config = MediaConfig(seconds=0.25)
    x = torch.from_numpy(np.pad(tone(seconds=0.05), (1_600, 1_600)))[None].repeat(400, 1)
    draws = torch.from_numpy(np.random.default_rng(0).random((400, 10), dtype=np.float32))
    noise = torch.from_numpy(noise_clips(config))
    made = augment_waveforms(x, draws, noise, config)
    untouched = (draws[:, [0, 2, 4, 6]] >= 0.5).all(1)
    assert untouched.float().mean() == pytest.approx(1 / 16, abs=0.04)
    torch.testing.assert_close(made[untouched], x[untouched], atol=5e-3, rtol=0)
    only_amplitude = (draws[:, 0] < 0.5) & (draws[:, [2, 4, 6]] >= 0.5).all(1)
    gain = made[only_amplitude].abs().amax(1) / x[only_amplitude].abs().amax(1)
    torch.testing.assert_close(gain, 0.8 + 0.4 * draws[only_amplitude, 1], atol=5e-3, rtol=0)


def test_a_result_does_not_depend_on_the_rest_of_the_batch():
    config = MediaConfig()
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((6, 16_000)).astype(np.float32))
    draws = torch.from_numpy(rng.random((6, 10), dtype=np.float32))
    noise = torch.from_numpy(noise_clips(config))
    together = augment_waveforms(x, draws, noise, config)
    alone = augment_waveforms(x[2:3], draws[2:3], noise, config)
    torch.testing.assert_close(together[2:3], alone)
    assert pick_noise(noise, draws[:, 8:], 100).shape == (6, 100)


def test_no_warp_is_no_change_and_a_warp_keeps_silence():
    pictures = torch.from_numpy(np.random.default_rng(0).uniform(-1.5, 1.5, (4, 1, 32, 32)).astype(np.float32))
    draws = torch.from_numpy(np.random.default_rng(1).random((4, 8), dtype=np.float32))
    torch.testing.assert_close(warp_pictures(pictures, draws, 0.0), pictures, atol=1e-5, rtol=0)
    assert (warp_pictures(torch.full((4, 1, 32, 32), -1.5), draws, 1.0) == -1.5).all()
    assert (warp_pictures(pictures, draws, 1.0) - pictures).abs().max() > 0.1


def test_pictures_shift_by_whole_pixels_mirrored_at_the_border_as_numpy_pads():
    picture = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    padded = np.pad(picture, ((0, 0), (0, 0), (4, 4), (4, 4)), mode="reflect")
    draws = torch.tensor([[0.95, 0.0, 0.9]])  # 4 down, 4 left
    moved = shift_and_flip(torch.from_numpy(picture), draws, flip=False).numpy()
    np.testing.assert_array_equal(moved, padded[:, :, 0:32, 8:40])
    flipped = shift_and_flip(torch.from_numpy(picture), torch.tensor([[0.5, 0.5, 0.1]]), flip=True).numpy()
    np.testing.assert_array_equal(flipped, picture[..., ::-1])


def test_the_neutral_distortion_changes_nothing_and_a_rectangle_is_hidden():
    picture = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32))
    neutral = torch.full((2, 16), 0.5)
    neutral[:, [10, 12]] = 0  # a rectangle without extent
    torch.testing.assert_close(distort(picture, neutral), picture, atol=2e-3, rtol=0)
    hidden = mask_rectangle(torch.ones(1, 1, 20, 20), torch.tensor([[0.0, 1.0, 0.0, 0.5]]), widest=0.5)
    assert hidden.sum() == 400 - 10 * 5


NEUTRAL = torch.tensor([[0.999999, 0.5, 0.9, 0.5, 0.5, 0.9, 0.5, 0.5, 0.5, 0.5, 0.9]])  # the whole, in its own colors


def test_a_varied_picture_is_a_part_of_it_as_resizing_has_it():
    picture = torch.from_numpy(np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32))
    torch.testing.assert_close(crop_and_jitter(picture, NEUTRAL, flip=False), picture, atol=1e-3, rtol=0)
    flipped = crop_and_jitter(picture, NEUTRAL * torch.tensor([1, 1, 0] + 8 * [1]), flip=True)
    torch.testing.assert_close(flipped, picture.flip(3), atol=1e-3, rtol=0)
    quarter = NEUTRAL.clone()
    quarter[0, 0], quarter[0, 3], quarter[0, 4] = 0.0625, 0.0, 0.0  # a quarter of the area, upper left
    found = crop_and_jitter(picture, quarter, flip=False)
    resized = torch.nn.functional.interpolate(picture[:, :, :16, :16], size=(32, 32), mode="bilinear")
    inner = slice(2, 30)  # the outermost pixels look beyond the part
    torch.testing.assert_close(found[:, :, inner, inner], resized[:, :, inner, inner], atol=2e-3, rtol=0)


def test_other_colors_are_what_their_draws_say():
    picture = torch.from_numpy(np.random.default_rng(0).uniform(0.3, 0.6, (1, 3, 8, 8)).astype(np.float32))
    torch.testing.assert_close(jitter_colors(picture, NEUTRAL[:, 5:]), picture)
    dark = jitter_colors(picture, torch.tensor([[0.0, 0.25, 0.5, 0.5, 0.5, 0.9]]))
    torch.testing.assert_close(dark, 0.8 * picture)
    gray = jitter_colors(picture, torch.tensor([[0.0, 0.5, 0.5, 0.5, 0.5, 0.1]]))
    luma = 0.299 * picture[:, 0] + 0.587 * picture[:, 1] + 0.114 * picture[:, 2]
    torch.testing.assert_close(gray, luma[:, None].expand(-1, 3, -1, -1))
    assert jitter_colors(picture, torch.tensor([[0.9, 0.0, 0.0, 0.0, 0.0, 0.9]])).equal(picture), "unchanged"
    single = jitter_colors(picture[:, :1], torch.tensor([[0.0, 0.25, 0.5, 0.9, 0.9, 0.1]]))
    torch.testing.assert_close(single, 0.8 * picture[:, :1])


def test_a_third_of_the_circle_of_hues_exchanges_the_colors():
    picture = torch.from_numpy(np.random.default_rng(0).random((1, 3, 4, 4), dtype=np.float32))
    turned = rotate_hue(picture, torch.tensor([2 * np.pi / 3], dtype=torch.float32))
    torch.testing.assert_close(turned, picture.roll(1, dims=1))
    gray = picture[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(rotate_hue(gray, torch.tensor([0.4])), gray)


def test_a_varied_picture_does_not_depend_on_the_rest_of_the_batch():
    rng = np.random.default_rng(2)
    pictures = torch.from_numpy(rng.random((5, 3, 16, 16), dtype=np.float32))
    draws = torch.from_numpy(rng.random((5, 11), dtype=np.float32))
    together = crop_and_jitter(pictures, draws, flip=True)
    torch.testing.assert_close(together[3:4], crop_and_jitter(pictures[3:4], draws[3:4], flip=True))
    assert float(together.min()) >= 0 and float(together.max()) <= 1


def test_amplitude_is_visible_in_a_view_only_when_the_level_is_kept():
    config, noise = MediaConfig(), torch.zeros(1, 32_000)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 16_000)).astype(np.float32))
    draws = torch.full((1, 10), 0.999)
    draws[0, :2] = torch.tensor([0.0, 1.0])  # amplitude alone, times 1.2
    plain = log_mel(x, config)
    normalized, kept = (
        view_pictures(x, draws, noise, config, AugmentationConfig(level=level)) for level in ("normalized", "kept")
    )
    torch.testing.assert_close(normalized, plain, atol=2e-3, rtol=0)
    sounding = plain > -1.4
    expected = np.log10(1.2**2) / (-config.floor / 3)  # power is the square of amplitude
    torch.testing.assert_close(kept[sounding], plain[sounding] + expected, atol=2e-3, rtol=0)


def test_the_ranges_of_the_augmentation_are_settings():
    config = MediaConfig()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((3, 16_000)).astype(np.float32))
    draws = torch.rand(3, 10, generator=torch.Generator().manual_seed(0))
    noise = torch.from_numpy(noise_clips(config))
    never = augment_waveforms(x, draws, noise, config, AugmentationConfig(probability=0.0))
    torch.testing.assert_close(never, x, atol=1e-2, rtol=0)
    still = AugmentationConfig(probability=1.0, amplitude=0.0, speed=0.0, shift_seconds=0.0, snr_low=20, snr_high=20)
    noisy = augment_waveforms(x, draws, noise, config, still)
    ratio = x.square().mean(1) / (noisy - x).square().mean(1)
    torch.testing.assert_close(10 * ratio.log10(), torch.full((3,), 20.0), atol=0.2, rtol=0)
