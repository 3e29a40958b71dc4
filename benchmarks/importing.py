"""Import of many small WAVs against reading and hashing the same files in one process.

    .venv/bin/python -m benchmarks.importing [--files 20000] [--milliseconds 250]

Last line: one JSON object; `import_over_read_hash` is the ratio of wall times (at most 3 is promised), with files in the
page cache both times. `again_over_read_hash` is a second import of the same folder, `link_over_read_hash` an import that
leaves the files where they are, `link_rss_growth_mb` how much memory that import needed more than one of a tenth.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

from storage.database import Store
from storage.import_opening import open_source
from storage.importing import ImportOptions, run_import
from storage.projects import create_project


def make_wavs(folder: Path, n_files: int, milliseconds: int) -> None:
    """Noise in ten class folders: every file different, 8 kHz, 16 bit, mono."""
    rng = np.random.default_rng(0)
    n_samples = 8 * milliseconds
    header = b"RIFF" + struct.pack("<I", 36 + 2 * n_samples) + b"WAVEfmt "
    header += struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16) + b"data" + struct.pack("<I", 2 * n_samples)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for number in range(n_files):
        samples = rng.integers(-3000, 3000, n_samples, dtype=np.int16)
        (folder / str(number % 10) / f"{number:06d}.wav").write_bytes(header + samples.tobytes())


def read_and_hash(folder: Path) -> float:
    started = time.perf_counter()
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                hashlib.sha256(file.read()).hexdigest()
    return time.perf_counter() - started


def timed_import(home: Path, folder: Path, options: ImportOptions) -> tuple[float, int]:
    with Store.open(home=home) as store:
        names = [project for project in ("first", "second") if not _exists(store, project)]
        project = create_project(store, names[0], "audio") if names else None
        assert project is not None
        source = open_source(folder)
        started = time.perf_counter()
        report = run_import(store, project.id, source, options)
        return time.perf_counter() - started, report.imported


def _exists(store: Store, name: str) -> bool:
    from storage.projects import list_projects

    return any(project.name == name for project in list_projects(store))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--milliseconds", type=int, default=250)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as scratch:
        root = Path(scratch)
        make_wavs(root / "wavs", arguments.files, arguments.milliseconds)
        make_wavs(root / "few", arguments.files // 10, arguments.milliseconds)
        os.sync()
        read_and_hash(root / "wavs")
        before = read_and_hash(root / "wavs")
        options = ImportOptions(labels="hidden")
        seconds, n_imported = timed_import(root / "home", root / "wavs", options)
        reference = (before + read_and_hash(root / "wavs")) / 2
        again, _ = timed_import(root / "home", root / "wavs", options)
        linked = ImportOptions(labels="hidden", storage="link")
        timed_import(root / "small", root / "few", linked)
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        link, _ = timed_import(root / "linked", root / "wavs", linked)
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
    result = {
        "files": n_imported,
        "read_hash_seconds": round(reference, 3),
        "import_seconds": round(seconds, 3),
        "import_over_read_hash": round(seconds / reference, 2),
        "again_over_read_hash": round(again / reference, 2),
        "link_over_read_hash": round(link / reference, 2),
        "link_rss_growth_mb": round(growth / 1024, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
