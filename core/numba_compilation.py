"""Just-in-time compilation by numba, the same for every module with compiled loops.

Functions are compiled at their first call, run without the interpreter lock, and are cached on disk if there is a
writable folder. numba's cache detects changes of the file that defines the function, but not of other files. A compiled
function therefore calls only functions of its own module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Function], Function]:
    """A decorator that compiles a function with `numba.njit(nogil=True, **options)`."""

    def compile_function(function: Function) -> Function:
        try:
            return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
        except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
            return cast(Function, numba.njit(nogil=True, **options)(function))

    return compile_function
