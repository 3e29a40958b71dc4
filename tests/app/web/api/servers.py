"""The API on a separate port, in a thread of the test process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tests.app.web.api.callers import api_app
from tests.free_ports import free_port


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server with the API; the store is that of `app.web.resources`."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(api_app(), port=port, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
