"""Image bytes -> an array of fixed size, upright (EXIF orientation applied once).

Formats are an allow-list, and the number of pixels is checked before anything is decoded.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from core.config import MediaConfig
from core.errors import InvalidInput

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000


def decode_image(data: bytes) -> Image.Image:
    """The first frame, upright, in mode L or RGB (transparent parts on white). InvalidInput with the reason."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about unusual metadata, which does not matter here
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            if image.width * image.height > MAX_PIXELS:
                raise InvalidInput(
                    f"The image has {image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are supported."
                )
            image.load()
            return _plain(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise InvalidInput(f"Not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image.") from error
    except (OSError, SyntaxError, ValueError, IndexError, TypeError, KeyError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"The image cannot be decoded: {error}") from error


def _plain(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 or 32 bits per pixel: keep the upper 8 of 16
        deep = np.asarray(image).astype(np.int64)
        return Image.fromarray((deep >> 8).clip(0, 255).astype(np.uint8))
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def to_picture(image: Image.Image, config: MediaConfig) -> NDArray[np.uint8]:
    """(S, S, C) with S = config.image_size: stretched to a square, or its central square (`image_fit`)."""
    size = (config.image_size, config.image_size)
    image = image.convert("L" if config.channels == 1 else "RGB")
    if config.image_fit == "crop":
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    elif image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(image, dtype=np.uint8).reshape(*size, config.channels)
