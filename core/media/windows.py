"""Several windows of clips that are longer than a network input, for predictions.

A clip of L seconds, longer than the `seconds` of an input, is predicted from n evenly spaced windows that cover it from
its start to its end if n is large enough: n = ceil(longest / seconds), at most `predict_windows`, equal for all clips
of a pool. Its probabilities are the mean over the windows. Training, the kernel and the similarity graph use the one
part of it that `clip_from` names.

A clip's length is read from its header. A header that states too much gives equal windows, and one that states too
little gives one window: a wrong header never stops a round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from core.config import MediaConfig
from core.limits import current_limits
from core.media.audio import decode_audio, open_audio, to_windows
from core.media.decoding import Decoder, decode_pool
from core.media.mel import log_mel
from core.types import MediaReader, Report, RowCache, Rows

VERSION = 1
TOLERANCE_SECONDS = 1e-3  # clips that exceed an input by less than this are not longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of the m clips of a pool that are longer than an input."""

    rows: NDArray[np.int64]  # (m,) rows of the pool, ascending
    pictures: Rows  # (m, n_windows, H, W, 1) float16

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The positions (k,) in `rows` of clips that have windows, and their windows (k, n, H, W, 1)."""
        places = np.searchsorted(self.rows, rows).clip(max=len(self.rows) - 1)
        found = np.flatnonzero(self.rows[places] == rows)
        if len(found) == 0:
            return found, np.empty((0, *self.pictures.shape[1:]), np.float32)
        return found, self.pictures.take(places[found]).astype(np.float32)


def find_windows(
    hashes: Sequence[str], read: MediaReader, config: MediaConfig, settings_key: str, cache: RowCache, report: Report
) -> Windows | None:
    """The windows of the long clips of a pool; None without long clips. `settings_key` names the media settings."""
    lengths = Decoder(key=f"seconds-{VERSION}", decode=_seconds, blank=np.zeros(1, np.float32))
    measured = decode_pool(hashes, read, lengths, cache, report)
    seconds = measured.rows.take(np.arange(len(hashes)))[:, 0]
    rows = np.flatnonzero(measured.readable & (seconds > config.seconds + TOLERANCE_SECONDS))
    if len(rows) == 0:
        return None
    n_windows = min(config.predict_windows, math.ceil(float(seconds[rows].max()) / config.seconds))
    shape = (n_windows, *config.input_shape("audio"))
    decoder = Decoder(
        key=f"windows-{VERSION}-{n_windows}-{settings_key}",
        decode=lambda data: _spectrograms(data, n_windows, config),
        blank=np.zeros(shape, np.float16),
    )
    decoded = decode_pool([hashes[row] for row in rows.tolist()], read, decoder, cache, report)
    fine = np.flatnonzero(decoded.readable)
    if len(fine) == 0:
        return None
    return Windows(rows=rows[fine], pictures=_Chosen(decoded.rows, fine))


class _Chosen:
    """A selection of rows of `Rows`."""

    def __init__(self, rows: Rows, chosen: NDArray[np.int64]) -> None:
        self.rows, self.chosen = rows, chosen
        self.shape = (len(chosen), *rows.shape[1:])
        self.dtype = rows.dtype

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float16]:
        return self.rows.take(self.chosen[rows])


def _seconds(data: bytes) -> NDArray[np.float32]:
    with open_audio(data, current_limits()) as source:
        return np.array([source.file.frames / source.file.samplerate], np.float32)


def _spectrograms(data: bytes, n_windows: int, config: MediaConfig) -> NDArray[np.float16]:
    clips = to_windows(*decode_audio(data, channel=config.audio_channel), n_windows, config).astype(
        np.float16
    )  # as the clips of a pool are stored
    return log_mel(torch.from_numpy(clips.astype(np.float32)), config)[..., None].numpy().astype(np.float16)
