"""Import of many small WAVs against reading and hashing the same files in one process.

    .venv/bin/python -m benchmarks.importing [--files 20000] [--milliseconds 500] [--folder /fast/disk]

Last line: one JSON object; `import_over_read_hash` is the ratio of wall times (at most 3 is promised), with files in
the page cache both times. An import uses several processes, the reference one: on a busy machine use
`import_cpu_over_read_hash`, the ratio of CPU times of all processes together, of which two free cores do half each.
`copy_over_read_hash` is a plain copy of the same files in one process to separate files (read, hash, write under
another name, rename, one sync at the end), like an import that does not pack small files; `import_over_copy` compares
with it. On ext4, creating a file can cost ten times as much right after thousands were deleted nearby, by an earlier
run for instance, so these two vary. `again_over_read_hash` is a second import of the same folder, which compares all
bytes with the stored ones, `link_over_read_hash` one that links the files without copying them, and
`link_rss_growth_mb` the additional memory of such an import compared with one of a tenth of the files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.projects.projects import create_project


def make_wavs(folder: Path, n_files: int, milliseconds: int) -> None:
    """Noise in ten class folders: every file different, 16 kHz, 16 bit, mono."""
    rng = np.random.default_rng(0)
    n_samples = 16 * milliseconds
    header = b"RIFF" + struct.pack("<I", 36 + 2 * n_samples) + b"WAVEfmt "
    header += struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16) + b"data" + struct.pack("<I", 2 * n_samples)
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
    for number in range(n_files):
        samples = rng.integers(-3000, 3000, n_samples, dtype=np.int16)
        (folder / str(number % 10) / f"{number:06d}.wav").write_bytes(header + samples.tobytes())


def read_and_hash(folder: Path) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    started, cpu = time.perf_counter(), time.process_time()
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                hashlib.sha256(file.read()).hexdigest()
    return time.perf_counter() - started, time.process_time() - cpu


def plain_copy(folder: Path, target: Path) -> tuple[float, float]:
    """(wall, CPU) seconds of the minimum that stores each file durably under its hash."""
    started, cpu = time.perf_counter(), time.process_time()
    for shard in range(256):
        (target / f"{shard:02x}").mkdir(parents=True)
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                data = file.read()
            sha256 = hashlib.sha256(data).hexdigest()
            with open(target / "staged", "wb") as copy:
                copy.write(data)
            os.rename(target / "staged", target / sha256[:2] / sha256)
    os.sync()
    return time.perf_counter() - started, time.process_time() - cpu


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed_import(home: Path, folder: Path, name: str, options: ImportOptions) -> tuple[float, float]:
    """(wall, CPU) seconds of an import into a new project."""
    with Store.open(home=home) as store:
        project = create_project(store, name, "audio")
        started, cpu = time.perf_counter(), cpu_seconds()
        run_import(store, project.id, open_source(folder), options)
        return time.perf_counter() - started, cpu_seconds() - cpu


def peak_of_import(home: Path, folder: Path) -> float:
    """Peak memory in MB of a separate process that imports `folder` as links (VmHWM, which starts at 0 in a new
    process)."""
    code = (
        "import sys; from pathlib import Path; from benchmarks.importing import ImportOptions, timed_import; "
        "timed_import(Path(sys.argv[1]), Path(sys.argv[2]), 'x', ImportOptions(labels='hidden', storage='link')); "
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    command = [sys.executable, "-c", code, str(home), str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--milliseconds", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="folder to write to; default: the system's temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winnow-importing-", dir=arguments.folder) as scratch:
        root = Path(scratch)
        make_wavs(root / "wavs", arguments.files, arguments.milliseconds)
        make_wavs(root / "few", arguments.files // 10, arguments.milliseconds)
        os.sync()
        read_and_hash(root / "wavs")
        options = ImportOptions(labels="hidden")
        before, cpu_before = read_and_hash(root / "wavs")
        seconds, cpu = timed_import(root / "home", root / "wavs", "first", options)
        after, cpu_after = read_and_hash(root / "wavs")
        reference, cpu_reference = (before + after) / 2, (cpu_before + cpu_after) / 2
        copied, cpu_copied = plain_copy(root / "wavs", root / "copy")
        again, _ = timed_import(root / "home", root / "wavs", "second", options)
        linked = ImportOptions(labels="hidden", storage="link")
        link, _ = timed_import(root / "linked", root / "wavs", "all", linked)
        small = peak_of_import(root / "few-home", root / "few")
        large = peak_of_import(root / "all-home", root / "wavs")
    result = {
        "files": arguments.files,
        "read_hash_seconds": round(reference, 3),
        "import_seconds": round(seconds, 3),
        "import_over_read_hash": round(seconds / reference, 2),
        "import_cpu_over_read_hash": round(cpu / cpu_reference, 2),
        "copy_over_read_hash": round(copied / reference, 2),
        "copy_cpu_over_read_hash": round(cpu_copied / cpu_reference, 2),
        "import_over_copy": round(seconds / copied, 2),
        "again_over_read_hash": round(again / reference, 2),
        "link_over_read_hash": round(link / reference, 2),
        "link_peak_mb": round(large, 1),
        "link_rss_growth_mb": round(large - small, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
