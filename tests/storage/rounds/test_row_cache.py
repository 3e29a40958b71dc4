"""Rows computed once: found again in any order, by any process, after any interruption, in little memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from core.errors import InvalidInput
from core.rows import MemoryRowCache
from storage.rounds.row_cache import DIGEST, FolderRowCache

pytestmark = pytest.mark.slow


def row_of(name: str) -> np.ndarray:
    return np.random.default_rng(int(name.split()[1])).random((4, 3)).astype(np.float32)


def computing(names: Sequence[str], log: list[str]):
    def compute(positions: Sequence[int]) -> np.ndarray:
        log.extend(names[position] for position in positions)
        return np.stack([row_of(names[position]) for position in positions])

    return compute


def test_it_gives_what_the_memory_cache_gives(tmp_path: Path) -> None:
    names = [f"n {number}" for number in np.random.default_rng(0).integers(0, 400, 1_000)]
    log: list[str] = []
    stored = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    known = MemoryRowCache().rows("key", names, computing(names, []))
    rows = np.random.default_rng(1).integers(0, 1_000, 300)
    assert stored.shape == known.shape and stored.dtype == known.dtype and len(stored) == 1_000
    assert np.array_equal(stored.take(rows), known.take(rows))
    assert len(log) == len(set(names)), "each name once"


def test_only_new_names_are_computed_and_keys_are_apart(tmp_path: Path) -> None:
    cache, log = FolderRowCache(tmp_path), []
    first = [f"n {number}" for number in range(50)]
    more = [*reversed(first), "n 99", "n 98"]
    cache.rows("a", first, computing(first, log))
    log.clear()
    reports: list[tuple[int, int]] = []
    rows = FolderRowCache(tmp_path).rows("a", more, computing(more, log), lambda *step: reports.append(step))
    assert log == ["n 99", "n 98"] and reports == [(2, 2)]
    assert np.array_equal(rows.take(np.array([51, 0])), np.stack([row_of("n 98"), row_of("n 49")]))
    cache.rows("b", first[:1], computing(first[:1], log))
    assert log[-1] == "n 0"
    assert cache.rows("never", [], computing([], log)).shape == (0,)
    assert cache.rows("a", [], computing([], log)).shape == (0, 4, 3)


def test_rows_of_another_shape_under_the_same_key_are_refused(tmp_path: Path) -> None:
    cache = FolderRowCache(tmp_path)
    cache.rows("key", ["n 1"], lambda positions: np.zeros((1, 4), np.float32))
    with pytest.raises(InvalidInput, match="use a new key for changed settings"):
        cache.rows("key", ["n 2"], lambda positions: np.zeros((1, 5), np.float32))
    with pytest.raises(InvalidInput, match="2 rows were requested and 1 were computed"):
        cache.rows("key", ["n 3", "n 4"], lambda positions: np.zeros((1, 4), np.float32))
    assert cache.rows("key", ["n 1"], lambda positions: np.ones((1, 4), np.float32)).take(np.array([0])).sum() == 0


def test_an_interrupted_fill_keeps_finished_blocks_and_half_written_tails_are_cut(tmp_path: Path) -> None:
    names = [f"n {number}" for number in range(200)]
    log: list[str] = []
    inner = computing(names, log)

    def stops(positions: Sequence[int]) -> np.ndarray:
        if log:
            raise KeyboardInterrupt
        return inner(positions)

    with pytest.raises(KeyboardInterrupt):
        FolderRowCache(tmp_path).rows("key", names, stops)
    done = len(log)
    assert 0 < done < 200
    [rows_file], [names_file] = tmp_path.rglob("*.rows"), tmp_path.rglob("*.names")
    with open(rows_file, "ab") as file, open(names_file, "ab") as other:
        file.write(b"\x01" * 77)
        other.write(b"\x02" * (DIGEST - 3))
    log.clear()
    rows = FolderRowCache(tmp_path).rows("key", names, inner)
    assert len(log) == 200 - done
    assert np.array_equal(rows.take(np.arange(200)), np.stack([row_of(name) for name in names]))


FILLER = """
import sys, time
import numpy as np
from storage.rounds import row_cache
row_cache.MAX_BLOCK = 8
names = [f"n {number}" for number in range(5000)]
def compute(positions):
    print(len(positions), flush=True)
    return np.array([[p, p] for p in positions], np.float32)
