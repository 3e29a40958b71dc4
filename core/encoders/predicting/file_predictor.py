"""Predictions of a head for files that are not part of a pool, with the encoder that computes its features."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from core.encoders.folders import Encoder
from core.encoders.runner import EncoderRunner
from core.encoders.windows import windows_of
from core.errors import InvalidInput
from core.learning.file_predictor import FilePredictions
from core.learning.models import TrainedModel
from core.learning.prediction import evaluating
from core.runtime import Runtime


class EncodedFilePredictor:
    """A head with its encoder. The encoder's process starts with the first file and ends with this object."""

    def __init__(self, model: TrainedModel, encoder: Encoder, runtime: Runtime) -> None:
        self.model, self.encoder, self.runtime = model, encoder, runtime
        self._runner, self._lock = EncoderRunner(encoder), threading.Lock()

    @property
    def decode(self) -> Callable[[bytes], NDArray[Any]]:
        """A function from bytes to features (d,) that raises InvalidInput. Threads may share it: they decode in
        parallel and use the network one after another."""
        to_windows = windows_of(self.encoder.description)

        def features(data: bytes) -> NDArray[np.float32]:
            windows = to_windows(data)
            with self._lock:
                (found,) = self._runner.encode([windows])
            if isinstance(found, str):
                raise InvalidInput(found)
            return found

        return features

    def predict(self, items: Sequence[NDArray[Any]]) -> FilePredictions:
        """Predictions for one block of features."""
        network = self.model.network
        inputs = torch.from_numpy(np.stack(items).astype(np.float32)).to(self.runtime.device)
        with evaluating(network):
            embedded = network.embed(inputs[:, :, None, None])
            logits = network.head(embedded).float() / self.model.temperature
        return FilePredictions(probabilities=logits.softmax(1).cpu().numpy(), embeddings=embedded.cpu().numpy())

    def __del__(self) -> None:
        self._runner.close()
