"""The data sets of the benchmark as encoded features: a manifest `path,label,split` and an encoder make a set.

A set is a folder with `manifest.csv`. Rows of the splits "pool" and "train" are the pool, those of "test" the test
items. Sets that come as arrays (cifar10, mnist, digits) are written as PNG files with a manifest first. Every item
is encoded once by `core.encoders`; features are kept in OUT/features, and an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

from core.config import MediaConfig
from core.encoders.folders import Encoder, open_encoder
from core.encoders.recipes import RECIPES, make_built_in
from core.encoders.runner import EncoderRunner
from core.encoders.windows import windows_of
from core.errors import InvalidInput, NotFound
from core.media.inputs import prepare
from core.rows import MemoryRowCache
from core.similarity.gradient_histograms import gradient_histograms
from experiments.record import say

BLOCK = 32  # items encoded at a time
SAVED_EVERY = 20  # blocks
POOL_SPLITS = ("pool", "train")


@dataclass(frozen=True)
class Source:
    """A data set: where its manifest is, and its encoder."""

    name: str
    folder: Path
    encoder: str


@dataclass(frozen=True)
class FeatureSet:
    """Encoded items."""

    name: str
    features: NDArray[np.float32]  # (n, d) pool
    classes: NDArray[np.int64]  # (n,)
    test_features: NDArray[np.float32]
    test_classes: NDArray[np.int64]

    @property
    def n_classes(self) -> int:
        return int(self.classes.max()) + 1


def known_sources(data: Path, out: Path) -> dict[str, Source]:
    """The available sets: folders of `data`, and the sample of the repository."""
    sample = Path(__file__).resolve().parents[2] / "sample_data" / "spoken_digits"
    speech, pictures = "moonshine-tiny", "efficientnet-lite0"
    return {
        "spoken_digit": Source("spoken_digit", data / "fsdd", speech),
        "speech_commands": Source("speech_commands", data / "speech_commands", speech),
        "spoken_sample": Source("spoken_sample", sample, speech),
        "sounds": Source("sounds", data / "sounds", "yamnet"),
        "flowers": Source("flowers", data / "flowers", pictures),
        "cifar10": Source("cifar10", out / "pictures" / "cifar10", pictures),
        "mnist": Source("mnist", out / "pictures" / "mnist", pictures),
        "digits": Source("digits", out / "pictures" / "digits", pictures),
    }


def write_pictures(source: Source, data: Path) -> None:
    """PNG files and a manifest for a set that comes as arrays."""
    if (source.folder / "manifest.csv").exists():
        return
    source.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (pixels, label, split) in enumerate(_arrays(source.name, data)):
        Image.fromarray(pixels).save(source.folder / f"{number:05}.png")
        rows.append((f"{number:05}.png", label, split))
    with (source.folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])


def _arrays(name: str, data: Path) -> Iterator[tuple[NDArray[np.uint8], str, str]]:
    if name == "digits":  # the last 400 pictures are test items: they were written by other people
        digits = load_digits()
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            yield (pixels * 255 / 16).astype(np.uint8), str(label), "pool" if number < 1_397 else "test"
        return
    file = {"cifar10": "cifar10_exact_4k.npz", "mnist": "mnist.npz"}[name]
    arrays = np.load(data / name / file)
    limit = {"pool": 3_000 if name == "mnist" else 4_000, "test": 1_000}
    for split, part in (("pool", "train"), ("test", "test")):
        for pixels, label in zip(arrays[f"x_{part}"][: limit[split]], arrays[f"y_{part}"][: limit[split]], strict=True):
            yield pixels, str(label), split


def find_encoder(name: str, encoders: Path, out: Path) -> Encoder:
    """The encoder in the folder of this name, or the built-in one."""
    if (encoders / name).is_dir():
        return open_encoder(encoders / name)
    if name in RECIPES:
        return make_built_in(out / "home", name)
    raise NotFound(f"There is no encoder {encoders / name}. Name the folder of your encoders with --encoders.")


@dataclass(frozen=True)
class Places:
    """Folders of a run, and the largest pool that is used of a set (0: all items)."""

    data: Path
    encoders: Path
    out: Path
    largest_pool: int = 0


def load(source: Source, places: Places) -> FeatureSet:
    """The set with its features, encoded if they are not in OUT/features yet."""
    data, encoders, out = places.data, places.encoders, places.out
    if source.name in ("cifar10", "mnist", "digits"):
        write_pictures(source, data)
    if not (source.folder / "manifest.csv").exists():
        raise NotFound(f"{source.folder / 'manifest.csv'} does not exist. Name the folder of your data with --data.")
    rows = _rows(source, places)
    features = _encoded(
        source, [source.folder / row["path"] for row in rows], find_encoder(source.encoder, encoders, out), out
    )
    names = sorted({row["label"] for row in rows})
    classes = np.array([names.index(row["label"]) for row in rows])
    pool = np.array([row["split"] in POOL_SPLITS for row in rows])
    return FeatureSet(source.name, features[pool], classes[pool], features[~pool], classes[~pool])


def _rows(source: Source, places: Places) -> list[dict[str, str]]:
    """The rows of the manifest that are used."""
    with (source.folder / "manifest.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["split"] in (*POOL_SPLITS, "test")]
    return sampled(rows, places.largest_pool) if places.largest_pool else rows


def _encoded(source: Source, paths: list[Path], encoder: Encoder, out: Path) -> NDArray[np.float32]:
    """(n, d) features of the files; each block is saved when it is complete."""
    folder = out / "features"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{source.name}-{len(paths)}-{encoder.identity[:16]}.npy"
    done = np.load(file) if file.exists() else np.empty((0, 0), np.float32)
    if len(done) == len(paths):
        return np.asarray(done)
    found, convert = list(done), windows_of(encoder.description)
    say(f"{source.name}: encoding {len(paths) - len(found):,} items with {encoder.name}")
    with EncoderRunner(encoder, threads=1) as runner:
        for count, start in enumerate(range(len(found), len(paths), BLOCK), 1):
            block = paths[start : start + BLOCK]
            for path, encoded in zip(block, runner.encode([convert(p.read_bytes()) for p in block]), strict=True):
                if isinstance(encoded, str):
                    raise InvalidInput(f"{path} cannot be encoded: {encoded}")
                found.append(encoded)
            if count % SAVED_EVERY == 0 or start + BLOCK >= len(paths):
                np.save(file, np.stack(found))
    return np.stack(found)


def picture_vectors(source: Source, places: Places) -> NDArray[np.float32] | None:
    """(n, d) gradient histograms of the pool of a set of pictures, at the size that a network from scratch would use;
    None for sets of sounds. `load` must have written the files."""
    if source.encoder != "efficientnet-lite0":
        return None
    files = {str(number): source.folder / row["path"] for number, row in enumerate(_rows(source, places))
             if row["split"] in POOL_SPLITS}  # fmt: skip
    made = prepare(list(files), lambda name: files[name].read_bytes(), "image", MediaConfig(), MemoryRowCache())
    return gradient_histograms(np.asarray(made.clean.take(np.arange(len(files)))))


def long_tailed(full: FeatureSet, seed: int = 0, ratio: float = 0.1) -> FeatureSet:
    """A version whose class sizes fall geometrically, in a seeded order, to `ratio` of the largest. Test items do not
    change."""
    rng = np.random.default_rng(seed)
    order, most = rng.permutation(full.n_classes), np.bincount(full.classes).min()
    kept = []
    for rank, position in enumerate(order):
        size = round(most * ratio ** (rank / (full.n_classes - 1)))
        kept.append(rng.permutation(np.flatnonzero(full.classes == position))[:size])
    rows = np.sort(np.concatenate(kept))
    return FeatureSet(
        f"{full.name}-tail", full.features[rows], full.classes[rows], full.test_features, full.test_classes
    )


def sampled(rows: list[dict[str, str]], n_items: int) -> list[dict[str, str]]:
    """The test rows and a seeded sample of at most about `n_items` pool rows with the shares of the classes kept."""
    rng, kept = np.random.default_rng(0), set[int]()
    pool = [position for position, row in enumerate(rows) if row["split"] in POOL_SPLITS]
    for label in sorted({row["label"] for row in rows}):
        own = rng.permutation([position for position in pool if rows[position]["label"] == label])
        kept.update(own[: max(1, round(len(own) * min(1.0, n_items / len(pool))))].tolist())
    return [row for position, row in enumerate(rows) if position in kept or row["split"] not in POOL_SPLITS]
