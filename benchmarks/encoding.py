"""Items per CPU second of an encoder in its process with limits, against a bare onnxruntime loop over the same arrays.

    .venv/bin/python -m benchmarks.encoding [--items 400] [--encoder FOLDER]

Both get prepared windows (pictures of random bytes, or noise) and return features; the encoder's process also receives
and sends them, checks that they are finite, and pools windows. CPU time is that of all processes. Last line: one JSON
object; `ratio` is items per CPU second divided by those of the bare loop in the same run, the median of three
alternating runs each (at least 0.8 is promised).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from core.encoders.description import AudioInput, PictureInput
from core.encoders.encoding_process import BATCH
from core.encoders.folders import ONNX, Encoder, open_encoder
from core.encoders.pool import WINDOWS_AT_ONCE
from core.encoders.recipes import make_built_in
from core.encoders.runner import EncoderRunner, default_threads
from core.encoders.tensors import pixels_to_input, samples_to_input

RUNS = 3


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def windows(encoder: Encoder, n: int) -> list[np.ndarray]:
    draw, source = np.random.default_rng(0), encoder.description.input
    if isinstance(source, PictureInput):
        return [draw.integers(0, 256, (*source.size, source.channels), np.uint8) for _ in range(n)]
    assert isinstance(source, AudioInput)
    length = source.window or source.sample_rate
    return [draw.normal(size=length).astype(np.float32) * np.float32(0.1) for _ in range(n)]


def bare_loop(encoder: Encoder, items: list[np.ndarray]) -> float:
    """CPU seconds of onnxruntime alone, after one warm-up run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = default_threads(), 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(encoder.folder / ONNX), options, providers=["CPUExecutionProvider"])
    source, output = encoder.description.input, encoder.description.output
    assert isinstance(source, AudioInput | PictureInput)
    shape = session.get_inputs()[0].shape
    fixed = shape[0] if isinstance(shape[0], int) else None
    free = 1 if isinstance(source, AudioInput) and not source.window else source.batch or BATCH
    size = fixed or free

    def run(part: list[np.ndarray]) -> None:
        stacked = np.stack(part)
        is_picture = isinstance(source, PictureInput)
        values = pixels_to_input(stacked, source) if is_picture else samples_to_input(stacked, source)
        session.run([output.name], {source.name: values})

    run(items[:size])
    began = cpu_seconds()
    for start in range(0, len(items) - len(items) % size, size):
        run(items[start : start + size])
    return cpu_seconds() - began


def own_process(encoder: Encoder, items: list[np.ndarray]) -> float:
    """CPU seconds of the encoder's process and this one, without those of its start."""

    def timed(part: list[np.ndarray]) -> float:
        began = cpu_seconds()
        with EncoderRunner(encoder) as runner:
            for start in range(0, len(part), WINDOWS_AT_ONCE):
                found = runner.encode([[one] for one in part[start : start + WINDOWS_AT_ONCE]])
                assert not any(isinstance(one, str) for one in found)
        return cpu_seconds() - began

    return timed(items) - timed(items[:WINDOWS_AT_ONCE])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--encoder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        built_in = asked.encoder is None
        encoder = make_built_in(Path(home), "efficientnet-lite0") if built_in else open_encoder(asked.encoder)
        items = windows(encoder, asked.items)
        bare, own = list[float](), list[float]()
        for _ in range(RUNS):
            bare.append(asked.items / bare_loop(encoder, items))
            own.append((asked.items - WINDOWS_AT_ONCE) / own_process(encoder, items))
    result = {
        "encoder": encoder.name,
        "items_per_cpu_second": round(statistics.median(own), 1),
        "bare_loop": round(statistics.median(bare), 1),
        "ratio": round(statistics.median(own) / statistics.median(bare), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
