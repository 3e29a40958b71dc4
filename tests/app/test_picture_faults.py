"""Unusual pictures: each is imported, shown to people and learned as the same picture, with a sentence where the file
holds more than that."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageCms

from app.views.previews import drawing as previews
from core.config import MediaConfig
from core.limits import Limits
from core.media.images import decode_image, picture_notes, to_picture
from storage.media.probe import examine
from tests.core.media.color_profiles import WIDE, rgb_profile

RNG = np.random.default_rng(0)


def saved(image: Image.Image, format: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def panorama() -> bytes:
    return saved(Image.fromarray(np.tile(np.linspace(0, 255, 30_000).astype(np.uint8), (20, 1))), "PNG")


def gray16() -> bytes:
    return saved(Image.fromarray(np.linspace(0, 65_535, 1_200).astype(np.uint16).reshape(30, 40)), "PNG")


def cmyk() -> bytes:
    ink = np.zeros((30, 40, 4), np.uint8)
    ink[:, :20, 1:3] = 255  # magenta and yellow: red
    ink[:, 20:, 0] = 255  # cyan
    return saved(Image.fromarray(ink, "CMYK"), "JPEG", quality=95)


def on_its_side() -> bytes:
    """Stored 40 wide and 30 high with a bright upper half, with a clockwise orientation: shown with a bright right
    half."""
    pixels = np.zeros((30, 40), np.uint8)
    pixels[:15] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.fromarray(pixels), "JPEG", exif=exif, quality=95)


def animated() -> bytes:
    frames = [Image.new("RGB", (40, 30), color) for color in ("red", "green", "blue")]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def with_alpha() -> bytes:
    pixels = np.zeros((30, 40, 4), np.uint8)
    pixels[:, :20] = (0, 0, 255, 255)
    pixels[:, 20:] = (0, 0, 0, 0)  # black, but invisible
    return saved(Image.fromarray(pixels), "PNG")


def palette_with_alpha() -> bytes:
    image = Image.fromarray((np.arange(1_200).reshape(30, 40) // 600).astype(np.uint8)).convert("P")
    image.putpalette([0, 0, 0, 200, 30, 30] + [0] * 762)
    return saved(image, "PNG", transparency=0)


def with_profile() -> bytes:
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes())
    return saved(Image.fromarray(RNG.integers(0, 255, (30, 40, 3)).astype(np.uint8)), "PNG", icc_profile=bytes(profile))


def wide_gamut() -> bytes:
    pixels = RNG.integers(0, 255, (30, 40, 4)).astype(np.uint8)
    return saved(Image.fromarray(pixels), "PNG", icc_profile=rgb_profile(WIDE, 1.8))


def with_srgb() -> bytes:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return saved(Image.new("RGB", (40, 30)), "PNG", icc_profile=profile)


CASES = {
    "panorama": (panorama, (30_000, 20), ["Its longer side is 1,500 times the shorter one"]),
    "16-bit gray": (gray16, (40, 30), ["upper 8 of 16 bits"]),
    "CMYK": (cmyk, (40, 30), ["CMYK colors are converted to RGB"]),
    "on its side": (on_its_side, (30, 40), ["turned upright"]),
    "animated": (animated, (40, 30), ["Only the first of its 3 frames is used."]),
    "alpha": (with_alpha, (40, 30), ["transparent parts are white"]),
    "palette with alpha": (palette_with_alpha, (40, 30), ["transparent parts are white"]),
    "profile": (with_profile, (40, 30), ["color profile is ignored"]),
    "wide gamut": (wide_gamut, (40, 30), ["transparent parts are white", "converted to sRGB by its color profile"]),
    "sRGB profile": (with_srgb, (40, 30), []),
}


@pytest.mark.parametrize("name", CASES)
def test_import_display_and_rounds_agree_and_a_message_says_what_differs(name):
    make, size, words = CASES[name]
    data = make()
    found = examine(data, Limits())
    assert (found.status, (found.width, found.height)) == ("ok", size)
    notes = picture_notes(data)
    assert len(notes) == len(words) and all(word in note for word, note in zip(words, notes, strict=True))
    assert json.loads(previews.draw(data, "image", "notes.json")) == notes
    learned = decode_image(data)
    assert learned.size == size
    if max(size) <= previews.PICTURE_SIDE:
        shown = Image.open(io.BytesIO(previews.draw(data, "image", "picture.png")))
        np.testing.assert_array_equal(np.asarray(shown.convert("RGB")), np.asarray(learned.convert("RGB")))
    for part in ("thumb.png", "picture.png"):
        drawn = Image.open(io.BytesIO(previews.draw(data, "image", part)))
        assert min(drawn.size) >= 1 and max(drawn.size) <= previews.PICTURE_SIDE


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("fit", ["stretch", "crop", "fit"])
def test_every_fit_gives_an_input_of_the_size(name, fit):
    config = MediaConfig(image_size=39, image_width=52, image_fit=fit)
    assert to_picture(decode_image(CASES[name][0]()), config).shape == (39, 52, 3)


def test_colors_and_directions_are_right():
    red_and_cyan = np.asarray(decode_image(cmyk())).astype(int)
    assert (
        np.abs(red_and_cyan[15, 8] - (255, 0, 0)).max() < 12 and np.abs(red_and_cyan[15, 32] - (0, 255, 255)).max() < 12
    )
    upright = np.asarray(decode_image(on_its_side()))
    assert upright[:, 18:].mean() > 245 and upright[:, :12].mean() < 10
    assert np.abs(np.asarray(decode_image(animated()))[0, 0].astype(int) - (255, 0, 0)).max() <= 1
    assert np.asarray(decode_image(with_alpha()))[0, [0, 39]].tolist() == [[0, 0, 255], [255, 255, 255]]
    ramp = to_picture(decode_image(panorama()), MediaConfig())[0, :, 0].astype(int)
    assert (np.diff(ramp) > 0).all()  # a panorama keeps its order from left to right
