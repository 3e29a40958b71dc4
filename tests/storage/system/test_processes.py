"""A process id that is in use, and ids that are not."""

from __future__ import annotations

import os
import subprocess
import sys

from storage.system.processes import is_running


def test_this_process_and_a_foreign_one_run():
    assert is_running(os.getpid())
    assert is_running(1)  # belongs to another user on most machines


def test_an_ended_process_does_not_run():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not is_running(process.pid)


def test_a_number_beyond_the_system_does_not_run():
    assert not is_running(2**70)
