"""The network's input for an item: the log-mel spectrogram of a clip or the scaled picture, enlarged by whole pixels.

The drawing contains only the network's input: no axis and no smoothing.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core.config import MediaConfig
from core.limits import Limits
from core.media.audio import decode_audio, to_clip
from core.media.images import decode_image, to_picture
from core.media.mel_preview import log_mel

LOWEST, HIGHEST = -1.5, 1.5  # values of a spectrogram that are shown as the first and the last color
SHOWN_SIDE = 256  # minimum length of the longer side in pixels


def model_input(data: bytes, kind: str, config: MediaConfig, limits: Limits) -> NDArray[np.uint8]:
    """(H, W, 3) bytes of a picture, or (H, W) levels of a spectrogram with the highest frequency first."""
    if kind == "image":
        picture = to_picture(decode_image(data, limits), config)
        return np.repeat(picture, 3, axis=2) if config.channels == 1 else picture
    clip = (
        to_clip(*decode_audio(data, limits, config.audio_channel), config).astype(np.float16).astype(np.float32)
    )  # as the prepared inputs of a pool store it
    levels = (log_mel(clip, config)[::-1] - LOWEST) / (HIGHEST - LOWEST)
    return np.asarray((levels * 255).round().clip(0, 255), np.uint8)


def model_input_png(data: bytes, kind: str, config: MediaConfig, limits: Limits, colors: NDArray[np.uint8]) -> bytes:
    """The network's input as a PNG. Spectrograms are drawn with `colors` (256, 3)."""
    values = model_input(data, kind, config, limits)
    pixels = Image.fromarray(colors[values] if values.ndim == 2 else values)
    times = max(1, -(-SHOWN_SIDE // max(pixels.size)))
    out = io.BytesIO()
    pixels.resize((times * pixels.width, times * pixels.height), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()
