"""Just-in-time compilation by numba, the same for every module with compiled loops.

Functions are compiled at their first call, run without the interpreter lock, and are cached on disk if there is a
writable folder. numba's cache detects changes of the file that defines the function, but not of other files. A compiled
function therefore calls only functions of its own module.

One process at a time compiles: processes that start together on a new installation wait for the first, and load what
it compiled from the cache. Compiling the kernels takes 15 s of CPU time, loading them half a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

LOCK_NAME = "winnow-compiling.lock"
WAIT_SECONDS = 120.0  # the process that compiles may be stopped; then others compile too
PAUSE_SECONDS = 0.05

_in_this_process = threading.RLock()  # compiling a function compiles those that it calls
_depth = 0


def compiled(**options: Any) -> Callable[[Function], Function]:
    """A decorator that compiles a function with `numba.njit(nogil=True, **options)`."""

    def compile_function(function: Function) -> Function:
        try:
            dispatcher = numba.njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
            return cast(Function, numba.njit(nogil=True, **options)(function))
        dispatcher.compile = _in_turn(dispatcher.compile, Path(dispatcher.stats.cache_path) / LOCK_NAME)
        return cast(Function, dispatcher)

    return compile_function


@contextlib.contextmanager
def library_compiles() -> Iterator[None]:
    """While a library that compiles its own functions is loaded: on a new installation, one process at a time."""
    with locked(Path(__file__).parent / "__pycache__" / LOCK_NAME):
        yield


def _in_turn(compile_types: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """`compile_types`, which loads from the cache what another process has compiled, while no other one compiles."""

    def compile_in_turn(*types: Any) -> Any:
        with _turn(path):
            return compile_types(*types)

    return compile_in_turn


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    global _depth
    with _in_this_process:
        _depth += 1
        try:
            if _depth > 1:
                yield
            else:
                with locked(path):
                    yield
        finally:
            _depth -= 1


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """The lock on `path`, or none where it cannot be had in time: two processes may compile the same."""
    descriptor = None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if descriptor is not None:
            _wait_for(descriptor)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)  # releases the lock


def _wait_for(descriptor: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(PAUSE_SECONDS)
