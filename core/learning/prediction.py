"""Soft pseudo-labels and embeddings for any rows of the pool, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core.learning.models import TrainedModel
from core.learning.networks.layers import Network
from core.learning.precision import autocast
from core.media.feeds import on_device
from core.media.inputs import Inputs
from core.media.views import views
from core.runtime import Runtime
from core.types import Progress, Report, ignore

BLOCK = {"cpu": 256, "cuda": 2_048}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One row per requested row."""

    probabilities: NDArray[np.float32]  # (n, C) calibrated; the mean over clean input and views, or over windows
    embeddings: NDArray[np.float32]  # (n, e) of the clean input, last layer
    view_probabilities: NDArray[np.float32] | None = None  # (V, n, C)


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Evaluation mode without gradients; the mode is restored."""
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was_training)


def predict(
    model: TrainedModel,
    inputs: Inputs,
    rows: NDArray[np.int64] | None = None,
    *,
    runtime: Runtime,
    n_views: int = 0,
    report: Report = ignore,
) -> Predictions:
    """Predictions for `rows` (all when None); with `n_views`, averaged over the clean input and that many augmented
    views. A clip that is longer than an input (`Inputs.windows`) has the mean over its windows instead. Memory beyond
    the result is that of one block."""
    asked = np.arange(len(inputs)) if rows is None else np.asarray(rows, np.int64)
    n, n_classes = len(asked), model.shape.n_classes
    probabilities = np.zeros((n, n_classes), np.float32)
    embeddings = np.zeros((n, model.network.width), np.float32)
    by_view = np.zeros((n_views, n, n_classes), np.float32) if n_views else None
    bank = model.config.bank_views if inputs.kind == "audio" else 0
    n_made = max(n_views, bank)  # the first views of the training's bank, which is cached
    size = max(1, BLOCK.get(runtime.device.type, 256) // (1 + n_made if n_views else 1))
    with evaluating(model.network), autocast(runtime, model.config):
        for start in range(0, n, size):
            block = asked[start : start + size]
            report(Progress("predict", start, n))
            here = slice(start, start + len(block))
            p, embedded = _clean(model, on_device(inputs.clean.take(block), runtime.device))
            embeddings[here] = embedded
            probabilities[here] = p
            if by_view is None:
                _average_windows(model, inputs, block, probabilities[here], runtime)
                continue
            made = views(inputs, block, n_made, device=runtime.device)[:, :n_views]
            flat = on_device(made.reshape(-1, *inputs.shape), runtime.device)
            by_view[:, here] = _clean(model, flat)[0].reshape(len(block), n_views, n_classes).swapaxes(0, 1)
            probabilities[here] = (p + by_view[:, here].sum(0)) / (1 + n_views)
            _average_windows(model, inputs, block, probabilities[here], runtime)
    report(Progress("predict", n, n))
    return Predictions(probabilities=probabilities, embeddings=embeddings, view_probabilities=by_view)


def _average_windows(
    model: TrainedModel, inputs: Inputs, rows: NDArray[np.int64], probabilities: NDArray[np.float32], runtime: Runtime
) -> None:
    """Replace the probabilities (len(rows), C) of clips with several windows by the mean over these."""
    if inputs.windows is None:
        return
    found, pictures = inputs.windows.of(rows)
    size = max(1, BLOCK.get(runtime.device.type, 256) // pictures.shape[1])
    for start in range(0, len(found), size):
        part = pictures[start : start + size]
        p = _clean(model, on_device(part.reshape(-1, *inputs.shape), runtime.device))[0]
        probabilities[found[start : start + size]] = p.reshape(len(part), -1, p.shape[1]).mean(1)


def _clean(model: TrainedModel, pictures: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(B, C) probabilities and (B, e) embeddings of inputs (B, H, W, C)."""
    embedded = model.network.embed(pictures.permute(0, 3, 1, 2))
    logits = model.network.head(embedded).float() / model.temperature
    return logits.softmax(1).cpu().numpy(), embedded.float().cpu().numpy()


def logits_of(network: Network, inputs: Inputs, rows: NDArray[np.int64], runtime: Runtime) -> Tensor:
    """(len(rows), C) logits of the clean inputs, on the device, without temperature."""
    size = BLOCK.get(runtime.device.type, 256)
    with evaluating(network):
        blocks = [on_device(inputs.clean.take(rows[s : s + size]), runtime.device) for s in range(0, len(rows), size)]
        return torch.cat([network(block.permute(0, 3, 1, 2)).float() for block in blocks])


def embeddings_and_logits(
    network: Network, inputs: Inputs, rows: NDArray[np.int64], runtime: Runtime
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(len(rows), e) embeddings and (len(rows), C) logits of the clean inputs, without temperature."""
    size = BLOCK.get(runtime.device.type, 256)
    embeddings, logits = [], []
    with evaluating(network):
        for start in range(0, len(rows), size):
            block = on_device(inputs.clean.take(rows[start : start + size]), runtime.device)
            embedded = network.embed(block.permute(0, 3, 1, 2))
            embeddings.append(embedded.float().cpu().numpy())
            logits.append(network.head(embedded).float().cpu().numpy())
    return np.concatenate(embeddings), np.concatenate(logits)
