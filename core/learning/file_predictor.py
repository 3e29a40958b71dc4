"""Predictions for files that are not part of a pool, block by block; no data is kept between blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.config import MediaConfig
from core.learning.models import TrainedModel
from core.learning.networks.layers import Network
from core.learning.onnx_graph import InputSettings
from core.learning.precision import autocast
from core.learning.prediction import evaluating
from core.media.audio import decode_audio, to_clip, to_windows
from core.media.feeds import on_device
from core.media.images import decode_image, to_picture
from core.media.inputs import CLIPS_AT_ONCE
from core.media.mel import log_mel
from core.media.windows import TOLERANCE_SECONDS
from core.runtime import Runtime

BLOCK = 256  # files


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePredictions:
    probabilities: NDArray[np.float32]  # (n, C) calibrated
    embeddings: NDArray[np.float32]  # (n, e) last layer


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePredictor:
    """A model with the input settings it was trained with."""

    model: TrainedModel
    settings: InputSettings
    runtime: Runtime

    @property
    def decode(self) -> Callable[[bytes], NDArray[Any]]:
        """Bytes -> the decoded item: clips (1 + k, T), the part that the settings name and the k windows of long audio,
        or a picture (H, W, C). Raises InvalidInput. Threads may share it."""
        media = self.settings.media
        if self.settings.kind == "audio":
            return lambda data: clip_and_windows(*decode_audio(data, channel=media.audio_channel), media)
        return lambda data: to_picture(decode_image(data), media)

    def predict(self, items: Sequence[NDArray[Any]]) -> FilePredictions:
        """Predictions for one block of decoded items: the mean over the windows of long audio."""
        runtime, network = self.runtime, self.model.network
        is_audio = self.settings.kind == "audio"
        every = np.concatenate(items) if is_audio else np.stack(items)
        with evaluating(network), autocast(runtime, self.model.config):
            parts = [self._of_inputs(network, every[start : start + BLOCK]) for start in range(0, len(every), BLOCK)]
        probabilities, embeddings = (np.concatenate(one) for one in zip(*parts, strict=True))
        if not is_audio or len(every) == len(items):
            return FilePredictions(probabilities=probabilities, embeddings=embeddings)
        ends = np.cumsum([len(item) for item in items])
        starts = ends - [len(item) for item in items]
        means = [
            probabilities[start + (end - start > 1) : end].mean(0) for start, end in zip(starts, ends, strict=True)
        ]
        return FilePredictions(probabilities=np.stack(means), embeddings=embeddings[starts])

    def _of_inputs(self, network: Network, inputs: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(n, C) probabilities and (n, e) embeddings."""
        embedded = network.embed(self._pictures(inputs))
        logits = network.head(embedded).float() / self.model.temperature
        return logits.softmax(1).cpu().numpy(), embedded.float().cpu().numpy()

    def _pictures(self, items: NDArray[Any]) -> torch.Tensor:
        """(B, C, H, W) on the device."""
        settings = self.settings
        if settings.kind == "audio":
            clips = torch.from_numpy(items.astype(np.float32))
            pictures = torch.cat([log_mel(part, settings.media) for part in clips.split(CLIPS_AT_ONCE)])
            return pictures[:, None].to(self.runtime.device)
        normalized = (items.astype(np.float32) / np.float32(255) - settings.mean) / settings.scale
        return on_device(normalized, self.runtime.device).permute(0, 3, 1, 2)


def clip_and_windows(samples: NDArray[np.float32], rate: int, media: MediaConfig) -> NDArray[np.float16]:
    """(1 + k, T): the clip, and the windows of audio that is longer than a clip where the settings score several. Their
    number follows from the file alone; in a pool it follows from the longest clip."""
    clip, seconds = to_clip(samples, rate, media)[None], len(samples) / rate
    if media.predict_windows > 1 and seconds > media.seconds + TOLERANCE_SECONDS:
        n_windows = min(media.predict_windows, math.ceil(seconds / media.seconds))
        clip = np.concatenate([clip, to_windows(samples, rate, n_windows, media)])
    return clip.astype(np.float16)
