"""The process that runs an encoder: onnxruntime with limits on time and memory.

Started by `core.encoders.runner` as `python -m core.encoders.encoding_process`. An endless
loop, excessive memory or a crash in native code ends this process and not its parent.

    in    one JSON line of settings; then requests: a JSON line [[shape, dtype], ...] and the bytes of these arrays,
          each the windows of one item (k, ...)
    out   a JSON line about the session; then for each request a JSON line and the bytes of (windows, width) float32
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from core.encoders.description import AudioInput, EncoderDescription, PictureInput, parse_description
from core.encoders.folders import JSON, ONNX
from core.encoders.graphs import read_model
from core.encoders.tensors import pixels_to_input, pool_positions, samples_to_input
from core.errors import InvalidInput

BATCH = 8  # windows at once, if the network accepts any number: larger batches are not faster on a CPU
LOAD_SECONDS = 120
FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class Session:
    """A loaded network, checked against its description."""

    def __init__(self, data: bytes, description: EncoderDescription, threads: int) -> None:
        self.description = description
        read_model(data)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as problem:  # onnxruntime raises many types
            raise InvalidInput(f"onnxruntime cannot load encoder.onnx: {_first_line(problem)}") from problem
        self._check_input()
        names = [one.name for one in self.session.get_outputs()]
        if description.output.name not in names:
            raise InvalidInput(
                f"encoder.onnx has no output {description.output.name!r}; its outputs are {', '.join(names)}."
            )

    def _check_input(self) -> None:
        source, found = self.description.input, self.session.get_inputs()
        assert isinstance(source, AudioInput | PictureInput)
        by_name = {one.name: one for one in found}
        if source.name not in by_name:
            raise InvalidInput(f"encoder.onnx has no input {source.name!r}; its inputs are {', '.join(by_name)}.")
        others = [name for name in by_name if name != source.name]
        if others:
            raise InvalidInput(f"encoder.onnx needs more than one input: {', '.join(others)} beside {source.name}.")
        one = by_name[source.name]
        if one.type not in FLOATS:
            raise InvalidInput(f"The input {one.name} is a {one.type}; it must hold floating-point numbers.")
        self.dtype = FLOATS[one.type]
        self.batch = one.shape[0] if one.shape and isinstance(one.shape[0], int) else None
        any_length = isinstance(source, AudioInput) and not source.window
        self.size = self.batch or (1 if any_length else source.batch or BATCH)
        expected = input_shape(source)
        fits = len(one.shape) == len(expected) and all(
            not (isinstance(there, int) and wanted and there != wanted)
            for there, wanted in zip(one.shape, expected, strict=True)
        )
        if not fits:
            raise InvalidInput(
                f"The input {one.name} has the shape {one.shape}; encoder.json describes "
                f"{[axis or 'any' for axis in expected]}."
            )

    def run(self, windows: NDArray[Any]) -> NDArray[np.float32]:
        """(n, width) pooled outputs of at most `size` windows (n, ...)."""
        source, output, n = self.description.input, self.description.output, len(windows)
        if self.batch is not None and n < self.batch:
            windows = np.concatenate([windows, np.repeat(windows[-1:], self.batch - n, axis=0)])
        if isinstance(source, PictureInput):
            values = pixels_to_input(windows, source)
        else:
            assert isinstance(source, AudioInput)
            values = samples_to_input(windows, source)
        try:
            found = self.session.run([output.name], {source.name: values.astype(self.dtype, copy=False)})[0]
        except Exception as problem:  # onnxruntime raises many types
            raise InvalidInput(f"The network failed: {_first_line(problem)}") from problem
        if not isinstance(found, np.ndarray) or found.ndim < 2 or len(found) != len(windows):
            raise InvalidInput(
                f"The output {output.name} has the shape {getattr(found, 'shape', None)} for {len(windows)} windows; "
                "its first axis must be the windows."
            )
        return pool_positions(found, output.dimension, output.axis, output.pooling)[:n]


def input_shape(source: AudioInput | PictureInput) -> list[int | None]:
    """The axes of the network's input; None for an axis of any size."""
    if isinstance(source, AudioInput):
        samples = source.window or None
        return [None, samples] if source.layout == "BT" else [None, 1, samples]
    height, width = source.size
    return [None, source.channels, height, width] if source.layout == "NCHW" else [None, height, width, source.channels]


def _first_line(problem: Exception) -> str:
    if any(words in str(problem) for words in ("Failed to allocate", "bad_alloc")):
        return "It needs more memory than the limit allows (encode_bytes)."
    lines = [line for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    return lines[0][:300]


def confine(extra_bytes: int) -> None:
    """Limit the rest of this process: memory in addition to what is mapped already, no core file, no new files."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    most = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends this process, also in the middle of C code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the pipe


def main() -> None:
    """Answer requests from stdin until it is closed."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # only replies go to the parent's pipe, even if a library prints
    settings = json.loads(requests.readline())
    folder = Path(settings["folder"])
    try:
        description, data = parse_description((folder / JSON).read_bytes()), (folder / ONNX).read_bytes()
    except (InvalidInput, OSError) as problem:
        _reply(replies, {"error": f"Its folder cannot be read, and may have been removed: {problem}"})
        return
    confine(int(settings["bytes"]))
    signal.setitimer(signal.ITIMER_REAL, LOAD_SECONDS)
    try:
        session = Session(data, description, int(settings["threads"]))
    except (InvalidInput, MemoryError) as problem:
        _reply(replies, {"error": str(problem) or "There is not enough memory to load encoder.onnx."})
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    del data
    gc.freeze()
    _reply(replies, {"batch": session.batch})
    while line := requests.readline():
        arrays = [_read_array(requests, shape, dtype) for shape, dtype in json.loads(line)]
        try:
            found = _encode_items(session, arrays, float(settings["seconds"]))
            _reply(replies, {"shape": found.shape}, found)
        except (InvalidInput, MemoryError) as problem:
            signal.setitimer(signal.ITIMER_REAL, 0)
            _reply(replies, {"error": str(problem) or "There is not enough memory for this item."})


def _encode_items(session: Session, items: list[NDArray[Any]], seconds: float) -> NDArray[np.float32]:
    """The windows of all items, in order. Windows of one shape are run together; each run has `seconds`."""
    found, start = [], 0
    while start < len(items):
        stop = start + 1
        while stop < len(items) and items[stop].shape[1:] == items[start].shape[1:]:
            stop += 1
        windows = np.concatenate(items[start:stop])
        for first in range(0, len(windows), session.size):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            found.append(session.run(windows[first : first + session.size]))
        start = stop
    signal.setitimer(signal.ITIMER_REAL, 0)
    return np.concatenate(found)


def _read_array(stream: IO[bytes], shape: list[int], dtype: str) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    view = memoryview(array.reshape(-1).view(np.uint8).data)
    at = 0
    while at < len(view):
        block = stream.read(len(view) - at)
        if not block:
            raise EOFError
        view[at : at + len(block)] = block
        at += len(block)
    return array


def _reply(stream: IO[bytes], about: dict[str, Any], array: NDArray[Any] | None = None) -> None:
    stream.write((json.dumps(about) + "\n").encode())
    if array is not None:
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


if __name__ == "__main__":
    main()
