"""The page server: Streamlit's pages, our routes for labels and media, and our gate in front of both.

It is started with `app.web.server_command.command(host, port)` in the repository's root.
"""

from __future__ import annotations

import logging
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pandas  # noqa: F401  before threads start: plotly fails if another thread has imported only a part of pandas
import streamlit as st
from starlette.middleware import Middleware

from app.jobs.deletions import resume_deletions
from app.views.text import plain
from app.web import allocator, matrix_threads, people, resources, warm_start
from app.web.access import Gate
from app.web.api.application import api_mount
from app.web.routes.api import api_routes
from app.web.routes.exports import export_routes
from app.web.routes.media import media_routes
from app.web.routes.old_addresses import old_address_routes
from app.web.routes.recordings import recording_routes
from app.web.routes.uploads import upload_routes
from core.errors import WinnowError
from storage.projects import roles

log = logging.getLogger("winnow.pages")
roles.resolve_with(people.session_actor)
allocator.limit_heaps()
matrix_threads.limit_threads()


@asynccontextmanager
async def lifespan(server: st.App) -> AsyncIterator[None]:
    """Open the store before the first request. If it cannot be used, the server stops with the error message."""
    resources.store()
    resources.rules()
    resources.store_check().start()
    warm_start.start_reading(resources.store())
    resume_deletions(resources.store())
    import app.web.screens.label  # noqa: F401  the first visitor should not wait for imports

    previous = {number: _end_drawings_at(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)
    resources.preview_pool().shutdown()
    resources.store().close()


def _end_drawings_at(number: int) -> Any:
    """End current drawings when the signal arrives, because the server waits for open requests before it shuts down."""
    previous = signal.getsignal(number)

    def handle(received: int, frame: FrameType | None) -> None:
        resources.preview_pool().close()
        if callable(previous):
            previous(received, frame)

    signal.signal(number, handle)
    return previous


def on_script_error(error: Exception) -> bool:
    """Log an error and show its number with a note that labels are safe. Other sessions are not affected."""
    if isinstance(error, WinnowError):
        st.error(plain(error))
        return True
    number = secrets.token_hex(4)
    log.exception("error %s on a page", number, exc_info=error)
    st.error(
        f"This page failed (error {number}; the server log has the details). Labels are not affected: saved labels are "
        "stored, and unsaved ones are kept in this browser and sent again. Reload the page to continue."
    )
    return True


app = st.App(
    Path(__file__).with_name("main.py"),
    routes=[
        api_mount(),
        *api_routes(),
        *media_routes(),
        *recording_routes(),
        *upload_routes(),
        *export_routes(),
        *old_address_routes(),
    ],
    middleware=[Middleware(Gate, rules=resources.rules)],
    lifespan=lifespan,
    on_script_error=on_script_error,
)
