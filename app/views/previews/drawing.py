"""Spectrograms, waveforms and thumbnails. They are drawn from a stream of blocks and cached on disk.

Spectrogram  X[f, t] = 20 log10 |STFT| of the mono mix, Hann window of about 64 ms, in magma from the clip's maximum
             down to its background (the 15th percentile, 40 to 80 dB below), which is black. For sampling rates up to
             24 kHz the axis is linear from 0 to half the rate. Above that it is a mel scale, so that speech in a
             44.1 kHz file is not squeezed into the lowest fifth.
Waveform     the largest |x| in each of `N_PEAKS` equal slices, relative to the maximum of the clip.

Memory use does not grow with the length of a clip: it is decoded block by block, and at most `N_COLUMNS` windows are
drawn. The length is determined by decoding, not from the frame count in the header. The limits are those of imports and
rounds (`core.limits`). The page server does not call `draw`; `app.views.previews.pool` runs it in a limited process.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray
from PIL import Image, ImageOps
from plotly.colors import sequential

from app.views.previews.model_input import model_input_png
from core.atomic_files import write_file
from core.config import MediaConfig, from_json
from core.errors import InvalidInput
from core.limits import Limits, current_limits, length_problem
from core.media.audio import open_audio
from core.media.images import open_image, picture_notes, plain

N_COLUMNS = 900
N_ROWS = 320
N_PEAKS = 148
RANGE_DB = 80.0  # the largest range below the maximum that is shown
QUIETEST_FLOOR_DB = 40.0  # the smallest range below the maximum that is shown
WINDOW_SECONDS = 0.064
LINEAR_UP_TO = 24_000  # sampling rate in Hz
THUMB = (240, 136)
PICTURE_SIDE = 1600
KEPT_SAMPLES = 1 << 23  # a clip of up to this many mono samples is decoded once, a longer one twice
MODEL_PART = "model.png "  # followed by the media settings as JSON
VERSION = 5  # part of the file name, so that drawings of older versions are not used


@dataclass(frozen=True, slots=True)
class Sound:
    """The drawing data of a clip: (rows, columns) decibels below its maximum, waveform peaks, and its measures."""

    decibels: NDArray[np.float32]
    peaks: NDArray[np.float32]
    seconds: float
    sample_rate: int


def magma() -> NDArray[np.uint8]:
    """The colormap magma as (256, 3) colors, interpolated between the support points that plotly defines."""
    points = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in sequential.Magma], float)
    at = np.linspace(0, len(points) - 1, 256)
    return np.stack([np.interp(at, np.arange(len(points)), points[:, c]) for c in range(3)], 1).round().astype(np.uint8)


def draw(data: bytes, kind: str, part: str, limits: Limits | None = None) -> bytes:
    """Draw one part of an item (`app.web.routes.media`) as PNG or JSON. Raises InvalidInput if it cannot be drawn."""
    limits = limits or current_limits()
    if part.startswith(MODEL_PART):
        config = from_json(MediaConfig, part.removeprefix(MODEL_PART))
        return model_input_png(data, kind, config, limits, magma())
    if part == "notes.json":
        return json.dumps(picture_notes(data, limits)).encode()
    if kind == "image":
        return image_png(data, THUMB if part == "thumb.png" else (PICTURE_SIDE, PICTURE_SIDE), limits)
    if part == "sound.flac":
        return flac(data, limits)
    sound = analyze(data, limits)
    if part == "sound.json":
        peaks = [round(float(peak), 3) for peak in sound.peaks]
        values = {"seconds": round(sound.seconds, 4), "peaks": peaks, "ticks": ticks(sound.sample_rate)}
        return json.dumps(values).encode()
    return spectrogram_png(sound, THUMB if part == "thumb.png" else None)


def flac(data: bytes, limits: Limits) -> bytes:
    """Convert a clip for browsers that cannot play its format: 16 bits, mono or stereo; more channels are mixed to
    one."""
    with io.BytesIO() as stream, open_audio(data, limits) as source:
        rate, channels = int(source.file.samplerate), int(source.file.channels)
        kept = channels if channels <= 2 else 1
        with soundfile.SoundFile(stream, "w", rate, kept, format="FLAC", subtype="PCM_16") as file:
            n_frames = 0
            for block in source.blocks():
                n_frames += len(block)
                file.write(np.nan_to_num(block if channels <= 2 else block.mean(1)))
        problem = length_problem(n_frames, rate, channels, limits)
        if problem is not None:
            raise InvalidInput(problem)
        return stream.getvalue()


def analyze(data: bytes, limits: Limits | None = None) -> Sound:
    """Compute the drawing data of a clip, which is decoded block by block. NaN samples count as silence."""
    limits = limits or current_limits()
    n_samples, rate, decoded = _measure(data, limits)
    size = 1 << max(6, int(np.ceil(np.log2(rate * WINDOW_SECONDS))))
    hop = max(1, size // 16, -(-n_samples // N_COLUMNS))
    columns: list[NDArray[Any]] = []
    peaks = np.zeros(N_PEAKS, np.float32)
    tail, start = np.zeros(size // 2, np.float32), 0
    position = -(size // 2)  # of tail[0]; windows are centered on multiples of the hop
    for mono in decoded if decoded is not None else _mono_blocks(data, limits):
        slices = np.minimum((start + np.arange(len(mono))) * N_PEAKS // n_samples, N_PEAKS - 1)
        np.maximum.at(peaks, slices, np.abs(mono))
        start += len(mono)
        tail, position = _consume(np.concatenate([tail, mono]), position, size, hop, columns)
    _consume(np.concatenate([tail, np.zeros(size, np.float32)]), position, size, hop, columns)
    magnitude = np.stack(columns[: -(-n_samples // hop) or 1], 1)
    top = float(magnitude.max())
    decibels = 20 * np.log10(np.maximum(magnitude, 1e-12) / top) if top > 1e-7 else np.full_like(magnitude, -RANGE_DB)
    rows = _rows(decibels.astype(np.float32), rate)
    return Sound(rows, _smoothed_peaks(peaks, n_samples / rate), n_samples / rate, rate)


def _measure(data: bytes, limits: Limits) -> tuple[int, int, list[NDArray[np.float32]] | None]:
    """(number of decoded frames, sample rate, the mono blocks of a short clip or None)."""
    blocks: list[NDArray[np.float32]] | None = []
    n_frames = 0
    with open_audio(data, limits) as source:
        rate, channels = int(source.file.samplerate), int(source.file.channels)
        for block in source.blocks():
            n_frames += len(block)
            if blocks is not None:
                blocks.append(_to_mono(block))
            if n_frames > KEPT_SAMPLES:
                blocks = None
    problem = length_problem(n_frames, rate, channels, limits)
    if problem is not None or n_frames == 0:
        raise InvalidInput(problem or "The audio contains no samples.")
    return n_frames, rate, blocks


def _mono_blocks(data: bytes, limits: Limits) -> Iterator[NDArray[np.float32]]:
    with open_audio(data, limits) as source:
        yield from map(_to_mono, source.blocks())


def _to_mono(block: NDArray[np.float32]) -> NDArray[np.float32]:
    mono: NDArray[np.float32] = np.nan_to_num(block.mean(1), nan=0.0, posinf=0.0, neginf=0.0)
    return mono


def _smoothed_peaks(peaks: NDArray[np.float32], seconds: float) -> NDArray[np.float32]:
    """The peaks relative to the largest. Each slice takes the maximum within 15 ms, which closes the gaps between the
    periods of a low voice."""
    reach = min(int(0.015 / (2 * seconds / len(peaks))), 8)
    if reach:
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(peaks, reach), 2 * reach + 1)
        peaks = np.convolve(windows.max(1), [0.25, 0.5, 0.25], mode="same")
    return (peaks / max(float(peaks.max()), 1e-9)).astype(np.float32)


def _consume(
    samples: NDArray[np.float32], position: int, size: int, hop: int, columns: list[NDArray[Any]]
) -> tuple[NDArray[np.float32], int]:
    """Append a column for every whole window in `samples`, whose first sample is at `position`. Returns the remaining
    samples and their position."""
    window = np.hanning(size + 1)[:-1].astype(np.float32)
    while True:
        begin = len(columns) * hop - size // 2 - position
        if begin < 0 or begin + size > len(samples):
            break
        columns.append(np.abs(np.fft.rfft(samples[begin : begin + size] * window)).astype(np.float32))
    keep = max(0, min(len(columns) * hop - size // 2 - position, len(samples)))
    return samples[keep:], position + keep


def scale(rate: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """A function from frequencies in Hz to heights in the picture (0 bottom, 1 top) for the sampling rate `rate`."""
    if rate <= LINEAR_UP_TO:
        return lambda hertz: hertz / (rate / 2)
    return lambda hertz: np.log1p(hertz / 700) / np.log1p(rate / 2 / 700)


def ticks(rate: int) -> list[dict[str, Any]]:
    """Well-spaced frequency marks at round values: [{"text": "2 kHz", "height": 0.25}, …]."""
    step = next(s for s in (500, 1000, 2000, 4000, 5000, 10_000, 50_000) if rate / 2 / s <= 5)
    marks = [*range(0, rate // 2 + 1, step)] if rate <= LINEAR_UP_TO else [0, 500, 1000, 2000, 4000, 8000, 16_000]
    height = scale(rate)
    shown = [hz for hz in marks if hz <= rate / 2]
    return [{"text": _hertz(hz), "height": round(float(height(np.array(float(hz)))), 4)} for hz in shown]


def _hertz(hz: int) -> str:
    return "0" if hz == 0 else f"{hz} Hz" if hz < 1000 else f"{hz / 1000:g} kHz"


def _rows(decibels: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """(N_ROWS, columns) rows of the picture, highest frequency first. A row that spans several bins has the loudest
    one; rows narrower than a bin are interpolated."""
    n_bins = len(decibels)
    hertz = np.linspace(0, rate / 2, n_bins)
    edges = np.interp(np.linspace(0, 1, N_ROWS + 1), scale(rate)(hertz), np.arange(n_bins, dtype=float))
    rows = np.empty((N_ROWS, decibels.shape[1]), np.float32)
    for r, (low, high) in enumerate(pairwise(edges)):
        if high - low > 1:
            rows[r] = decibels[int(low) : int(np.ceil(high)) + 1].max(0)
        else:
            middle = (low + high) / 2
            below = min(int(middle), n_bins - 2)
            rows[r] = decibels[below] + (middle - below) * (decibels[below + 1] - decibels[below])
    return rows[::-1]


def spectrogram_png(sound: Sound, size: tuple[int, int] | None = None) -> bytes:
    """The spectrogram as a palette PNG in magma, with one byte per pixel."""
    floor = float(np.clip(np.percentile(sound.decibels, 15), -RANGE_DB, -QUIETEST_FLOOR_DB))
    levels = np.clip((1 - sound.decibels / floor) * 255, 0, 255).astype(np.uint8)
    picture = Image.fromarray(levels).resize(size or (N_COLUMNS, N_ROWS), Image.Resampling.BICUBIC)
    picture = Image.frombytes("P", picture.size, picture.tobytes())
    picture.putpalette(magma().tobytes())
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=False, compress_level=4)
    return out.getvalue()


def image_png(data: bytes, box: tuple[int, int], limits: Limits | None = None) -> bytes:
    """The picture as a PNG, upright as rounds read it (`core.media.images.plain`), reduced to fit into `box`. Small
    pictures are not enlarged, and metadata is removed."""
    with open_image(data, limits or current_limits()) as source:
        source.draft("RGB", box)
        picture = plain(ImageOps.exif_transpose(source))
        picture.thumbnail(box, Image.Resampling.LANCZOS)
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=4)
    return out.getvalue()


def kept(folder: Path, name: str, draw: Callable[[], bytes]) -> bytes:
    """The result of `draw`, cached in a file. The file is written atomically."""
    path = folder / name[:2] / f"{name}-{VERSION}"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        data = draw()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, data)
    return data
