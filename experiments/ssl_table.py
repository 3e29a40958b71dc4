"""Semi-supervised learning with few labels: a smaller version of the paper's table, on sound and on images.

Test accuracy at 10, 30 and 60 uniformly drawn labels (at least one per class) of: supervised training without and
with augmentation, MixMatch, and FixMatch. Claim: without augmentation < with augmentation < semi-supervised.

    python -m experiments.ssl_table --size small --only fsdd --out DIR      one data set, 16 to 29 minutes on one core
    python -m experiments.ssl_table --size full --out DIR                   WRN-28-10, 30 epochs, 5 seeds: on a GPU

small: the laptop network, 1,000 steps (`SMALL_STEPS`), at most 2,700 pool items. full: the `paper` preset. Both have
five seeds, one after the other; a run that is started again continues.
Data sets: fsdd, speech_commands (with its background noise), mnist, cifar10.

CIFAR-10 in the small size: few steps with few labels do not learn the features of photographs, and pseudo-labels
without them are misleading. Both semi-supervised methods therefore start from pretraining without labels
(`core.learning.methods.simclr`) on all 10,000 images of the larger file, and change the pretrained layers slowly.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from core.config import MediaConfig, TrainingConfig, preset
from core.learning.methods.simclr import pretrain
from core.learning.networks.registry import NetworkShape, fresh_network
from core.learning.training import TrainedModel, train
from core.media.feeds import open_feed
from core.media.inputs import Inputs, prepare
from core.rows import MemoryRowCache
from core.runtime import Runtime
from core.types import UNLABELED
from experiments.record import Arguments, Parts, Record, curves, mean_and_deviation, run, say

BUDGETS = (10, 30, 60)
SEEDS = 5
SMALL_STEPS = 1_000
SMALL_POOL, SMALL_TEST = 2_700, 1_000
PRETRAINED = {"cifar10": {"pretrain_steps": 2_000, "pretrained_rate_scale": 0.05, "warm_steps": SMALL_STEPS}}
METHODS = {
    "supervised, no augmentation": {"method": "supervised", "augment": False},
    "supervised": {"method": "supervised"},
    "mixmatch": {"method": "mixmatch", "lambda_u": 10.0, "ramp": 1.0},
    "fixmatch": {"method": "fixmatch", "lambda_u": 1.0, "ramp": 0.1},
}


@dataclass(frozen=True)
class Dataset:
    """A data set: network inputs of all items, their classes, and the test rows."""

    inputs: Inputs
    classes: NDArray[np.int64]
    test_rows: NDArray[np.int64]


def sound(folder: Path, small: bool, pool_only: bool = False, most: int | None = None) -> Dataset:
    """Clips of a manifest (`path,label,split`), with the background noise of the data set if it has any. With
    `pool_only`, the files of the test part are not read. `most`: at most this number of clips, evenly spaced."""
    with (folder / "manifest.csv").open(newline="") as lines:
        listed = [row for row in csv.DictReader(lines) if not (pool_only and row["split"] == "test")]
    if most is not None and len(listed) > most:
        listed = [listed[row] for row in np.linspace(0, len(listed) - 1, most).round().astype(int)]
    noise = folder / "_background_noise_"
    config = MediaConfig(noise_folder=str(noise) if noise.is_dir() else "")
    files = {hashlib.sha256((folder / row["path"]).read_bytes()).hexdigest(): row for row in listed}
    hashes = list(files)
    names = sorted({row["label"] for row in listed})
    inputs = prepare(hashes, lambda key: (folder / files[key]["path"]).read_bytes(), "audio", config, MemoryRowCache())
    classes = np.array([names.index(files[key]["label"]) for key in hashes])
    is_test = np.array([files[key]["split"] == "test" for key in hashes])
    return Dataset(inputs, classes, np.flatnonzero(is_test))


def pictures(file: Path, small: bool) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test as PNG bytes, so that they are decoded like any imported image."""
    z = np.load(file)
    n_pool, n_test = (SMALL_POOL, SMALL_TEST) if small else (len(z["x_train"]), len(z["x_test"]))
    arrays = np.concatenate([z["x_train"][:n_pool], z["x_test"][:n_test]])
    classes = np.concatenate([z["y_train"][:n_pool], z["y_test"][:n_test]]).astype(np.int64)
    config = MediaConfig(channels=1 if arrays.ndim == 3 else 3, flip=arrays.ndim == 4)

    def read(name: str) -> bytes:
        encoded = io.BytesIO()
        Image.fromarray(arrays[int(name)]).save(encoded, format="PNG")
        return encoded.getvalue()

    names, is_test = [str(row) for row in range(len(arrays))], np.arange(len(arrays)) >= min(n_pool, len(z["x_train"]))
    inputs = prepare(names, read, "image", config, MemoryRowCache(), held_out=is_test)
    return Dataset(inputs, classes, np.flatnonzero(is_test))


def photographs(file: Path) -> Dataset:
    """JPEG bytes one after another with their offsets, 10,000 to learn from and 2,000 to test."""
    z = np.load(file)
    files = [
        z[f"jpeg_{part}"][begin:end].tobytes()
        for part in ("train", "test")
        for begin, end in pairwise(z[f"off_{part}"])
    ]
    classes = np.concatenate([z["y_train"], z["y_test"]]).astype(np.int64)
    config = MediaConfig(channels=3, flip=True)
    names, is_test = [str(row) for row in range(len(files))], np.arange(len(files)) >= len(z["y_train"])
    inputs = prepare(names, lambda name: files[int(name)], "image", config, MemoryRowCache(), held_out=is_test)
    return Dataset(inputs, classes, np.flatnonzero(is_test))


