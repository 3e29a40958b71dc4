"""Processes that start together on a new installation compile once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from core import numba_compilation

LOOPS = """
from core.numba_compilation import compiled

@compiled()
def doubled(x):
    return x + x

@compiled()
def summed(values):
    total = 0.0
    for value in values:
        total += doubled(value)
    return total
"""
RUN = """
import json, sys, time
from pathlib import Path
import numpy as np
import loops
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
assert loops.summed(np.ones(3)) == 6.0
print(json.dumps([sum(one.stats.cache_hits.values()) for one in (loops.summed, loops.doubled)]))
"""
ROOT = Path(__file__).parents[2]


def test_processes_that_start_together_compile_once_and_the_others_load_from_the_cache(tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    values = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    names = [tmp_path / "one", tmp_path / "other"]
    both = [
        subprocess.Popen([sys.executable, "-c", RUN, mine, yours], env=values, stdout=subprocess.PIPE, text=True)
        for mine, yours in (names, names[::-1])
    ]
    hits = sorted(json.loads(one.communicate(timeout=280)[0])[0] for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert hits == [0, 1]


def test_processes_load_a_library_that_compiles_one_at_a_time():
    path = Path(numba_compilation.__file__).parent / "__pycache__" / numba_compilation.LOCK_NAME
    with numba_compilation.library_compiles(), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_process_that_holds_the_lock_for_long_does_not_keep_others_from_compiling(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_compilation, "WAIT_SECONDS", 0.1)
    path = tmp_path / "not there yet" / numba_compilation.LOCK_NAME
    made = []
    with numba_compilation.locked(path), numba_compilation.locked(path):
        made.append(path.exists())
    assert made == [True]
