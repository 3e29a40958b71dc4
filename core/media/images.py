"""Image bytes -> an array of fixed size, upright (EXIF orientation applied once).

Formats are an allow-list, and the number of pixels is checked before anything is decoded (`core.limits`). Deep pictures
become 8 bits, colors sRGB by their ICC profile, and transparent parts white with `plain`. The display uses it too:
people and the model see the same picture. `picture_notes` describes what these steps change in a file.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from core.config import MediaConfig
from core.errors import InvalidInput
from core.limits import Limits, current_limits, pixels_problem, tiff_problem

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")
TRANSPARENT = ("RGBA", "LA", "PA", "La", "RGBa")  # modes
GRAY = ("1", "L")
PROFILED = {"L": "L", "RGB": "RGB", "RGBA": "RGB", "P": "RGB", "CMYK": "CMYK"}  # mode -> mode that a profile describes
MOST_PROFILE_BYTES = 8 << 20  # profiles for printing take up to 3 MB
VERY_LONG = 10  # ratio of the sides


def decode_image(data: bytes, limits: Limits | None = None) -> Image.Image:
    """The first frame, upright, in mode L or RGB (transparent parts on white). InvalidInput with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual metadata, which does not matter here
            image = open_image(data, limits or current_limits())
            image.load()
            return plain(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise InvalidInput(f"Not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image.") from error
    except (OSError, SyntaxError, ValueError, IndexError, TypeError, KeyError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"The image cannot be decoded: {error}") from error


def open_image(data: bytes, limits: Limits) -> Image.Image:
    """The picture with its header read and nothing decoded; refused when it has too many pixels."""
    Image.MAX_IMAGE_PIXELS = None  # `limits` decides, before decoding
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    problem = pixels_problem(image.width, image.height, limits)
    if problem is None and isinstance(image, TiffImageFile):
        problem = tiff_problem(image.tag_v2)
    if problem is not None:
        raise InvalidInput(problem)
    return image


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Gray of 16 or 32 bits per pixel becomes its upper 8 of 16 bits; other pictures are returned as they are."""
    if not image.mode.startswith("I"):
        return image
    deep = np.asarray(image).astype(np.int64)
    return Image.fromarray((deep >> 8).clip(0, 255).astype(np.uint8))


def to_srgb(image: Image.Image) -> Image.Image:
    """The picture with its colors in sRGB, where it has an ICC profile that applies to it (`srgb_transform`)."""
    transform = srgb_transform(image.mode, image.info.get("icc_profile"))
    if transform is None:
        return image
    mode, has_alpha = image.mode, image.mode == "RGBA" or (image.mode == "P" and "transparency" in image.info)
    alpha = image.convert("RGBA").getchannel("A") if has_alpha else None
    made = transform.apply(image if mode == PROFILED[mode] else image.convert(PROFILED[mode]))
    made.info.pop("icc_profile", None)
    if alpha is not None:
        made.putalpha(alpha)
    return made.convert("L") if mode == "L" else made


def srgb_transform(mode: str, profile: bytes | None) -> ImageCms.ImageCmsTransform | None:
    """The transform of colors of this profile to sRGB; None for sRGB, and for a profile that does not fit the mode or
    cannot be read."""
    if profile is None or _is_srgb(profile) or len(profile) > MOST_PROFILE_BYTES or mode not in PROFILED:
        return None
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), PROFILED[mode], "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return None


def plain(image: Image.Image) -> Image.Image:
    """The picture in mode L or RGB: deep gray in 8 bits, colors in sRGB, transparent parts on white, CMYK and palettes
    as RGB."""
    image = to_srgb(to_eight_bits(image))
    if image.mode in GRAY:
        return image if image.mode == "L" else image.convert("L")
    if image.mode in TRANSPARENT or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def picture_notes(data: bytes, limits: Limits | None = None) -> list[str]:
    """Sentences on how the picture shown to people and the model differs from the file. Only the header is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = open_image(data, limits or current_limits())
        turned = image.getexif().get(0x0112, 1) in range(2, 9)
    profile = image.info.get("icc_profile")
    applies = srgb_transform(image.mode, profile) is not None
    long, short = max(image.size), max(min(image.size), 1)
    n_frames = int(getattr(image, "n_frames", 1))
    seen = {
        f"Only the first of its {n_frames:,} frames is used.": n_frames > 1,
        "It is turned upright by its EXIF orientation.": turned,
        "Its gray values are reduced to the upper 8 of 16 bits.": image.mode.startswith("I"),
        "Its CMYK colors are converted to RGB.": image.mode == "CMYK",
        "Its transparent parts are white.": image.mode in TRANSPARENT
        or ("transparency" in image.info and image.mode not in GRAY),
        "Its colors are converted to sRGB by its color profile.": applies,
        "Its color profile is ignored, because it cannot be applied: colors are read as sRGB.": not (
            applies or _is_srgb(profile)
        ),
        f"Its longer side is {long / short:,.0f} times the shorter one: little of it is left at the network's size.": (
            long / short >= VERY_LONG
        ),
    }
    return [sentence for sentence, holds in seen.items() if holds]


def _is_srgb(profile: bytes | None) -> bool:
    """Whether a color profile is missing or is named sRGB."""
    return not profile or b"sRGB" in profile or "sRGB".encode("utf-16-be") in profile


def to_picture(image: Image.Image, config: MediaConfig) -> NDArray[np.uint8]:
    """(H, W, C) of the configured size."""
    return fit_picture(image, config.picture_size, config.image_fit, config.channels)


def fit_picture(image: Image.Image, size: tuple[int, int], fit: str, channels: int) -> NDArray[np.uint8]:
    """(H, W, C) of this (height, width). "stretch" scales each side separately; "crop" keeps the aspect and cuts
    the longer side, evenly at both ends; "fit" keeps the aspect and the whole picture, and fills the
    borders with its mean color."""
    height, width = size
    image = image.convert("L" if channels == 1 else "RGB")
    if fit == "crop":
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    elif fit == "fit":
        image = _with_borders(image, (width, height))
    elif image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(image, dtype=np.uint8).reshape(height, width, channels)


def _with_borders(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    scale = min(size[0] / image.width, size[1] / image.height)
    inner = tuple(min(max(round(side * scale), 1), most) for side, most in zip(image.size, size, strict=True))
    small = image.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, reducing_gap=3.0)
    mean = np.asarray(small, np.float64).reshape(inner[0] * inner[1], -1).mean(0).round().astype(int).tolist()
    whole = Image.new(image.mode, size, mean[0] if len(mean) == 1 else tuple(mean))
    whole.paste(small, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return whole
