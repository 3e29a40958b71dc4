"""Colors follow the ICC profile of a picture, for people, the model and an exported model."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from core.config import MediaConfig
from core.learning.standalone_predict import prepare_picture
from core.media.images import decode_image, picture_notes, to_picture
from core.media.preprocessing import describe_preprocessing
from tests.core.media.color_profiles import WIDE, gray_profile, rgb_profile, to_srgb_by_hand

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype(np.uint8)


def png(pixels: np.ndarray | Image.Image, profile: bytes, **options: Any) -> bytes:
    out = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(out, "PNG", icc_profile=profile, **options)
    return out.getvalue()


def test_colors_of_a_wide_gamut_are_converted_to_srgb():
    data = png(PIXELS, rgb_profile(WIDE, 1.8))
    found = np.asarray(decode_image(data)).astype(int)
    expected = to_srgb_by_hand(PIXELS, WIDE, 1.8)
    assert np.abs(found - expected).mean() < 1.5
    middle = (expected > 40).all(2) & (expected < 250).all(2)  # in the gamut of sRGB, where nothing is clipped
    assert middle.sum() > 50 and np.abs(found - expected)[middle].max() <= 3
    assert np.abs(found - PIXELS).mean() > 20  # what was shown before
    assert picture_notes(data) == ["Its colors are converted to sRGB by its color profile."]


def test_gray_stays_gray_and_follows_its_curve():
    gray = PIXELS[:, :, 0]
    found = decode_image(png(gray, gray_profile(1.0)))
    assert found.mode == "L"
    linear = gray / 255.0
    expected = 255 * np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    difference = np.abs(np.asarray(found) - expected)
    assert difference[gray >= 16].max() <= 2 and difference.max() <= 10  # the curve is steep in the dark


def test_transparency_is_kept_by_the_conversion():
    pixels = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)])
    pixels[:, 16:, 3] = 0
    found = np.asarray(decode_image(png(pixels, rgb_profile(WIDE, 1.8))))
    opaque = np.asarray(decode_image(png(PIXELS, rgb_profile(WIDE, 1.8))))
    np.testing.assert_array_equal(found[:, :16], opaque[:, :16])
    assert (found[:, 16:] == 255).all()


@pytest.mark.parametrize("profile", [b"", b"no profile", rgb_profile(WIDE, 1.8)[:300], gray_profile(1.8)])
def test_a_profile_that_cannot_be_applied_changes_nothing(profile):
    np.testing.assert_array_equal(np.asarray(decode_image(png(PIXELS, profile))), PIXELS)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_an_exported_model_reads_the_same_values(mode):
    config = MediaConfig(image_size=20, channels=1 if mode == "L" else 3)
    image = Image.fromarray(PIXELS).convert(mode)
    data = png(image, gray_profile(1.4) if mode == "L" else rgb_profile(WIDE, 1.8))
    described = describe_preprocessing("image", config, [0.5] * config.channels, [0.25] * config.channels)
    steps = {step["step"]: step for step in described["outside"]}
    np.testing.assert_array_equal(prepare_picture(data, steps), to_picture(decode_image(data), config))
