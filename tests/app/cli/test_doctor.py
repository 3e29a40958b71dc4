"""`python -m app doctor`, and the choice of the torch build in the Makefile."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import webbrowser
from collections import namedtuple
from pathlib import Path

import pytest

from app.cli.commands import doctor
from app.cli.main import main
from storage.database.store import Store
from storage.projects.projects import create_project
from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_HOST", "WINNOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WINNOW_PORT", str(free_port()))
    monkeypatch.setenv("WINNOW_DEVICE", "cpu")
    return tmp_path / "home"


def test_all_subjects_are_reported_and_nothing_is_created(home, capsys):
    assert main(["doctor", "--json"]) in (0, 1)  # 1 where the disk of the machine is nearly full
    found = {one["subject"]: one for one in json.loads(capsys.readouterr().out)}
    assert set(found) == {
        "Python", "packages", "device", "encoders", "store", "disk", "port", "workers", "browser"
    }  # fmt: skip
    assert found["store"]["status"] == found["port"]["status"] == "ok" and "torch" in found["device"]["found"]
    assert not home.exists()
    assert all(one["advice"] for one in found.values() if one["status"] != "ok")


def test_a_store_is_named_with_its_projects_and_a_newer_one_is_a_problem(home):
    with Store.open() as store:
        create_project(store, "Birds", "audio")
        assert "1 projects" in doctor.store().found
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE winnow_version SET version_num = '9999'")
    found = doctor.store()
    assert found.status == "problem" and found.advice


def test_an_encoder_that_cannot_be_read_is_a_problem_with_advice(home):
    assert doctor.encoders().status == "ok" and "efficientnet-lite0" in doctor.encoders().found
    folder = home / "encoders" / "mine"
    folder.mkdir(parents=True)
    (folder / "encoder.json").write_text("{}")
    found = doctor.encoders()
    assert found.status == "problem" and "mine" in found.found and "encoders add" in found.advice


@pytest.mark.slow
def test_a_taken_port_a_full_disk_and_no_browser_get_advice(home, monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setenv("WINNOW_PORT", str(other.getsockname()[1]))
        found = doctor.port()
    assert found.status == "problem" and "--port" in found.advice
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10 * 2**30, 9 * 2**30, 2**30))
    assert doctor.disk().status == "warning" and "clean" in doctor.disk().advice
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10 * 2**30, 10 * 2**30, 1))
    assert doctor.disk().status == "problem"

    def none():
        raise webbrowser.Error

    monkeypatch.setattr(webbrowser, "get", none)
    assert doctor.browser().status == "warning"


def test_pins_are_compared_without_the_build_suffix(home, monkeypatch):
    assert ("psycopg", "3.3.8") in doctor.pins("psycopg[binary]==3.3.8\n# torch==1\nfastapi==0.1  # MIT\n")
    versions = dict(doctor.pins((ROOT / "requirements.txt").read_text()))
    monkeypatch.setattr(doctor.metadata, "version", lambda name: versions[name] + ("+cpu" if name == "torch" else ""))
    assert doctor.packages().status == "ok"
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0" if name == "numpy" else versions[name])
    assert doctor.packages() == doctor.Finding(
        "packages", "warning", f"numpy is 0.0 instead of {versions['numpy']}", doctor.SETUP
    )


def test_a_check_that_fails_is_a_finding(home, monkeypatch):
    def broken() -> doctor.Finding:
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "device", broken)
    found = [one for one in doctor.examine() if "no such device" in one.found]
    assert [one.status for one in found] == ["problem"]


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", "VENV=no-such-venv", *arguments, "run"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("choice", "build"), [("cpu", "whl/cpu"), ("cuda", "whl/cu130")])
def test_one_variable_selects_the_torch_build(choice, build):
    done = make(f"TORCH={choice}")
    lines = done.stdout.splitlines()
    torch = next(i for i, line in enumerate(lines) if "--index-url" in line)
    assert build in lines[torch] and "torch==" in lines[torch] and "torchaudio==" in lines[torch]
    assert torch < next(i for i, line in enumerate(lines) if "-r requirements.txt" in line)


def test_without_the_variable_pip_resolves_torch_from_its_own_index():
    done = make()
    assert "--index-url" not in done.stdout and "-r requirements.txt" in done.stdout
    wrong = make("TORCH=gpu")
    assert wrong.returncode != 0 and "TORCH=gpu is unknown" in wrong.stderr
