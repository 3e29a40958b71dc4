"""Image bytes -> an array of fixed size, upright (EXIF orientation applied once).

Formats are an allow-list, and the number of pixels is checked before anything is decoded (`core.limits`). Deep pictures
become 8 bits with `to_eight_bits`, which the display uses too, so that people and the model see the same picture.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from core.config import MediaConfig
from core.errors import InvalidInput
from core.limits import Limits, current_limits, pixels_problem, tiff_problem

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")


def decode_image(data: bytes, limits: Limits | None = None) -> Image.Image:
    """The first frame, upright, in mode L or RGB (transparent parts on white). InvalidInput with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual metadata, which does not matter here
            image = open_image(data, limits or current_limits())
            image.load()
            return _plain(ImageOps.exif_transpose(image))
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


def _plain(image: Image.Image) -> Image.Image:
    image = to_eight_bits(image)
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def to_picture(image: Image.Image, config: MediaConfig) -> NDArray[np.uint8]:
    """(H, W, C) of the configured size. `image_fit`: "stretch" scales both sides on their own; "crop" keeps the aspect
    and cuts what is over at the longer side, evenly at both ends; "fit" keeps the aspect and the whole picture, and
    fills the borders with its mean color."""
    height, width = config.picture_size
    image = image.convert("L" if config.channels == 1 else "RGB")
    if config.image_fit == "crop":
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    elif config.image_fit == "fit":
        image = _with_borders(image, (width, height))
    elif image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(image, dtype=np.uint8).reshape(height, width, config.channels)


def _with_borders(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    scale = min(size[0] / image.width, size[1] / image.height)
    inner = tuple(min(max(round(side * scale), 1), most) for side, most in zip(image.size, size, strict=True))
    small = image.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, reducing_gap=3.0)
    mean = np.asarray(small, np.float64).reshape(inner[0] * inner[1], -1).mean(0).round().astype(int).tolist()
    whole = Image.new(image.mode, size, mean[0] if len(mean) == 1 else tuple(mean))
    whole.paste(small, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return whole
