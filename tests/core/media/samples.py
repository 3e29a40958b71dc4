"""Small files in memory, and a reader that counts."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import soundfile
from PIL import Image


def wav(samples, rate=16_000, format="WAV", subtype=None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.asarray(samples), rate, format=format, subtype=subtype)
    return file.getvalue()


def png(array, format="PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(array, np.uint8)).save(file, format=format, **options)
    return file.getvalue()


def tone(frequency=440.0, seconds=0.5, rate=16_000, amplitude=0.5):
    return (amplitude * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


class MemoryReader:
    """A MediaReader over files in memory."""

    def __init__(self, *files: bytes) -> None:
        self.files = {hashlib.sha256(data).hexdigest(): data for data in files}
        self.reads = 0

    @property
    def hashes(self) -> list[str]:
        return list(self.files)

    def __call__(self, name: str) -> bytes:
        self.reads += 1
        return self.files[name]
