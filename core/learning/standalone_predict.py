"""Predictions of the model in this folder, without the program that trained it.

    python predict.py FILE_OR_FOLDER ...          file, class and confidence as CSV
    python predict.py --all FILE_OR_FOLDER ...    and the probability of every class

It needs Python 3.10 or newer with numpy, onnxruntime, Pillow for pictures, and soundfile and soxr for audio. From
Python: `Model("folder").predict(["a.wav"])` gives one row of probabilities per file, in the order of `Model.classes`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

BATCH = 64
SUFFIXES = {
    "audio": (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff", ".aifc"),
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"),
}


class Unreadable(Exception):
    """A file that cannot be decoded."""


class Model:
    """The network with its class names and preprocessing, read from the folder."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.classes: list[str] = [one["name"] for one in about["classes"]]
        preprocess = json.loads((folder / "preprocess.json").read_text(encoding="utf-8"))
        self.kind: str = preprocess["kind"]
        self.steps: dict[str, dict[str, Any]] = {one["step"]: one for one in preprocess["outside"]}
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=onnxruntime.get_available_providers()
        )
        self.input: str = preprocess["input"]["name"]

    def prepare(self, data: bytes) -> np.ndarray[Any, Any]:
        """(k, ...) inputs of one file, as preprocess.json describes them: windows of long audio, else one. Raises
        Unreadable."""
        try:
            return prepare_clips(data, self.steps) if self.kind == "audio" else prepare_picture(data, self.steps)[None]
        except Exception as problem:  # decoders raise errors of many types
            raise Unreadable(str(problem)) from problem

    def predict_inputs(self, inputs: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Inputs of n files, as `prepare` gives them -> (n, n_classes) probabilities."""
        every = np.concatenate(inputs)
        parts = [every[start : start + BATCH] for start in range(0, len(every), BATCH)]
        found = np.concatenate([self.session.run(["probabilities"], {self.input: part})[0] for part in parts])
        ends = np.cumsum([len(one) for one in inputs])
        return np.stack([found[end - len(one) : end].mean(0) for one, end in zip(inputs, ends, strict=True)])

    def predict(self, paths: Sequence[str | Path]) -> np.ndarray[Any, Any]:
        """(n, n_classes) probabilities of these files."""
        return self.predict_inputs([self.prepare(Path(path).read_bytes()) for path in paths])


def prepare_clips(data: bytes, steps: dict[str, dict[str, Any]]) -> np.ndarray[Any, Any]:
    import soundfile
    import soxr

    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    channel = steps["mono"].get("channel", 0)
    mono = samples[:, channel - 1] if 1 <= channel <= samples.shape[1] else samples.mean(axis=1)
    if not len(mono) or not np.isfinite(mono).all():
        raise Unreadable("The audio has no samples, or samples that are not numbers.")
    seconds, target = len(mono) / rate, steps["resample"]["sample_rate"]
    if rate != target:
        mono = soxr.resample(mono, rate, target, quality="HQ")
    return np.stack([cut(mono, start, steps["fit"]) for start in starts_of(mono, seconds, steps)])


def starts_of(mono: np.ndarray[Any, Any], seconds: float, steps: dict[str, dict[str, Any]]) -> list[int]:
    """The first samples of the inputs: windows of long audio, else the part that the settings name."""
    windows, length = steps["windows"], steps["fit"]["samples"]
    spare = len(mono) - length
    if spare <= 0:
        return [0]
    if windows["most"] > 1 and seconds > windows["seconds"] + windows["tolerance_seconds"]:
        n = min(windows["most"], math.ceil(seconds / windows["seconds"]))
        return [int(one) for one in np.linspace(0, spare, n).round()]
    if steps["fit"]["from"] == "loudest":
        energy = np.concatenate([[0.0], np.cumsum(mono.astype(np.float64) ** 2)])
        return [int(np.argmax(energy[length:] - energy[:-length]))]
    return [spare // 2 if steps["fit"]["from"] == "center" else 0]


def cut(mono: np.ndarray[Any, Any], start: int, fit: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The samples from `start` on, padded to the length of an input and scaled."""
    length = fit["samples"]
    mono = mono[start : start + length]
    before = 0 if fit["from"] == "start" else (length - len(mono)) // 2
    clip = np.pad(mono, (before, length - len(mono) - before)).astype(np.float32)
    peak = np.abs(clip).max(initial=0.0)
    clip = clip / peak if peak > 0 else clip
    return clip.astype(np.float16).astype(np.float32)


def to_srgb(image: Any) -> Any:
    """The picture with its colors in sRGB, where it has an ICC profile that applies to it."""
    from PIL import ImageCms

    profile, mode = image.info.get("icc_profile"), image.mode
    described = {"L": "L", "RGB": "RGB", "RGBA": "RGB", "P": "RGB", "CMYK": "CMYK"}.get(mode)
    if not profile or described is None or len(profile) > 8 << 20:
        return image
    if b"sRGB" in profile or "sRGB".encode("utf-16-be") in profile:
        return image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), described, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    has_alpha = mode == "RGBA" or (mode == "P" and "transparency" in image.info)
    alpha = image.convert("RGBA").getchannel("A") if has_alpha else None
    made = transform.apply(image if mode == described else image.convert(described))
    if alpha is not None:
        made.putalpha(alpha)
    return made.convert("L") if mode == "L" else made


