"""Predictions of the model in this folder, without the program that trained it.

    python predict.py FILE_OR_FOLDER ...          file, class and confidence as CSV
    python predict.py --all FILE_OR_FOLDER ...    also the probability of every class

An encoder (encoder.onnx) turns a file into features, and a head (head.onnx) turns these into probabilities. The script
needs Python 3.10 or newer with numpy, onnxruntime, Pillow for pictures, and soundfile and soxr for audio. If the
license of the encoder does not allow its redistribution, encoder.onnx is missing: model.json states its name and hash;
copy the file into this folder.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Array = np.ndarray[Any, Any]


class Model:
    """The encoder and the head of the folder, with the class names."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self.classes: list[str] = [one["name"] for one in about["classes"]]
        settings = about["encoder"]["settings"]
        self.kind, self.input, self.output = settings["kind"], settings["input"], settings["output"]
        self.encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"), providers=["CPUExecutionProvider"])
        self.head = onnxruntime.InferenceSession(str(folder / "head.onnx"), providers=["CPUExecutionProvider"])

    def features(self, data: bytes) -> Array:
        """(width,) features of one file: its encoded windows, pooled; the mean over its shifts."""
        shifts = self.clips(data) if self.kind == "audio" else [self.crops(data)]
        found = [self.pooled(np.stack([self.vector(one) for one in windows])) for windows in shifts]
        return np.asarray(np.mean(found, axis=0))

    def pooled(self, vectors: Array) -> Array:
        """(width,) pooled from the vectors (n, width) of windows."""
        pooling = self.output["pooling"]
        if pooling == "max":
            return np.asarray(vectors.max(0))
        if pooling != "mean+max":
            return np.asarray(vectors.mean(0))
        half = vectors.shape[1] // 2
        return np.concatenate([vectors[:, :half].mean(0), vectors[:, half:].max(0)])

    def vector(self, window: Array) -> Array:
        """(width,) vector of one window (1, ...)."""
        one = self.encoder.get_inputs()[0]
        n = one.shape[0] if isinstance(one.shape[0], int) else 1
        dtype = {"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(one.type, np.float32)
        values = np.repeat(window, n, axis=0).astype(dtype)
        found = self.encoder.run([self.output["name"]], {self.input["name"]: values})[0][:1].astype(np.float32)
        rows = np.moveaxis(found, self.output["axis"], -1).reshape(-1, self.output["dimension"])
        pooling = self.output["pooling"]
        if pooling in ("none", "first"):
            return np.asarray(rows[0])
        parts = [rows.mean(0)] if "mean" in pooling else []
        parts += [rows.max(0)] if "max" in pooling else []
        return np.concatenate(parts)

    def clips(self, data: bytes) -> list[list[Array]]:
        """The windows of a clip at each of its positions in the margin."""
        import soundfile
        import soxr

        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        mono, about = samples.mean(axis=1), self.input
        if rate != about["sample_rate"]:
            mono = soxr.resample(mono, rate, about["sample_rate"], quality="HQ")
        peak = np.abs(mono).max(initial=0.0)
        if about["level"] == "peak" and peak > 0:
            mono = mono / peak
        margin, n_shifts = about["margin"], about["shifts"]
        if margin and not about["window"]:
            mono = np.pad(mono, (0, max(0, about["shortest"] - len(mono))))
        first, last = (0, margin) if n_shifts > 1 else (margin // 2, margin // 2)
        starts = [int(one) for one in np.linspace(first, last, n_shifts).round()]
        return [self.cut(np.pad(mono, (start, margin - start))) for start in starts]

    def cut(self, mono: Array) -> list[Array]:
        """The windows of samples (T,)."""
        about = self.input
        parts = max(math.ceil(len(mono) / about["longest"]), 1)
        length = about["window"] or max(about["shortest"], math.ceil(len(mono) / parts))
        spare = len(mono) - length
        starts = [0]
        if spare > 0:
            step = (about["hop"] or max(1, length // 2)) if about["window"] else length
            n = min(about["max_windows"], math.ceil(spare / step) + 1)
            starts = [int(one) for one in np.linspace(0, spare, n).round()]
        cut = [np.pad(mono[start : start + length], (0, max(-spare, 0)))[None] for start in starts]
        return cut if about["layout"] == "BT" else [one[:, None] for one in cut]

    def crops(self, data: bytes) -> list[Array]:
        from PIL import Image, ImageOps

        about, (height, width) = self.input, self.input["size"]
        image: Image.Image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        image = image.convert("L" if about["colors"] == "L" else "RGB")
        scale = max(height / image.height, width / image.width)
        tall, wide = max(height, round(image.height * scale)), max(width, round(image.width * scale))
        n = min(about["crops"], math.ceil(max(tall / height, wide / width) - 1e-6))
        if n > 1:
            large = np.asarray(image.resize((wide, tall), Image.Resampling.BILINEAR, reducing_gap=3.0))
            tops, lefts = (np.linspace(0, spare, n).round().astype(int) for spare in (tall - height, wide - width))
            return [self.tensor(large[y : y + height, x : x + width]) for y, x in zip(tops, lefts, strict=True)]
        if about["fit"] == "crop":
            image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
        elif about["fit"] == "fit":
            image = with_borders(image, (width, height))
        elif image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
        return [self.tensor(np.asarray(image))]

    def tensor(self, pixels: Array) -> Array:
        about = self.input
        pixels = pixels.reshape(1, *pixels.shape[:2], -1)
        pixels = pixels[..., ::-1] if about["colors"] == "BGR" else pixels
        values = (pixels.astype(np.float32) * (about["range"] / 255) - np.array(about["mean"])) / np.array(about["std"])
        return np.asarray(values.transpose(0, 3, 1, 2) if about["layout"] == "NCHW" else values)

    def predict(self, paths: list[str | Path]) -> Array:
        """(n, n_classes) probabilities of these files."""
        features = np.stack([self.features(Path(path).read_bytes()) for path in paths]).astype(np.float32)
        return np.asarray(self.head.run(["probabilities"], {"features": features})[0])


def with_borders(image: Any, size: tuple[int, int]) -> Any:
    """The whole picture at this size, with borders in its mean color."""
    from PIL import Image

    scale = min(size[0] / image.width, size[1] / image.height)
    inner = [min(max(round(side * scale), 1), most) for side, most in zip(image.size, size, strict=True)]
    small = image.resize((inner[0], inner[1]), Image.Resampling.BILINEAR, reducing_gap=3.0)
    mean = np.asarray(small, np.float64).reshape(inner[0] * inner[1], -1).mean(0).round().astype(int).tolist()
    whole = Image.new(image.mode, size, mean[0] if len(mean) == 1 else tuple(mean))
    whole.paste(small, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the classes of files.")
    parser.add_argument("paths", nargs="+", help="Files or folders.")
    parser.add_argument("--all", action="store_true", help="Also write the probability of every class.")
    arguments = parser.parse_args()
    model = Model(Path(__file__).resolve().parent)
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", "class", "confidence", *(model.classes if arguments.all else [])])
    given = [Path(path) for path in arguments.paths]
    files = [file for path in given for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    for path in files:
        if not path.is_file():
            continue
        try:
            row = model.predict([path])[0]
        except Exception as problem:  # decoders raise errors of many types
            reason = getattr(problem, "error_string", problem)  # of soundfile: without an object address
            sys.stderr.write(f"{path} cannot be read: {reason}\n")
            continue
        best = int(row.argmax())
        every = [f"{value:.6f}" for value in row] if arguments.all else []
        writer.writerow([str(path), model.classes[best], f"{row[best]:.6f}", *every])


if __name__ == "__main__":
    main()
