"""The windows of a decoded item that an encoder is run on: parts of a clip, or crops of a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core.encoders.description import AudioInput, EncoderDescription, PictureInput
from core.errors import InvalidInput
from core.media.audio import decode_audio, resample
from core.media.images import decode_image, fit_picture

MOST_SCALES = 200  # longer side over shorter side of a picture that is cut into crops

Windows = list[NDArray[Any]]  # of one item: float32 samples (T,), or uint8 pixels (H, W, C)


def windows_of(description: EncoderDescription) -> Callable[[bytes], Windows]:
    """A function from bytes to windows that raises InvalidInput for undecodable bytes. Threads may share it."""
    source = description.input
    if isinstance(source, AudioInput):
        return lambda data: audio_windows(*decode_audio(data), source)
    if isinstance(source, PictureInput):
        return lambda data: picture_windows(decode_image(data), source)
    raise InvalidInput(f"{description.name} is a table of embeddings and cannot encode further items.")


def audio_windows(samples: NDArray[np.float32], rate: int, source: AudioInput) -> Windows:
    """Windows of equal length that cover the clip, for each of its positions in the margin in turn. A clip that is
    shorter than a window is padded with silence at its end."""
    if rate != source.sample_rate:
        samples = resample(samples, rate, source.sample_rate)
    peak = float(np.abs(samples).max(initial=0.0))
    if source.level == "peak" and peak > 0:
        samples = samples / np.float32(peak)
    samples = np.ascontiguousarray(samples, np.float32)
    return [window for placed in _placed(samples, source) for window in _covering(placed, source)]


def _placed(samples: NDArray[np.float32], source: AudioInput) -> list[NDArray[np.float32]]:
    """The clip within `margin` samples of silence, at `shifts` positions from its start to its end; one: the center."""
    if not source.margin:
        return [samples]
    least = 0 if source.window else source.shortest
    samples = np.pad(samples, (0, max(0, least - len(samples))))
    first, last = (0, source.margin) if source.shifts > 1 else (source.margin // 2,) * 2
    starts = np.linspace(first, last, source.shifts).round().astype(np.int64)
    return [np.pad(samples, (start, source.margin - start)) for start in starts]


def _covering(samples: NDArray[np.float32], source: AudioInput) -> Windows:
    """At most `max_windows` windows, evenly spaced."""
    length = source.window or _even_length(len(samples), source)
    spare = len(samples) - length
    if spare <= 0:
        return [np.pad(samples, (0, -spare))]
    step = source.step if source.window else length
    n = min(source.max_windows, math.ceil(spare / step) + 1)
    starts = np.linspace(0, spare, n).round().astype(np.int64)
    return [samples[start : start + length] for start in starts]


def _even_length(n_samples: int, source: AudioInput) -> int:
    """The length of windows for an encoder that accepts any: the whole clip, or equal parts of a long one."""
    n_parts = math.ceil(n_samples / source.longest)
    return max(source.shortest, math.ceil(n_samples / max(n_parts, 1)))


def picture_windows(image: Image.Image, source: PictureInput) -> Windows:
    """One picture of the encoder's size; with `crops`, up to that many crops along the longer side of the picture."""
    height, width = source.size
    if source.crops == 1:
        return [_ordered(fit_picture(image, source.size, source.fit, source.channels), source)]
    scale = max(height / image.height, width / image.width)
    tall, wide = max(height, round(image.height * scale)), max(width, round(image.width * scale))
    n = min(source.crops, math.ceil(max(tall / height, wide / width) - 1e-6))
    if n == 1:
        return [_ordered(fit_picture(image, source.size, "crop", source.channels), source)]
    if max(tall / height, wide / width) > MOST_SCALES:
        raise InvalidInput(f"The picture is {image.width:,} x {image.height:,}: too narrow for crops.")
    large = fit_picture(image, (tall, wide), "stretch", source.channels)
    tops = np.linspace(0, tall - height, n).round().astype(np.int64)
    lefts = np.linspace(0, wide - width, n).round().astype(np.int64)
    return [_ordered(large[y : y + height, x : x + width], source) for y, x in zip(tops, lefts, strict=True)]


def _ordered(pixels: NDArray[np.uint8], source: PictureInput) -> NDArray[np.uint8]:
    return np.ascontiguousarray(pixels[..., ::-1] if source.colors == "BGR" else pixels)