def load(name: str, data: Path, small: bool) -> Dataset:
    if name in ("fsdd", "speech_commands"):
        return sound(data / name, small)
    if name == "cifar10" and small:
        return photographs(data / "cifar10" / "cifar10_jpeg_10k.npz")
    return pictures(data / ("mnist/mnist.npz" if name == "mnist" else "cifar10/cifar10_exact_4k.npz"), small)


def uniform_labels(pool: Dataset, n_labels: int, seed: int) -> NDArray[np.int64]:
    """(n,) labels of one random item per class and random others, UNLABELED elsewhere."""
    order = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(pool.classes)), pool.test_rows))
    first = [int(order[np.flatnonzero(pool.classes[order] == c)[0]]) for c in np.unique(pool.classes)]
    others = order[~np.isin(order, first)][: max(0, n_labels - len(first))]
    labels = np.full(len(pool.classes), UNLABELED)
    chosen = np.concatenate([first, others]).astype(np.int64)
    labels[chosen] = pool.classes[chosen]
    return labels


def settings(method: str, small: bool, data: str = "") -> TrainingConfig:
    if not small:
        return dataclasses.replace(preset("paper").training, **METHODS[method])
    warm = PRETRAINED.get(data, {}) if METHODS[method]["method"] != "supervised" else {}
    return dataclasses.replace(preset("laptop").training, steps=SMALL_STEPS, **METHODS[method], **warm)


def pretrained(pool: Dataset, config: TrainingConfig, seed: int) -> TrainedModel:
    """The network that `train` would pretrain with these settings, computed once for all budgets of a seed."""
    runtime = Runtime.create(seed)
    shape = NetworkShape(name=config.network, channels=pool.inputs.shape[2], n_classes=int(pool.classes.max()) + 1)
    network = fresh_network(shape, runtime).train()
    rows = np.setdiff1d(np.arange(len(pool.classes)), pool.test_rows)
    pretrain(network, open_feed(pool.inputs, runtime.device, config.bank_views), rows, config, runtime)
    return TrainedModel(network=network, shape=shape, config=config)


class Trainings:
    """The trainings of a data set with the labels of one seed; pretraining is computed at most once."""

    def __init__(self, name: str, pool: Dataset, seed: int, small: bool) -> None:
        self.name, self.pool, self.seed, self.small = name, pool, seed, small
        self.kept: TrainedModel | None = None

    def row(self, method: str, n_labels: int) -> list[dict]:
        """The test accuracy in %; the test items are used for nothing else."""
        pool, config = self.pool, settings(method, self.small, self.name)
        if config.pretrain_steps and self.kept is None:
            self.kept = pretrained(pool, config, self.seed)
        model = train(
            pool.inputs, uniform_labels(pool, n_labels, self.seed), int(pool.classes.max()) + 1, config,
            runtime=Runtime.create(self.seed), held_out=(pool.test_rows, pool.classes[pool.test_rows]),
            warm_start=self.kept if config.pretrain_steps else None,
        )  # fmt: skip
        accuracy = 100 * model.metrics["held_out_accuracy"]
        say(f"{self.name}, {n_labels} labels, seed {self.seed}, {method}: {accuracy:.1f} %")
        return [{"data": self.name, "labels": n_labels, "method": method, "seed": self.seed,
                 "accuracy": accuracy, "temperature": model.temperature}]  # fmt: skip


def main(arguments: Arguments) -> Record:
    parts = Parts(arguments.out, {"config": dataclasses.asdict(settings("fixmatch", arguments.small))})
    rows = []
    for name in arguments.only or ("fsdd", "speech_commands", "mnist", "cifar10"):
        pool = load(name, arguments.data, arguments.small)
        for seed in range(SEEDS):
            trainings = Trainings(name, pool, seed, arguments.small)
            for n_labels, method in product(BUDGETS, METHODS):
                measure = partial(trainings.row, method, n_labels)
                rows += parts.rows(f"{name}, {n_labels} labels, seed {seed}, {method}", measure)
    return Record(rows, parts.settings, claims(rows), plot(rows), parts.earlier_seconds)


def claims(rows: list[dict]) -> dict:
    table = {
        f"{data}, {n_labels} labels": {
            method: mean_and_deviation([r["accuracy"] for r in rows
                                        if (r["data"], r["labels"], r["method"]) == (data, n_labels, method)])
            for method in METHODS
        }
        for data in dict.fromkeys(row["data"] for row in rows)
        for n_labels in BUDGETS
    }  # fmt: skip
    none, some, mix, fix = METHODS
    in_order = [cell[none]["mean"] < cell[some]["mean"] < max(cell[mix]["mean"], cell[fix]["mean"])
                for cell in table.values()]  # fmt: skip
    return {"table": table, "in_order": sum(in_order), "of": len(in_order)}


def plot(rows: list[dict]):
    lines = [{**row, "line": f"{row['data']}: {row['method']}"} for row in rows]
    return curves(lines, "labels", "accuracy", by="line", title="Test accuracy with few labels, %")


if __name__ == "__main__":
    run("ssl_table", main)
