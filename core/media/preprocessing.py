"""How bytes become the input of a model, as JSON: exact enough to be programmed again without this code.

`outside` are the steps before the ONNX graph, in order; `core.learning.standalone_predict` carries them out from this
description. `inside` are the steps of the graph itself, up to the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.config import MediaConfig
from core.media.audio import clip_length
from core.media.images import FORMATS
from core.media.mel import SILENCE
from core.media.windows import TOLERANCE_SECONDS
from core.types import MediaKind

VERSION = 1  # of the description
LONGER = {
    "loudest": "the stretch of this length with the largest sum of squares, the first one of equals",
    "center": "the middle; of an odd number of samples that are left over, the larger part is behind",
    "start": "the beginning",
}
CENTERED = "centered in zeros; of an odd number of zeros the larger part is behind"


def describe_preprocessing(
    kind: MediaKind, config: MediaConfig, mean: Sequence[float], scale: Sequence[float]
) -> dict[str, Any]:
    """The description for a model of this kind; `mean` and `scale` are those of pictures, one entry per channel."""
    steps = _audio(config) if kind == "audio" else _picture(config, mean, scale)
    return {"version": VERSION, "kind": kind, **steps}


def _audio(config: MediaConfig) -> dict[str, Any]:
    length = clip_length(config)
    return {
        "input": {"name": "clips", "dtype": "float32", "shape": ["batch", length]},
        "outside": [
            {"step": "decode", "formats": ["WAV", "FLAC", "OGG", "MP3", "AIFF"], "dtype": "float32", "full_scale": 1.0},
            {"step": "mono", **_channel(config)},
            {
                "step": "resample",
                "sample_rate": config.sample_rate,
                "how": "soxr, quality HQ; audio at this rate is unchanged",
            },
            {
                "step": "fit",
                "samples": length,
                "from": config.clip_from,
                "longer": LONGER[config.clip_from],
                "shorter": "followed by zeros" if config.clip_from == "start" else CENTERED,
            },
            {
                "step": "windows",
                "most": config.predict_windows,
                "seconds": config.seconds,
                "tolerance_seconds": TOLERANCE_SECONDS,
                "how": "where `most` is above 1 and the audio is longer than seconds + tolerance_seconds: n = min("
                "most, ceil(length / seconds)) windows of `samples` samples in place of the part above, their starts "
                "evenly spaced from the first to the last possible one and rounded to the nearest sample, halves to "
                "even; the probabilities are the mean over the windows",
            },
            {"step": "scale", "how": "divide by the largest absolute sample; silence is unchanged"},
            {"step": "round", "how": "to the nearest float16, then float32"},
        ],
        "inside": [
            {"step": "pad", "samples": config.n_fft // 2, "how": "zeros at both ends"},
            {
                "step": "spectrum",
                "how": "short-time Fourier transform of complete frames, one-sided, squared magnitude",
                "n_fft": config.n_fft,
                "hop": config.hop,
                "window": "periodic Hann of n_fft samples",
            },
            {
                "step": "mel",
                "n_mels": config.n_mels,
                "f_min": config.f_min,
                "f_max": config.f_top,
                "scale": "Slaney",
                "norm": "Slaney: each filter has area 1",
            },
            {"step": "log", "how": "log10 of the power, at least `silence`", "silence": SILENCE},
            {
                "step": "level",
                "how": "subtract the largest value of the clip, then at least `floor`; silence is `floor` everywhere",
                "floor": config.floor,
            },
            {"step": "normalize", "how": "(x - floor / 2) / (-floor / 3)"},
        ],
    }


def _channel(config: MediaConfig) -> dict[str, Any]:
    if not config.audio_channel:
        return {"how": "mean of the channels"}
    how = f"channel {config.audio_channel}, counted from 1; files with fewer channels: mean of the channels"
    return {"how": how, "channel": config.audio_channel}


def _picture(config: MediaConfig, mean: Sequence[float], scale: Sequence[float]) -> dict[str, Any]:
    (height, width), channels = config.picture_size, config.channels
    resize = {
        "stretch": "Pillow resize, BILINEAR, reducing_gap 3.0, both sides; a picture of this size is unchanged",
        "crop": "Pillow ImageOps.fit, BILINEAR: the aspect is kept, and the longer side is cut evenly at both ends",
        "fit": "Pillow resize, BILINEAR, reducing_gap 3.0, to the largest size of the same aspect that fits, each side "
        "rounded and at least 1; centered, of odd borders the larger part right and below, on the mean color",
    }
    return {
        "input": {"name": "pictures", "dtype": "uint8", "shape": ["batch", height, width, channels]},
        "outside": [
            {"step": "decode", "formats": list(FORMATS), "frame": "first"},
            {"step": "upright", "how": "apply the EXIF orientation"},
            {"step": "depth", "how": "16 and 32 bits per pixel: shift right by 8, clip to 0 to 255"},
            {
                "step": "profile",
                "how": "an ICC profile other than sRGB that fits the picture: convert to sRGB, perceptual intent",
            },
            {"step": "flatten", "how": "transparent parts on white"},
            {"step": "mode", "channels": channels, "how": "Pillow convert to " + ("L" if channels == 1 else "RGB")},
            {
                "step": "resize",
                "height": height,
                "width": width,
                "fit": config.image_fit,
                "how": resize[config.image_fit],
            },
        ],
        "inside": [
            {
                "step": "normalize",
                "how": "(x / 255 - mean) / scale, per channel; then channels first",
                "mean": [round(float(value), 6) for value in mean],
                "scale": [round(float(value), 6) for value in scale],
            },
        ],
    }
