"""Matrix products of the page process run on one thread.

A request multiplies small matrices, and several requests run at once. A second thread of BLAS waits in a loop for the
first one, which costs CPU time on a busy machine (`python -m benchmarks.store --requests` with and without this call).
The processes that a page starts keep the threads they have.
"""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def limit_threads() -> None:
    """Limit BLAS to one thread in this process."""
    threadpool_limits(1, user_api="blas")
