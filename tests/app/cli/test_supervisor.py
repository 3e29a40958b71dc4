"""Starting everything with one command, and ending everything with one signal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.cli import supervisor
from app.cli.supervisor import Service, Supervisor
from app.web import server_command
from core.errors import Conflict
from storage.database.locations import Locations
from storage.database.store import Store
from tests.free_ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(holds, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


@pytest.fixture
def made_run(sqlite_store, monkeypatch):
    """A run whose server only responds to health checks and whose worker only sleeps."""
    port = free_port()
    monkeypatch.setattr(server_command, "command", lambda host, port: [sys.executable, "-c", SERVER, str(port)])
    place = Locations(home=sqlite_store.home, database_url=sqlite_store.url, artifacts="", port=port)
    shutdown = threading.Event()
    run = Supervisor(sqlite_store, place, shutdown)
    run.worker.command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return run, shutdown


def test_it_prints_one_line_when_ready_restarts_a_dead_worker_and_ends_both(made_run, capsys):
    run, shutdown = made_run
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    wait_for(lambda: run.worker.process is not None)
    first, server = run.worker.process.pid, run.server.process.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: run.worker.process is not None and run.worker.process.pid != first)
    second = run.worker.process.pid
    shutdown.set()
    thread.join(180)
    assert codes == [0]
    wait_for(lambda: not running(server) and not running(second))
    printed = capsys.readouterr()
    assert printed.out == f"Winnow is ready at http://127.0.0.1:{run.place.port}\n"
    assert "The worker stopped and restarts in 1 s" in printed.err
    assert list((run.store.home / "backups").glob("*daily*"))


def test_a_server_that_cannot_start_gives_a_message_and_an_exit_code(made_run, capsys):
    run, _ = made_run
    run.server.command = [sys.executable, "-c", "import sys; sys.exit(3)"]
    assert run.run() == 1
    printed = capsys.readouterr()
    assert printed.out == "" and "stopped with code 3" in printed.err and "server.log" in printed.err


def test_a_taken_port_is_refused_before_anything_starts():
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        plug.listen()
        with pytest.raises(Conflict, match="WINNOW_PORT"):
            supervisor.refuse_taken_port("127.0.0.1", plug.getsockname()[1])


def test_services_end_when_the_supervisor_is_killed(tmp_path):
    """The kernel ends the services of a killed supervisor (Linux)."""
    code = f"""
import os, sys, time
from pathlib import Path
from app.cli.supervisor import Service
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
service = Service("x", sleeper, dict(os.environ), Path({str(tmp_path)!r}) / "log")
service.start()
print(service.process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not running(pid))


def test_a_service_that_ignores_sigterm_is_killed(tmp_path):
    ignoring = "import signal, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    service = Service("x", [sys.executable, "-c", ignoring], dict(os.environ), tmp_path / "log")
    service.start()
    wait_for(lambda: (tmp_path / "log").read_text() == "x\n")
    service.terminate()
    service.kill_after(time.monotonic() + 0.2)
    assert service.exit_code() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_app_starts_with_its_sample_projects_and_ends_on_ctrl_c(tmp_path):
    """`make run` without the installation: the address in one line, and no process remains afterwards."""
    port = free_port()
    environment = os.environ | {"WINNOW_HOME": str(tmp_path / "home"), "WINNOW_PORT": str(port)}
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_HOST", "WINNOW_TOKEN"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "run"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"Winnow is ready at http://127.0.0.1:{port}\n"
        with Store.open(home=tmp_path / "home") as store:
            from storage.projects.projects import list_projects

            assert [project.name for project in list_projects(store)] == ["Spoken digits", "Handwritten digits"]
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass
