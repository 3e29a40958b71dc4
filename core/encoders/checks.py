"""Checks whether a folder can be used as an encoder by running it on probe items before any other use."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.encoders.description import AudioInput, EncoderDescription, PictureInput
from core.encoders.folders import Encoder, open_encoder
from core.encoders.runner import EncoderRunner, Tick
from core.encoders.windows import Windows
from core.errors import InvalidInput
from core.limits import Limits

TOLERANCE = 1e-3  # of the typical size of a feature: results of quantized networks vary a little with the batch
RUNS = 3  # timed runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEncoder:
    """An encoder that gave finite, repeatable features of the stated shape for the probe items."""

    encoder: Encoder
    batch: int | None  # fixed number of windows per batch; None: any
    seconds_per_window: float


def check_encoder(folder: Path, limits: Limits | None = None, tick: Tick = lambda: None) -> CheckedEncoder:
    """Run the encoder on two probe items. Raises InvalidInput with the first problem."""
    encoder = open_encoder(folder)
    first, second = probes(encoder.description)
    with EncoderRunner(encoder, limits) as runner:
        batch = runner.start(tick)
        alone = [_features(runner, one, tick) for one in (first, second)]
        again = _features(runner, first, tick)
        together = _features(runner, [*first, *second, *first], tick, pooled=False)
        began = time.perf_counter()
        for _ in range(RUNS):
            _features(runner, first, tick)
        seconds = (time.perf_counter() - began) / RUNS / len(first)
    scale = float(np.abs(np.stack(alone)).mean()) + 1e-12
    if float(np.abs(alone[0] - again).max()) > TOLERANCE * scale:
        raise InvalidInput(f"The encoder {encoder.name} gives different features when the same item is encoded again.")
    expected = np.stack([alone[0], alone[1], alone[0]])
    if not np.allclose(together, expected, rtol=0.0, atol=10 * TOLERANCE * max(scale, float(np.abs(expected).max()))):
        worst = float(np.abs(together - expected).max())
        raise InvalidInput(
            f"The encoder {encoder.name} gives different features for an item in a batch and for the item alone (up to "
            f"{worst:.3g} apart). Export it in evaluation mode, or set input.batch to 1."
        )
    if float(np.abs(alone[0] - alone[1]).max()) <= 1e-6 * scale:
        raise InvalidInput(f"The encoder {encoder.name} gives the same features for two different items.")
    return CheckedEncoder(encoder=encoder, batch=batch, seconds_per_window=seconds)


def _features(runner: EncoderRunner, windows: Windows, tick: Tick, pooled: bool = True) -> np.ndarray:
    items = [windows] if pooled else [[one] for one in windows]
    found = runner.encode(items, tick)
    problems = [one for one in found if isinstance(one, str)]
    if problems:
        raise InvalidInput(f"The encoder {runner.encoder.name} failed on a probe item. {problems[0]}")
    rows = np.stack([np.asarray(one) for one in found])
    return rows[0] if pooled else rows


def probes(description: EncoderDescription) -> tuple[Windows, Windows]:
    """One window of each of two different items: tones and noise, or a gradient and noise."""
    source, draw = description.input, np.random.default_rng(0)
    if isinstance(source, AudioInput):
        n = source.window or max(source.shortest, source.sample_rate)
        time_axis = np.arange(n) / source.sample_rate
        tone = 0.5 * np.sin(2 * np.pi * 440 * time_axis) * np.linspace(0.2, 1.0, n)
        return [tone.astype(np.float32)], [(0.1 * draw.normal(size=n)).astype(np.float32)]
    if not isinstance(source, PictureInput):
        raise InvalidInput(f"{description.name} is a table of embeddings: there is no network to run.")
    height, width = source.size
    ramp = np.linspace(0, 255, height)[:, None, None] * np.linspace(0.2, 1, width)[None, :, None]
    gradient = np.broadcast_to(ramp, (height, width, source.channels)).astype(np.uint8)
    return [np.ascontiguousarray(gradient)], [draw.integers(0, 256, (height, width, source.channels), np.uint8)]
