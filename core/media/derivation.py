"""Media settings for a pool, derived by fixed rules from the measurements of the import. No torch, no decoding.

Clips      length      the 95th percentile of the durations, rounded up to 0.1 s, from MIN_SECONDS to MAX_SECONDS
           rate        16 kHz with mel bins up to 8 kHz; where half of the clips have a rate above 48 kHz (ultrasound),
                       that rate, and mel bins up to half of it
           frames      a hop of 32 ms, or longer so that mel bins times frames stay within MAX_VALUES; a window of
                       128 ms, or longer so that windows overlap
           windows     longer clips are predicted from up to MAX_WINDOWS windows
Pictures   size        32 x 32: larger inputs were not more accurate at equal time (`experiments.whole_items`)
           fit         the center square where 95 % of the pictures are at most twice as long as wide, and their median
                       area is above 32 x 32 pixels; longer ones are kept whole: each side is scaled separately
           patches     PATCHES kinds, where the center square is used: they describe photographs in refinement

An empty pool, or one without measures, has the defaults.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from core.config import MediaConfig
from core.types import MediaKind, PoolMeasures

PERCENTILE = 95
MIN_SECONDS, MAX_SECONDS = 1.0, 10.0
MAX_VALUES = 2_048  # mel bins times frames: twice those of 1 s
MAX_WINDOWS = 8
HOP_SECONDS, WINDOW_SECONDS = 0.032, 0.128
ULTRASOUND_RATE = 48_000
SIDE = 32  # of a picture, in pixels
MOST_CROPPED = 2.0  # longer side over shorter one: at most half of a picture is cut off
PATCHES = 400


def derive_media(kind: MediaKind, measures: PoolMeasures) -> MediaConfig:
    """The settings for a pool by the rules above."""
    if kind == "image":
        return _for_pictures(measures)
    config = MediaConfig(channels=1)
    if len(measures.seconds) == 0:
        return config
    rate = int(np.median(measures.sample_rates))
    if rate > ULTRASOUND_RATE:
        rate = min(rate, 192_000)
        config = dataclasses.replace(config, sample_rate=rate, f_max=0.0, n_fft=_power_of_two(WINDOW_SECONDS * rate))
    # rounded first: durations such as 5.0000001 s come from decoders
    longest = math.ceil(round(float(np.percentile(measures.seconds, PERCENTILE)), 3) * 10) / 10
    seconds = min(max(longest, MIN_SECONDS), MAX_SECONDS)
    return with_length(dataclasses.replace(config, predict_windows=MAX_WINDOWS), seconds)


def with_length(config: MediaConfig, seconds: float) -> MediaConfig:
    """The settings for clips of another length: hop and window follow, so that the inputs stay within MAX_VALUES."""
    most_frames = max(MAX_VALUES // config.n_mels, 2)
    n_samples = round(seconds * config.sample_rate)
    hop = max(round(HOP_SECONDS * config.sample_rate), math.ceil(n_samples / (most_frames - 1)))
    window = _power_of_two(max(WINDOW_SECONDS * config.sample_rate, 1.5 * hop))
    return dataclasses.replace(config, seconds=seconds, hop=hop, n_fft=min(window, 65_536))


def _power_of_two(samples: float) -> int:
    return 1 << math.ceil(math.log2(samples))


def _for_pictures(measures: PoolMeasures) -> MediaConfig:
    config = MediaConfig(channels=3)
    if len(measures.widths) == 0:
        return config
    area = float(np.median(measures.widths * measures.heights))
    lengths = np.exp(np.abs(np.log(measures.widths / measures.heights)))  # the longer side over the shorter one
    crops = area > SIDE * SIDE and np.percentile(lengths, PERCENTILE) <= MOST_CROPPED
    config = dataclasses.replace(config, image_size=SIDE)
    return dataclasses.replace(config, image_fit="crop", patches=PATCHES) if crops else config