def prepare_picture(data: bytes, steps: dict[str, dict[str, Any]]) -> np.ndarray[Any, Any]:
    from PIL import Image, ImageOps

    image: Image.Image = Image.open(io.BytesIO(data), formats=steps["decode"]["formats"])
    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        deep = np.asarray(image).astype(np.int64)
        image = Image.fromarray((deep >> 8).clip(0, 255).astype(np.uint8))
    if "profile" in steps:
        image = to_srgb(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    elif image.mode == "1":
        image = image.convert("L")
    elif image.mode != "L":
        image = image.convert("RGB")
    channels, resize = steps["mode"]["channels"], steps["resize"]
    image = image.convert("L" if channels == 1 else "RGB")
    size = resize["width"], resize["height"]
    if resize["fit"] == "crop":
        image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    elif resize["fit"] == "fit":
        scale = min(size[0] / image.width, size[1] / image.height)
        inner = [min(max(round(side * scale), 1), most) for side, most in zip(image.size, size, strict=True)]
        small = image.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, reducing_gap=3.0)
        mean = np.asarray(small, np.float64).reshape(inner[0] * inner[1], -1).mean(0).round().astype(int).tolist()
        image = Image.new(image.mode, size, mean[0] if len(mean) == 1 else tuple(mean))
        image.paste(small, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    elif image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
    return np.asarray(image, dtype=np.uint8).reshape(resize["height"], resize["width"], channels)


def files_of(paths: Sequence[str], kind: str) -> Iterator[Path]:
    """Files as given; of a folder, the files of the model's kind, in the order of their names."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from (
                one for one in sorted(path.rglob("*")) if one.is_file() and one.suffix.lower() in SUFFIXES[kind]
            )
        else:
            yield path


def batches(files: Iterator[Path], model: Model) -> Iterator[tuple[list[Path], list[np.ndarray[Any, Any]]]]:
    """Readable files with their inputs, at most BATCH at once; unreadable files are named on stderr."""
    paths: list[Path] = []
    inputs: list[np.ndarray[Any, Any]] = []
    for path in files:
        try:
            inputs.append(model.prepare(path.read_bytes()))
            paths.append(path)
        except (OSError, Unreadable) as problem:
            reason = getattr(problem, "error_string", problem)  # of soundfile, without the address of an object
            sys.stderr.write(f"{path} cannot be read: {reason}\n")
        if len(inputs) == BATCH:
            yield paths, inputs
            paths, inputs = [], []
    if inputs:
        yield paths, inputs


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the classes of files.")
    parser.add_argument("paths", nargs="+", help="Files or folders.")
    parser.add_argument("--all", action="store_true", help="Also write the probability of every class.")
    arguments = parser.parse_args()
    model = Model(Path(__file__).resolve().parent)
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", "class", "confidence", *(model.classes if arguments.all else [])])
    for paths, inputs in batches(files_of(arguments.paths, model.kind), model):
        for path, row in zip(paths, model.predict_inputs(inputs), strict=True):
            best = int(row.argmax())
            every = [f"{value:.6f}" for value in row] if arguments.all else []
            writer.writerow([str(path), model.classes[best], f"{row[best]:.6f}", *every])


if __name__ == "__main__":
    main()
