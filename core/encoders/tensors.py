"""Windows to input tensors, and network outputs to vectors. Few imports, for the process that runs the network."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.encoders.description import AudioInput, PictureInput
from core.errors import InvalidInput


def pixels_to_input(pixels: NDArray[np.uint8], source: PictureInput) -> NDArray[np.float32]:
    """(B, H, W, C) bytes -> the network's input, (B, C, H, W) or (B, H, W, C)."""
    mean = np.asarray(source.mean, np.float32)
    scale, std = np.float32(source.range / 255), np.asarray(source.std, np.float32)
    values = pixels.astype(np.float32)
    values *= scale / std
    values -= mean / std
    return np.ascontiguousarray(values.transpose(0, 3, 1, 2)) if source.layout == "NCHW" else values


def samples_to_input(samples: NDArray[np.float32], source: AudioInput) -> NDArray[np.float32]:
    """(B, T) samples -> the network's input."""
    return np.asarray(samples[:, None]) if source.layout == "BCT" else samples


def pool_positions(found: NDArray[np.floating], dimension: int, axis: int, pooling: str) -> NDArray[np.float32]:
    """Network output (B, ...) -> (B, width), one vector per window. InvalidInput unless `axis` has size `dimension`."""
    vectors = np.moveaxis(np.asarray(found, np.float32), axis, -1)
    if vectors.shape[-1] != dimension:
        raise InvalidInput(
            f"The output has the shape {tuple(found.shape)}; its axis {axis} must have the size {dimension} that "
            "encoder.json states."
        )
    vectors = vectors.reshape(len(vectors), -1, dimension)  # (B, positions, dimension)
    if pooling == "none" and vectors.shape[1] != 1:
        raise InvalidInput(f"The output has {vectors.shape[1]} positions per window; choose a pooling other than none.")
    if pooling in ("none", "first"):
        return np.ascontiguousarray(vectors[:, 0])
    parts = [vectors.mean(1)] if "mean" in pooling else []
    parts += [vectors.max(1)] if "max" in pooling else []
    return np.concatenate(parts, axis=1)


def pool_windows(vectors: NDArray[np.float32], pooling: str) -> NDArray[np.float32]:
    """(windows, width) of one item -> (width,): the maximum of maxima, and the mean of everything else."""
    if len(vectors) == 1:
        return np.asarray(vectors[0])
    if pooling == "max":
        return np.asarray(vectors.max(0))
    if pooling != "mean+max":
        return np.asarray(vectors.mean(0, dtype=np.float32))
    half = vectors.shape[1] // 2
    return np.concatenate([vectors[:, :half].mean(0, dtype=np.float32), vectors[:, half:].max(0)])


def pool_shifts(vectors: NDArray[np.float32], pooling: str, n_shifts: int) -> NDArray[np.float32]:
    """(shifts * windows, width) of one item -> (width,): the mean over shifts of their pooled windows."""
    shifts = np.array_split(vectors, min(n_shifts, len(vectors)))
    return np.asarray(np.mean([pool_windows(one, pooling) for one in shifts], axis=0, dtype=np.float32))
