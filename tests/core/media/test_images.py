"""Images: an allow-list of formats, a limit on pixels, upright, one size."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from core.config import MediaConfig
from core.errors import InvalidInput
from core.limits import Limits
from core.media.images import decode_image, to_picture
from tests.core.media.samples import png


def test_exif_orientation_is_applied_once():
    left_bright = np.zeros((40, 20), np.uint8)
    left_bright[:20] = 255  # stored with the bright half on top, to be turned by 90 degrees clockwise
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(left_bright).save(file, format="JPEG", exif=exif)
    upright = np.asarray(decode_image(file.getvalue()))
    assert upright.shape == (20, 40)
    assert upright[:, 25:].mean() > 250 and upright[:, :15].mean() < 5


@pytest.mark.parametrize("data", [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"<html>", b"\x7fELF" + bytes(99), b""])
def test_what_is_not_a_picture_is_refused(data):
    """HTML, SVG, a program and an empty file."""
    with pytest.raises(InvalidInput):
        decode_image(data)


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded():
    with pytest.raises(InvalidInput, match="10 x 10"):
        decode_image(png(np.zeros((10, 10))), Limits(max_pixels=99))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_damaged_pictures_are_refused_or_decoded_but_never_crash(format):
    """Cut off, or with one byte inverted, at 100 random offsets."""
    rng = np.random.default_rng(3)
    whole = png(rng.integers(0, 255, (48, 48, 3)), format=format)
    for offset in rng.integers(2, len(whole), 100):
        damaged = bytearray(whole)
        damaged[offset] ^= 0xFF
        for data in (bytes(damaged), whole[:offset]):
            try:
                picture = to_picture(decode_image(data), MediaConfig())
            except InvalidInput:
                continue
            assert picture.shape == (32, 32, 3)


def test_transparent_parts_are_white_and_deep_pixels_keep_their_brightness():
    clear = np.zeros((8, 8, 4), np.uint8)
    assert np.asarray(decode_image(png(clear))).min() == 255
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file, format="PNG")
    assert np.asarray(decode_image(file.getvalue())).max() == 40_000 >> 8


def test_gray_or_color_and_the_way_to_a_square_are_settings():
    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, 32:64, 0] = 255
    image = decode_image(png(wide))
    stretched = to_picture(image, MediaConfig())
    cropped = to_picture(image, MediaConfig(image_fit="crop"))
    gray = to_picture(image, MediaConfig(channels=1, image_size=16))
    assert stretched[16, :, 0].mean() == pytest.approx(85, abs=4)
    assert cropped[:, :, 0].min() >= 250
    assert gray.shape == (16, 16, 1)
