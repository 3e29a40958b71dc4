"""Public labeled data sets in the form that `python -m app simulate` reads: a manifest `path,label,split`.

If a folder has no manifest, like the public downloads, one is written from the set's own split:

fsdd             recordings/{digit}_{speaker}_{index}.wav; index 0 to 4 is the test split
speech_commands  one folder for each word; testing_list.txt names the test clips, validation_list.txt is left out
mnist            mnist.npz (x_train, y_train, x_test, y_test): written as PNG files

The split by speaker of fsdd takes all clips of one speaker as the test split and those of the others as the pool.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from core.errors import InvalidInput, NotFound

ADDRESSES = {
    "fsdd": "https://github.com/Jakobovski/free-spoken-digit-dataset",
    "speech_commands": "http://download.tensorflow.org/data/speech_commands_v0.01.tar.gz",
    "mnist": "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
}
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SMALL_POOL, SMALL_TEST = 2_700, 1_000  # of mnist
Row = tuple[str, str, str]


def manifest(name: str, data: Path, out: Path, small: bool) -> Path:
    """The manifest of the data set in the folder `data`; pictures made of arrays are kept in `out`."""
    folder = data / name
    if not folder.is_dir():
        raise NotFound(
            f"{folder} does not exist. Unpack {ADDRESSES[name]} into it, or name another folder with --data."
        )
    if name == "mnist":
        return _pictures(folder / "mnist.npz", out / ("mnist" if small else "mnist-full"), small)
    found = folder / "manifest.csv"
    if not found.exists():
        rows = _digits(folder) if name == "fsdd" else _commands(folder)
        _write(found, rows)
    return found


def manifest_by_speaker(data: Path, out: Path, speaker: str) -> Path:
    """The manifest of fsdd with `speaker` as the test split, beside copies of the recordings in `out`."""
    folder = data / "fsdd" / "recordings"
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist. Unpack {ADDRESSES['fsdd']}, or name another folder with --data.")
    files = sorted(folder.glob("*.wav"))
    speakers = sorted({path.stem.split("_")[1] for path in files})
    if speaker not in speakers:
        raise InvalidInput(f"There is no speaker {speaker!r}; choose one of {', '.join(speakers)} with --speaker.")
    target = out / f"fsdd-speaker-{speaker}"
    found = target / "manifest.csv"
    if found.exists():
        return found
    (target / "recordings").mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for path in files:
        digit, voice, _ = path.stem.split("_")
        shutil.copyfile(path, target / "recordings" / path.name)
        rows.append((f"recordings/{path.name}", DIGITS[int(digit)], "test" if voice == speaker else "pool"))
    _write(found, rows)
    return found


def noise_folder(name: str, data: Path) -> str:
    """The folder of the data set's background noise, if it has one."""
    folder = data / name / "_background_noise_"
    return str(folder.resolve()) if folder.is_dir() else ""


def _digits(folder: Path) -> list[Row]:
    rows = []
    for path in sorted((folder / "recordings").glob("*.wav")):
        digit, _, index = path.stem.split("_")
        rows.append((f"recordings/{path.name}", DIGITS[int(digit)], "test" if int(index) < 5 else "pool"))
    return rows


def _commands(folder: Path) -> list[Row]:
    test = set((folder / "testing_list.txt").read_text().split())
    left_out = set((folder / "validation_list.txt").read_text().split())
    rows = []
    for word in WORDS:
        for path in sorted((folder / word).iterdir()):
            name = f"{word}/{path.name}"
            if name not in left_out:
                rows.append((name, word, "test" if name in test else "pool"))
    return rows


def _pictures(file: Path, target: Path, small: bool) -> Path:
    found = target / "manifest.csv"
    if found.exists():
        return found
    arrays = np.load(file)
    rows: list[Row] = []
    for part, split, limit in (("train", "pool", SMALL_POOL), ("test", "test", SMALL_TEST)):
        (target / split).mkdir(parents=True, exist_ok=True)
        pictures, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        for number in range(min(limit, len(pictures)) if small else len(pictures)):
            name = f"{split}/{number:05d}.png"
            Image.fromarray(pictures[number]).save(target / name)
            rows.append((name, DIGITS[int(labels[number])], split))
    _write(found, rows)
    return found


def _write(path: Path, rows: Iterable[Row]) -> None:
    draft = path.with_suffix(f".{os.getpid()}.part")
    with draft.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["path", "label", "split"])
        writer.writerows(rows)
    draft.rename(path)
