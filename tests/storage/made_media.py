"""Small media files for tests: valid ones, and ones that only look valid."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image


def wav(seed: int = 0, n_samples: int = 800, rate: int = 8_000, channels: int = 1) -> bytes:
    """16-bit PCM, written by hand so that impossible headers can be made too."""
    rng = np.random.default_rng(seed)
    data = rng.integers(-3000, 3000, n_samples * channels, dtype=np.int16).tobytes()
    return riff(struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16), data)


def riff(form: bytes, data: bytes) -> bytes:
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def sound(form: str, seed: int = 0, rate: int = 8_000, n_samples: int = 4_000, subtype: str | None = None) -> bytes:
    """Encoded by libsndfile: FLAC, OGG, MP3, WAV."""
    rng = np.random.default_rng(seed)
    stream = io.BytesIO()
    stream.name = f"x.{form.lower()}"
    soundfile.write(stream, rng.uniform(-0.3, 0.3, n_samples), rate, format=form, subtype=subtype)
    return stream.getvalue()


def lying_mp3(seconds: float = 1.0, rate: int = 16_000) -> bytes:
    """An MP3 whose Xing/Info header claims more frames and bytes than any file has."""
    stream = io.BytesIO()
    samples = 0.3 * np.sin(np.arange(int(seconds * rate)) / 5)
    soundfile.write(stream, samples, rate, format="MP3", bitrate_mode="VARIABLE")
    data = bytearray(stream.getvalue())
    at = max(data.find(b"Xing"), data.find(b"Info"))
    assert at > 0, "the encoder wrote no Xing/Info header"
    data[at + 4 : at + 16] = b"\xff" * 12
    return bytes(data)


def rf64() -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(4_000, np.float32), 8_000, format="RF64", subtype="PCM_16")
    return stream.getvalue()


def gray16(level: int = 12_600, size: tuple[int, int] = (12, 8)) -> bytes:
    """A PNG of one 16-bit gray level."""
    stream = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0]), level, np.uint16)).save(stream, "PNG")
    return stream.getvalue()


def color16(level: int = 12_600, size: tuple[int, int] = (12, 8)) -> bytes:
    """A PNG of 16 bits per channel, written by hand because Pillow only reads this kind."""
    row = b"\x00" + struct.pack(">HHH", level, level // 2, 0) * size[0]
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", size[0], size[1], 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * size[1])),
        (b"IEND", b""),
    ]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def long_picture() -> bytes:
    """A progressive JPEG whose last scan is repeated 500 times: decoding takes half a minute on any machine."""
    stream = io.BytesIO()
    Image.new("L", (7_900, 7_900)).save(stream, "JPEG", progressive=True)
    whole, end = stream.getvalue()[:-2], stream.getvalue()[-2:]
    return whole + 500 * whole[whole.rindex(b"\xff\xda") :] + end


def picture(form: str = "PNG", seed: int = 0, size: tuple[int, int] = (12, 8)) -> bytes:
    rng = np.random.default_rng(seed)
    stream = io.BytesIO()
    pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def zip_of(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tiff(picture: Image.Image | None = None, **options: object) -> bytes:
    """By Pillow; without a picture, gray noise of 8 bits."""
    if picture is None:
        picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 12), np.uint8))
    stream = io.BytesIO()
    picture.save(stream, "TIFF", **options)
    return stream.getvalue()


def tiff16(level: int = 12_600, size: tuple[int, int] = (12, 8)) -> bytes:
    """One 16-bit gray level."""
    return tiff(Image.fromarray(np.full((size[1], size[0]), level, np.uint16)))


def avif(size: tuple[int, int] = (16, 12)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, (200, 40, 90)).save(stream, "AVIF", quality=90)
    return stream.getvalue()
