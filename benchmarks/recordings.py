"""Windows of long recordings: the cost of the last one against the first, and memory.

    .venv/bin/python -m benchmarks.recordings [--hours 2] [--rf64-gb 5] [--folder /fast/disk]

Last line: one JSON object. `<format>_last_over_first` is the ratio of CPU times of reading the last window of 5 s and
the first one (median of 21; the files were hashed before): at most 1.5 is promised for FLAC, WAV and RF64. OGG and
MP3 are measured on a quarter of the length: OGG searches its pages, MP3 is decoded from its start, so the ratio grows
with the length. `<format>_ms` is the last window in milliseconds. RF64 is a sparse file of more than 4 GB with samples
at both ends; `rf64_hash_s` is the additional cost of the first read in a process. `rss_growth_mb` is the additional
memory for 328 windows of all files compared with the first one of each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile

from storage.media.contents import read_window
from storage.media.folder import MediaFolder
from storage.media.windows import Span

RATE = 22_050
WINDOW = 5 * RATE
FORMATS = (("flac", "FLAC", "PCM_16", 1.0), ("wav", "WAV", "PCM_24", 1.0), ("ogg", "OGG", "VORBIS", 0.25),
           ("mp3", "MP3", "MPEG_LAYER_III", 0.25))  # fmt: skip


def make_recording(path: Path, form: str, subtype: str, minutes: int) -> int:
    """Noise that differs from minute to minute; returns the number of frames."""
    rng = np.random.default_rng(0)
    minute = (0.05 * rng.standard_normal(60 * RATE)).astype(np.float32)
    with soundfile.SoundFile(path, "w", RATE, 1, format=form, subtype=subtype) as file:
        for number in range(minutes):
            file.write(np.roll(minute, 997 * number))
    return minutes * 60 * RATE


def make_rf64(path: Path, gigabytes: float) -> int:
    """A sparse file: a header, one minute of samples, a hole, one minute of samples."""
    n_bytes = int(gigabytes * 2**30) // 4 * 4
    form = struct.pack("<HHIIHH", 1, 2, RATE, RATE * 4, 4, 16)
    head = b"RF64" + struct.pack("<I", 0xFFFFFFFF) + b"WAVE"
    head += b"ds64" + struct.pack("<IQQQI", 28, n_bytes + 72, n_bytes, n_bytes // 4, 0)
    head += b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", 0xFFFFFFFF)
    samples = np.random.default_rng(1).integers(-3000, 3000, 2 * 60 * RATE, dtype=np.int16).tobytes()
    with open(path, "wb") as file:
        file.write(head + samples)
        file.seek(len(head) + n_bytes - len(samples))
        file.write(samples)
    return n_bytes // 4


def cpu_ms(media: MediaFolder, span: Span, path: Path, repeats: int = 21) -> float:
    times = []
    for _ in range(repeats):
        started = time.process_time()
        read_window(media, span, str(path))
        times.append(1000 * (time.process_time() - started))
    return statistics.median(times)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, hours: float, gigabytes: float) -> dict[str, float]:
    media, found, files = MediaFolder(folder / "media"), dict[str, float](), list[tuple[str, Path, int]]()
    for name, form, subtype, share in FORMATS:
        path = folder / f"recording.{name}"
        files.append((name, path, make_recording(path, form, subtype, max(1, round(60 * hours * share)))))
    path = folder / "recording.rf64.wav"
    files.append(("rf64", path, make_rf64(path, gigabytes)))
    spans = {}
    for name, path, n_frames in files:
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        spans[name] = (Span(sha256, 0, WINDOW - 1), Span(sha256, n_frames - WINDOW, n_frames - 1))
        started = time.process_time()
        read_window(media, spans[name][0], str(path))
        found[f"{name}_hash_s"] = round(time.process_time() - started, 2)
    before = peak_mb()
    for name, path, n_frames in files:
        first, last = (cpu_ms(media, span, path) for span in spans[name])
        found[f"{name}_ms"], found[f"{name}_last_over_first"] = round(last, 2), round(last / first, 2)
        sha256, places = spans[name][0].recording, np.linspace(0, n_frames - WINDOW, 80 if name != "mp3" else 8)
        for place in places.astype(np.int64).tolist():
            read_window(media, Span(sha256, place, place + WINDOW - 1), str(path))
    found["rss_growth_mb"] = round(peak_mb() - before, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rf64-gb", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measure(Path(folder), options.hours, options.rf64_gb)))


if __name__ == "__main__":
    main()
