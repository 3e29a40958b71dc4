"""Small pools on which a model trains in seconds: pictures of four patterns with noise, and clips of four tones."""

from __future__ import annotations

import numpy as np

from core.config import MediaConfig, TrainingConfig
from core.media.inputs import Inputs, prepare
from core.rows import MemoryRowCache
from tests.core.media.samples import MemoryReader, png, tone, wav

N_CLASSES = 4
SMALL = TrainingConfig(
    steps=30, warm_steps=10, labeled_batch=8, unlabeled_batch=16, bank_views=2, warmup_steps=2, learning_rate=3e-3
)


def picture_pool(n: int = 80, seed: int = 0, size: int = 16) -> tuple[Inputs, np.ndarray]:
    """Inputs and true classes: bars across, bars down, a checkerboard, a bright center."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    patterns = [(y // 2) % 2, (x // 2) % 2, (x // 4 + y // 4) % 2, (x - size / 2) ** 2 + (y - size / 2) ** 2 < 16]
    classes = np.arange(n) % N_CLASSES
    files = [png((100 * patterns[c] + rng.integers(0, 156, (size, size))).clip(0, 255)) for c in classes]
    reader = MemoryReader(*files)
    config = MediaConfig(channels=1, image_size=size)
    return prepare(reader.hashes, reader, "image", config, MemoryRowCache()), classes


def clip_pool(n: int = 24, seed: int = 0) -> tuple[Inputs, np.ndarray]:
    rng = np.random.default_rng(seed)
    classes = np.arange(n) % N_CLASSES
    files = [wav(tone(300 * (1 + 2 * c) * rng.uniform(0.97, 1.03), seconds=0.2) + 0) for c in classes]
    reader = MemoryReader(*files)
    return prepare(reader.hashes, reader, "audio", MediaConfig(seconds=0.25), MemoryRowCache()), classes


def some_labels(classes: np.ndarray, per_class: int) -> np.ndarray:
    """UNLABELED except for the first `per_class` rows of each class."""
    labels = np.full(len(classes), -1, np.int64)
    for c in np.unique(classes):
        rows = np.flatnonzero(classes == c)[:per_class]
        labels[rows] = c
    return labels
