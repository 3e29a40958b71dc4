"""The page process has few heaps, regardless of the number of threads that allocate memory at once."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_HEAPS = """
import ctypes, os, sys, tempfile, threading
from app.web.allocator import limit_heaps
if sys.argv[1] == "limited":
    assert limit_heaps()
c = ctypes.CDLL(None)
c.malloc.restype, c.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
meet = threading.Barrier(16)
def allocate():
    meet.wait()
    for _ in range(200):
        c.malloc(1_000)
    meet.wait()
threads = [threading.Thread(target=allocate) for _ in range(16)]
[one.start() for one in threads], [one.join() for one in threads]
path = tempfile.mktemp()
file = ctypes.c_void_p(c.fopen(path.encode(), b"w"))
c.malloc_info(0, file), c.fclose(file)
print(open(path).read().count("<heap nr="))
os.unlink(path)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_sixteen_threads_share_two_heaps():
    def heaps(how: str) -> int:
        command = [sys.executable, "-c", COUNT_HEAPS, how]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert heaps("limited") <= 2 < heaps("unlimited")
