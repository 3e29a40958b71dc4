"""Limits the page process to one thread for matrix products.

Requests multiply small matrices, and several requests run at once. A second BLAS thread waits for the first one in a
busy loop, which costs CPU time on a loaded machine (`python -m benchmarks.store --requests` with and without this
call). Processes that a page starts are not affected.
"""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def limit_threads() -> None:
    """Limit BLAS to one thread in this process."""
    threadpool_limits(1, user_api="blas")