row_cache.FolderRowCache(sys.argv[1]).rows("key", names, compute)
"""


def test_finished_blocks_survive_kill_9(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-c", FILLER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    names = [f"n {number}" for number in range(5_000)]
    computed: list[int] = []

    def compute(positions: Sequence[int]) -> np.ndarray:
        computed.extend(positions)
        return np.array([[one, one] for one in positions], np.float32)

    rows = FolderRowCache(tmp_path).rows("key", names, compute)
    assert len(computed) <= 5_000 - 9 * 8
    assert np.array_equal(rows.take(np.arange(5_000))[:, 0], np.arange(5_000, dtype=np.float32))


def _fill(folder: str, barrier, results) -> None:
    from storage.rounds import row_cache

    row_cache.MAX_BLOCK = 16
    names = [f"n {number}" for number in range(600)]
    n_computed = 0

    def compute(positions: Sequence[int]) -> np.ndarray:
        nonlocal n_computed
        n_computed += len(positions)
        time.sleep(0.01)
        return np.array([[one, one] for one in positions], np.float32)

    barrier.wait(240)
    rows = FolderRowCache(folder).rows("key", names, compute)
    results.put((n_computed, bool(np.array_equal(rows.take(np.arange(600))[:, 1], np.arange(600, dtype=np.float32)))))


def test_two_processes_fill_the_same_key_at_once_and_share_the_work(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_fill, args=(str(tmp_path), barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=280) for _ in workers]
    for worker in workers:
        worker.join()
    assert all(right for _, right in answers)
    assert 600 <= sum(n_computed for n_computed, _ in answers) < 900


LARGE = """
import resource, sys
import numpy as np
from storage.rounds.row_cache import FolderRowCache
names = [str(number) for number in range(100_000)]
base = np.arange(1024, dtype=np.float32).reshape(32, 32)
def compute(positions):
    return np.asarray(positions, np.float32)[:, None, None] + base
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
rows = FolderRowCache(sys.argv[1]).rows("key", names, compute)
chance = np.random.default_rng(0)
for _ in range(200):
    which = chance.integers(0, 100_000, 512)
    if not np.array_equal(rows.take(which)[:, 0, 1], which + np.float32(1)):
        raise SystemExit("wrong rows")
print(peak() - before)
"""


@pytest.mark.slow
def test_100000_rows_of_32_by_32_stay_out_of_memory(tmp_path: Path) -> None:
    """410 MB of rows on disk, filled and read at random: the process grows by less than a third of that."""
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LARGE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 140


@pytest.mark.parametrize("place", range(0, 130, 3))
def test_a_damaged_layout_removes_the_rows_which_are_computed_again(tmp_path: Path, place: int) -> None:
    names, log = [f"n {number}" for number in range(5)], list[str]()
    FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    [layout] = tmp_path.rglob("layout.json")
    data = bytearray(layout.read_bytes())
    data[place % len(data)] ^= 0b0001_0000
    layout.write_bytes(data)
    log.clear()
    rows = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert np.array_equal(rows.take(np.arange(5)), np.stack([row_of(name) for name in names]))
    log.clear()
    FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert log == []
    assert len(list(tmp_path.iterdir())) == 1, "no damaged file remains"


def test_a_layout_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    names, log = ["n 1", "n 2"], list[str]()
    FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    [layout] = tmp_path.rglob("layout.json")
    stored = json.loads(layout.read_text())
    del stored["sha256"]
    layout.write_text(json.dumps(stored))
    log.clear()
    FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert log == []


@pytest.mark.parametrize("suffix", ["rows", "sums", "names"])
@pytest.mark.parametrize("share", [0.0, 0.37, 0.99])
def test_a_flipped_byte_is_detected_and_the_row_is_computed_and_stored_again(
    tmp_path: Path, suffix: str, share: float
) -> None:
    names = [f"n {number}" for number in range(40)]
    expected = np.stack([row_of(name) for name in names])
    FolderRowCache(tmp_path).rows("key", names, computing(names, []))
    [path] = tmp_path.rglob(f"*.{suffix}")
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 0b0100_0000
    path.write_bytes(data)
    log: list[str] = []
    rows = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert np.array_equal(rows.take(np.arange(40)), expected)
    assert np.array_equal(rows.take(np.arange(39, -1, -1)), expected[::-1])
    assert len(log) == 1, "only the damaged row, once"
    log.clear()
    again = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert np.array_equal(again.take(np.arange(40)), expected)
    assert log == []


def test_rows_of_a_version_without_checksums_are_read_and_added_to(tmp_path: Path) -> None:
    names = [f"n {number}" for number in range(12)]
    FolderRowCache(tmp_path).rows("key", names[:8], computing(names[:8], []))
    [sums] = tmp_path.rglob("*.sums")
    sums.unlink()
    log: list[str] = []
    rows = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert log == names[8:]
    assert np.array_equal(rows.take(np.arange(12)), np.stack([row_of(name) for name in names]))
    [path] = tmp_path.rglob("*.rows")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    log.clear()
    rows = FolderRowCache(tmp_path).rows("key", names, computing(names, log))
    assert np.array_equal(rows.take(np.array([11])), row_of("n 11")[None]) and log == ["n 11"]
