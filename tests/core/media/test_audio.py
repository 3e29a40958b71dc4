"""Audio: the type is determined by content, sizes are limited, and clips get one length."""

from __future__ import annotations

import struct

import librosa
import numpy as np
import pytest
import torch

from core.config import MediaConfig
from core.errors import InvalidInput
from core.media.audio import decode_audio, loudest_stretch, to_clip
from core.media.mel import log_mel, mel_power, n_frames
from tests.core.media.samples import tone, wav


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3"])
def test_the_four_formats_decode_to_the_same_tone(format):
    samples, rate = decode_audio(wav(tone(seconds=1.0), format=format))
    assert rate == 16_000
    spectrum = np.abs(np.fft.rfft(samples[:16_000]))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_stereo_becomes_the_mean_of_its_channels():
    stereo = np.stack([tone(), np.zeros_like(tone())], 1)
    samples, _ = decode_audio(wav(stereo, subtype="FLOAT"))
    np.testing.assert_allclose(samples, tone() / 2, atol=1e-6)


@pytest.mark.parametrize("magic", [b"MATLAB 5.0 MAT-file", b".snd\0\0\0\x18", b"Creative Voice File\x1a", b"\x7fELF"])
def test_other_formats_are_refused_by_their_first_bytes(magic):
    """Formats that libsndfile could open are refused before libsndfile is called."""
    with pytest.raises(InvalidInput, match="first bytes"):
        decode_audio(magic + bytes(200))


def test_a_wave_file_with_an_invalid_rate_or_too_many_channels_is_refused():
    data = bytearray(wav(tone()))
    data[24:28] = struct.pack("<I", 1)
    with pytest.raises(InvalidInput, match="1 Hz"):
        decode_audio(bytes(data))
    with pytest.raises(InvalidInput, match="9 channels"):
        decode_audio(wav(np.zeros((100, 9), np.float32)))


@pytest.mark.parametrize("samples, reason", [(np.zeros(0), "no samples"), (np.full(100, np.nan), "not numbers")])
def test_empty_audio_and_values_that_are_not_numbers_are_refused(samples, reason):
    with pytest.raises(InvalidInput, match=reason):
        decode_audio(wav(samples.astype(np.float32), subtype="FLOAT"))


def test_damaged_files_are_refused_or_decoded_but_never_crash():
    whole = wav(tone(), format="FLAC")
    rng = np.random.default_rng(0)
    for offset in rng.integers(4, len(whole), 40):
        damaged = bytearray(whole)
        damaged[offset] ^= 0xFF
        for data in (bytes(damaged), whole[:offset]):
            try:
                samples, _ = decode_audio(data)
            except InvalidInput:
                continue
            assert np.isfinite(samples).all()


def test_short_audio_is_centered_in_silence_and_long_audio_keeps_its_loudest_second():
    config = MediaConfig()
    clip = to_clip(tone(seconds=0.25), 16_000, config)
    assert clip.shape == (16_000,)
    assert not clip[:5_999].any() and not clip[10_001:].any() and clip[6_000:10_000].any()
    long = np.concatenate([0.01 * tone(seconds=2), tone(seconds=0.5), 0.01 * tone(seconds=2)])
    kept = to_clip(long, 16_000, config)
    assert np.sum(kept**2) == pytest.approx(np.sum((long / 0.5) ** 2), rel=0.01)
    assert loudest_stretch(np.array([0, 0, 1, 2, 0, 0], np.float32), 2) == 2


def test_resampling_keeps_the_pitch():
    clip = to_clip(tone(rate=8_000, seconds=1.0), 8_000, MediaConfig())
    assert abs(int(np.abs(np.fft.rfft(clip)).argmax()) - 440) <= 1


@pytest.mark.slow
def test_the_mel_of_torchaudio_is_the_mel_of_librosa():
    config = MediaConfig()
    samples = np.random.default_rng(1).standard_normal(16_000).astype(np.float32)
    ours = mel_power(torch.from_numpy(samples)[None], config)[0].numpy()
    theirs = librosa.feature.melspectrogram(
        y=samples, sr=16_000, n_fft=config.n_fft, hop_length=config.hop, n_mels=config.n_mels,
        fmin=config.f_min, fmax=config.f_max, power=2.0, pad_mode="constant",
    )  # fmt: skip
    assert ours.shape == (32, 32) == (config.n_mels, n_frames(config))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-7)


def test_the_picture_does_not_depend_on_the_level_and_silence_is_the_floor():
    config = MediaConfig()
    samples = torch.from_numpy(to_clip(tone(), 16_000, config))[None]
    torch.testing.assert_close(log_mel(samples, config), log_mel(0.05 * samples, config), atol=1e-3, rtol=0)
    assert log_mel(samples, config).max() == pytest.approx(1.5)
    assert (log_mel(torch.zeros(1, 16_000), config) == -1.5).all()


def test_other_lengths_and_sizes_are_settings():
    config = MediaConfig(sample_rate=8_000, seconds=2.5, n_fft=512, hop=128, n_mels=40, f_max=4_000)
    clip = to_clip(tone(rate=8_000), 8_000, config)
    assert log_mel(torch.from_numpy(clip)[None], config).shape == (1, 40, n_frames(config)) == (1, 40, 157)


def test_one_channel_can_be_chosen_and_files_with_fewer_are_mixed():
    values = np.stack([tone(seconds=0.5), -0.5 * tone(seconds=0.5), np.zeros(len(tone(seconds=0.5)))], axis=1)
    data = wav(values.astype(np.float32), subtype="FLOAT")
    for channel in (1, 2, 3):
        np.testing.assert_array_equal(decode_audio(data, channel=channel)[0], values[:, channel - 1].astype(np.float32))
    mixed = decode_audio(data)[0]
    np.testing.assert_allclose(mixed, values.mean(1), atol=1e-7)
    np.testing.assert_array_equal(decode_audio(data, channel=4)[0], mixed)
