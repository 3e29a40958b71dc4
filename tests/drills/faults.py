"""The faults of a drill, drawn with a seed; each kind occurs once before any is repeated.

If the remaining kinds cannot be caused now, because a process is not serving yet, the other kinds are repeated.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills.cutting_proxy import CuttingProxy
from tests.drills.processes import Managed
from tests.drills.uploads import Uploader

FULL_SECONDS = (1.0, 4.0)
PAUSE_SECONDS = (0.5, 4.0)
CUT_SECONDS = (0.5, 4.0)
CLOCK_JUMPS = (-86_400.0, -3_600.0, -60.0, 0.0, 60.0, 3_600.0, 86_400.0, 40 * 86_400.0, 3_650 * 86_400.0)
FLIPPED_FOLDERS = ("artifacts", "cache")
LEAST_UP_SECONDS = 3.0  # seconds that a process must serve before it is killed again: otherwise nothing would ever run


@dataclass
class Target:
    """The system on which the faults act."""

    home: Path
    clock: Path
    server: Managed
    worker: Managed
    proxy: CuttingProxy
    uploader: Uploader
    database: Managed | None = None
    disk: Path | None = None  # a separate small file system; None: not permitted here


@dataclass
class Faults:
    target: Target
    chance: random.Random
    log: list[dict[str, object]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    lasted: float = 0.0  # seconds from the first to the last fault

    def __post_init__(self) -> None:
        self._bag: list[Callable[[], str | None]] = []
        self._ends: list[tuple[float, Callable[[], None]]] = []

    def kinds(self) -> list[Callable[[], str | None]]:
        always = [
            self.kill_worker, self.kill_server, self.pause_worker, self.cut_connections, self.flip_byte,
            self.jump_clock, self.cut_upload,
        ]  # fmt: skip
        if self.target.database is not None:
            always += [self.kill_database]
        return always + ([self.fill_disk] if self.target.disk is not None else [])

    def next(self, say: Callable[[str], None]) -> None:
        """Cause one more fault; kinds that cannot be caused now are drawn later."""
        if not self._draw(say):
            again = [kind for kind in self.kinds() if kind not in self._bag]
            self.chance.shuffle(again)
            self._bag += again
            self._draw(say)

    def _draw(self, say: Callable[[str], None]) -> bool:
        """Cause the first fault of the bag that is possible now; False if none is."""
        for position, kind in enumerate(self._bag):
            detail = kind()
            if detail is None:
                continue
            del self._bag[position]
            at = round(time.monotonic() - self.began, 1)
            self.log.append({"at_seconds": at, "fault": kind.__name__, "detail": detail})
            say(f"{at:7.1f} s  {kind.__name__}: {detail}")
            return True
        return False

    def end_due(self, everything: bool = False) -> None:
        """End faults that last for a while and whose time is over."""
        due = [end for end in self._ends if everything or end[0] <= time.monotonic()]
        self._ends = [end for end in self._ends if end not in due]
        for _, finish in due:
            finish()
        if everything:
            self.target.clock.write_text("0")

    def counts(self) -> dict[str, int]:
        names = [str(entry["fault"]) for entry in self.log]
        return {name: names.count(name) for name in sorted(set(names))}

    def kill_worker(self) -> str | None:
        return self._kill(self.target.worker)

    def kill_server(self) -> str | None:
        return self._kill(self.target.server)

    def kill_database(self) -> str | None:
        assert self.target.database is not None
        return self._kill(self.target.database)

    def _kill(self, one: Managed) -> str | None:
        if not one.has_served(LEAST_UP_SECONDS):
            return None
        return f"SIGKILL to process {one.send(signal.SIGKILL)}"

    def pause_worker(self) -> str | None:
        one, seconds = self.target.worker, self.chance.uniform(*PAUSE_SECONDS)
        if not one.running:
            return None
        paused = one.process
        assert paused is not None
        number = one.send(signal.SIGSTOP)

        def resume() -> None:
            if paused.poll() is None:
                paused.send_signal(signal.SIGCONT)

        self._later(seconds, resume)
        return f"SIGSTOP to process {number} for {seconds:.1f} s"

    def cut_connections(self) -> str:
        seconds = self.chance.uniform(*CUT_SECONDS)
        self.target.proxy.cut_for(seconds)
        return f"for {seconds:.1f} s"

    def cut_upload(self) -> str:
        self.target.uploader.cut.set()
        return "in the middle of the next file"

    def jump_clock(self) -> str:
        offset = self.chance.choice(CLOCK_JUMPS)
        self.target.clock.write_text(str(offset))
        return f"to {offset:+,.0f} s"

    def flip_byte(self) -> str | None:
        """Flip a byte in a file that Winnow computed and can compute again; media and the database are not changed."""
        found = sorted(
            path
            for folder in FLIPPED_FOLDERS
            for path in (self.target.home / folder).rglob("*")
            if path.is_file() and path.stat().st_size
        )
        if not found:
            return None
        path = self.chance.choice(found)
        with contextlib.suppress(OSError), path.open("r+b") as stream:
            position = self.chance.randrange(path.stat().st_size)
            stream.seek(position)
            before = stream.read(1)[0]
            stream.seek(position)
            stream.write(bytes([before ^ (1 << self.chance.randrange(8))]))
            return f"byte {position} of {path.relative_to(self.target.home)}"
        return None

    def fill_disk(self) -> str | None:
        assert self.target.disk is not None
        filler, seconds = self.target.disk / "filler", self.chance.uniform(*FULL_SECONDS)
        if filler.exists():
            return None
        free = os.statvfs(self.target.disk)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            os.posix_fallocate(stream.fileno(), 0, free.f_bavail * free.f_frsize)
            stream.seek(0, os.SEEK_END)
            while True:
                stream.write(b"\0" * 4_096)
        self._later(seconds, lambda: filler.unlink(missing_ok=True))
        return f"for {seconds:.1f} s"

    def _later(self, seconds: float, finish: Callable[[], None]) -> None:
        self._ends.append((time.monotonic() + seconds, finish))
