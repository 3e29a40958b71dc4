"""Child processes of Winnow, from the parent's side.

Long work runs in one of two ways:

    durable   Rounds and the simulations of a project are rows in the store and workflows of the engine (`app.worker`).
              Any worker continues them. `report` raises `Cancelled` when the row is cancelled.
    child     Everything else is a `python -m MODULE` process that this module starts. Parent and child exchange the
              messages of `app.processes.messages`.

A child that its parent waits for (a trial of a local simulation, distributed training) is a `PipedChild`: requests go
to its stdin, messages come from its stdout. The child exits when its stdin is closed, so it never outlives its parent,
even if the parent is killed. A child that outlives its parent (a job started by a page, `app.jobs.jobs`) writes the
same messages to a folder instead; a file in that folder cancels it. In both cases the code that does the work receives
a `core.types.Report`, which may raise `Cancelled`.

The decoders of `storage.media.probe_pool` also exchange JSON lines and exit when their stdin is closed. The storage
package starts them with their own memory and time limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from app.processes.messages import Message, decode
from core.module_processes import ROOT, module_environment

READ_BYTES = 1 << 16
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """The standard streams of a child: a file, a `subprocess` constant, or None to inherit the parent's."""

    stdin: int | IO[bytes] | None = subprocess.DEVNULL
    stdout: int | IO[bytes] | None = subprocess.DEVNULL
    stderr: int | IO[bytes] | None = None


def start(
    command: Sequence[str],
    streams: Streams,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    pass_fds: Sequence[int] = (),
    end_with_parent: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, so that Ctrl-C does not reach it and `end_group` also ends its children.

    With `end_with_parent`, the kernel sends the child SIGTERM when the thread that called `start` exits (Linux only).
    """
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env=module_environment(environment),
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        start_new_session=True,
        pass_fds=tuple(pass_fds),
        preexec_fn=_request_parent_death_signal if end_with_parent and _LIBC is not None else None,
    )


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _request_parent_death_signal() -> None:
    """Request SIGTERM at the parent's death. Runs in the child before its program starts."""
    assert _LIBC is not None
    _LIBC.prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process and all its children. Does nothing if the process has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def end_group(process: subprocess.Popen[bytes], grace_seconds: float = 0.0) -> int:
    """Wait up to `grace_seconds` for the process to end, then kill it and all its children. Returns the exit code."""
    try:
        return process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        signal_group(process, signal.SIGKILL)
        return process.wait()


def explain_exit(code: int) -> str:
    """Describe how a process ended, for example "exit code 3" or "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class PipedChild:
    """A child process that receives requests and sends messages through pipes.

    Use it as a context manager: leaving the block kills the process and all its children.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        stderr: int | IO[bytes] | None = None,
    ) -> None:
        streams = Streams(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        self.process = start(command, streams, environment=environment, cwd=cwd)
        self._partial = b""

    def __enter__(self) -> PipedChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor for `multiprocessing.connection.wait`. It is readable when `read` would not block."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def send(self, request: Any) -> None:
        """Send one request. If the child has ended, this does nothing and the next `read` raises EOFError."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()

    def read(self) -> list[Message]:
        """Block until the child sends data; return the complete messages. Raises EOFError if the child has ended."""
        block = os.read(self.fileno(), READ_BYTES)
        if not block:
            raise EOFError
        *lines, self._partial = (self._partial + block).split(b"\n")
        return [message for line in lines if (message := decode(line)) is not None]

    def messages(self) -> Iterator[Message]:
        """Yield all messages until the child closes its stdout."""
        with contextlib.suppress(EOFError):
            while True:
                yield from self.read()

    def close(self) -> int:
        """Kill the child and all its children. Returns the exit code of the child."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        return end_group(self.process)
