"""Media settings that are derived from the measurements of a pool."""

from __future__ import annotations

import numpy as np
import pytest

from core.config import MediaConfig
from core.media.derivation import derive_media, with_length
from core.types import PoolMeasures

NONE = np.empty(0, np.int64)


def clips(seconds, rate=16_000) -> PoolMeasures:
    seconds = np.asarray(seconds, np.float64)
    return PoolMeasures(seconds=seconds, sample_rates=np.full(len(seconds), rate, np.int64), widths=NONE, heights=NONE)


def pictures(widths, heights) -> PoolMeasures:
    return PoolMeasures(
        seconds=NONE.astype(float), sample_rates=NONE, widths=np.asarray(widths), heights=np.asarray(heights)
    )


def test_the_length_is_the_95th_percentile_between_1_and_10_seconds():
    assert derive_media("audio", clips([5.0] * 1_600)).seconds == 5.0
    assert derive_media("audio", clips([0.4] * 100)).seconds == 1.0
    assert derive_media("audio", clips([3_600.0] * 3)).seconds == 10.0
    assert derive_media("audio", clips([2.0] * 99 + [60.0])).seconds == 2.0
    assert derive_media("audio", clips([2.0] * 90 + [4.23] * 10)).seconds == 4.3


@pytest.mark.parametrize("seconds", [1.0, 1.3, 2.0, 3.7, 5.0, 10.0])
@pytest.mark.parametrize("rate", [8_000, 44_100, 96_000, 192_000, 384_000])
def test_the_inputs_stay_within_twice_the_usual_number(seconds, rate):
    config = derive_media("audio", clips([seconds] * 20, rate))
    height, width, channels = config.input_shape("audio")
    assert channels == 1 and 1_000 <= height * width <= 2_048
    assert config.hop * 1.5 <= config.n_fft and config.predict_windows == 8


def test_the_inputs_of_one_second_clips_are_unchanged():
    config = derive_media("audio", clips([0.9] * 20, 8_000))
    before = MediaConfig()
    names = ("sample_rate", "seconds", "n_fft", "hop", "n_mels", "f_min", "f_max", "clip_from", "floor")
    assert [getattr(config, name) for name in names] == [getattr(before, name) for name in names]


def test_ultrasound_keeps_its_rate_and_its_band():
    config = derive_media("audio", clips([1.0] * 9, 192_000))
    assert config.sample_rate == 192_000 and config.f_top == 96_000
    assert derive_media("audio", clips([1.0] * 9, 48_000)).f_top == 8_000


def test_photographs_are_cropped_to_their_center_square():
    for widths, heights in [([320] * 9, [240] * 9), ([240] * 9, [320] * 9), ([320, 240] * 9, [240, 320] * 9)]:
        config = derive_media("image", pictures(widths, heights))
        assert (config.picture_size, config.image_fit, config.flip) == ((32, 32), "crop", False)
        assert config.patches == 400


def test_long_and_small_pictures_are_kept_whole():
    for side, long in [(28, 28), (32, 32), (20, 30_000), (200, 401)]:
        for widths, heights in [([long] * 9, [side] * 9), ([side] * 9, [long] * 9)]:
            config = derive_media("image", pictures(widths, heights))
            assert (config.picture_size, config.image_fit, config.patches) == ((32, 32), "stretch", 0)
    assert derive_media("image", pictures([400] * 9 + [900], [200] * 10)).image_fit == "stretch"
    assert derive_media("image", pictures([400] * 99 + [900], [200] * 100)).image_fit == "crop"


def test_a_pool_without_measures_has_the_defaults():
    assert derive_media("audio", clips([])) == MediaConfig(channels=1)
    assert derive_media("image", clips([])) == MediaConfig(channels=3)


def test_another_length_changes_hop_and_window():
    config = with_length(MediaConfig(), 5.0)
    assert (config.n_frames, config.hop, config.n_fft) == (63, 1_270, 2_048)
