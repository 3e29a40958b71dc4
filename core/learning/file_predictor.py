"""Predictions for files that are not part of a pool, block by block, with nothing kept from one block to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.learning.models import TrainedModel
from core.learning.onnx_graph import InputSettings
from core.learning.precision import autocast
from core.learning.prediction import evaluating
from core.media.audio import decode_audio, to_clip
from core.media.feeds import on_device
from core.media.images import decode_image, to_picture
from core.media.inputs import CLIPS_AT_ONCE
from core.media.mel import log_mel
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
        """Bytes -> the decoded item: a clip (T,) or a picture (S, S, C). Raises InvalidInput. Threads may share it."""
        media = self.settings.media
        if self.settings.kind == "audio":
            return lambda data: to_clip(*decode_audio(data), media).astype(np.float16)
        return lambda data: to_picture(decode_image(data), media)

    def predict(self, items: Sequence[NDArray[Any]]) -> FilePredictions:
        """Predictions for one block of decoded items."""
        runtime, network = self.runtime, self.model.network
        with evaluating(network), autocast(runtime, self.model.config):
            embedded = network.embed(self._pictures(np.stack(items)))
            logits = network.head(embedded).float() / self.model.temperature
        return FilePredictions(probabilities=logits.softmax(1).cpu().numpy(), embeddings=embedded.float().cpu().numpy())

    def _pictures(self, items: NDArray[Any]) -> torch.Tensor:
        """(B, C, H, W) on the device."""
        settings = self.settings
        if settings.kind == "audio":
            clips = torch.from_numpy(items.astype(np.float32))
            pictures = torch.cat([log_mel(part, settings.media) for part in clips.split(CLIPS_AT_ONCE)])
            return pictures[:, None].to(self.runtime.device)
        normalized = (items.astype(np.float32) / np.float32(255) - settings.mean) / settings.scale
        return on_device(normalized, self.runtime.device).permute(0, 3, 1, 2)
