"""SIGTERM ends the page server, even during a long drawing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from app.web import server_command, tickets
from app.web.access import SESSION_COOKIE
from app.web.routes.media import media_path
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from tests.app import sample_store
from tests.free_ports import free_port
from tests.storage import made_media


@pytest.mark.slow
def test_sigterm_ends_the_server_while_a_drawing_takes_long(tmp_path):
    home, port = tmp_path / "home", free_port()
    with Store.open(home=home) as store:
        project = sample_store.create_project(store, "Slow", "image", ["a"])
        [item] = sample_store.add_items(store, project, [("slow.jpg", made_media.long_picture())])
        address = f"http://127.0.0.1:{port}{media_path(Pool(store, project.id).item(item), 'picture.png')}"
        ticket = tickets.issue(tickets.signing_key(home), annotator_named(store, "Ana").id, 600)
    environment = server_command.environment("127.0.0.1", port, home)
    environment |= {"WINNOW_DATABASE_URL": "", "WINNOW_DECODE_SECONDS": "300"}
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            server_command.command("127.0.0.1", port), cwd=server_command.ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        _wait_until_ready(server, port)
        request = urllib.request.Request(address, headers={"cookie": f"{SESSION_COOKIE}={ticket}"})
        thread = threading.Thread(target=_fetch, args=(request,), daemon=True)
        thread.start()
        children = _wait_for_child(server.pid)
        time.sleep(1.5)
        before = time.monotonic()
        server.send_signal(signal.SIGTERM)
        server.wait(20)
        assert time.monotonic() - before < 10
        assert not any(Path(f"/proc/{child}").exists() for child in children)
    finally:
        server.kill()
        server.wait()


def _fetch(request: urllib.request.Request) -> None:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(request, timeout=120).read()


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{server_command.HEALTH_PATH}", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the server did not start")


def _wait_for_child(parent: int) -> list[int]:
    """Processes of `app.views.previews.process` below `parent`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if int(stat[1]) == parent and b"previews.process" in command:
                found.append(int(entry))
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("no drawing was started")
