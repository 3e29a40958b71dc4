"""The Makefile: the chosen build of torch stays, with the pinned requirements and in later commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PINS = dict(re.findall(r"^(torch|torchaudio)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))


def wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """An empty package with these requirements."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.mark.slow
def test_the_chosen_build_of_torch_stays_when_the_requirements_are_installed(tmp_path):
    """Two local folders replace the index of the build and pip's default index."""
    assert set(PINS) == {"torch", "torchaudio"}
    build, usual = tmp_path / "build", tmp_path / "usual"
    for folder, suffix in ((build, "+cpu"), (usual, "")):
        folder.mkdir()
        wheel(folder, "torch", PINS["torch"] + suffix)
        wheel(folder, "torchaudio", PINS["torchaudio"] + suffix, f"torch=={PINS['torch']}")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("".join(f"{name}=={version}\n" for name, version in PINS.items()))

    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    own["PIP_CONFIG_FILE"] = os.devnull  # a machine may name further places of packages

    def install(folder: Path, *options: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--disable-pip-version-check"]
        command += ["--no-index", "--find-links", str(folder), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=own).stdout

    def installed() -> set[str]:
        folder = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
        return {path.name.removesuffix(".dist-info") for path in folder.glob("torch*.dist-info")}

    pins = [f"{name}=={version}" for name, version in PINS.items()]
    install(usual, "-r", str(requirements))  # a folder that was set up without TORCH
    assert installed() == {f"{name}-{version}" for name, version in PINS.items()}
    install(build, "--force-reinstall", "--no-deps", *pins)
    said = install(usual, "-r", str(requirements))
    assert installed() == {f"{name}-{version}+cpu" for name, version in PINS.items()}
    assert said.count("Requirement already satisfied: torch") >= 2


def test_a_build_is_chosen_once_and_later_commands_keep_it(tmp_path):
    """A script that replaces Python records what would be installed."""
    venv, log = tmp_path / "venv", tmp_path / "log"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    (venv / "bin" / "python").chmod(0o755)
    pins = " ".join(f"{name}=={version}" for name, version in PINS.items())

    def installs(*words: str) -> list[str]:
        """The places that `make setup` installs from, in order: an index, or "requirements"."""
        log.write_text("")
        subprocess.run(["make", "-C", str(ROOT), "setup", f"VENV={venv}", *words], check=True, env=clean)
        lines = log.read_text().splitlines()
        assert all("-r requirements.txt" in line or line.endswith(pins) for line in lines)
        return [found[1] if (found := re.search(r"whl/(\w+)", line)) else "requirements" for line in lines]

    def age(name: str) -> None:
        """Change the times as if requirements.txt had changed since."""
        os.utime(venv / name, (1, 1))

    clean = {name: value for name, value in os.environ.items() if name not in ("TORCH", "MAKEFLAGS", "MAKELEVEL")}
    assert installs() == ["requirements"] and installs() == []
    assert installs("TORCH=cpu") == ["cpu", "requirements"]
    assert installs() == [] and installs("TORCH=cpu") == []
    age(".torch-cpu")
    age(".runtime")
    assert installs() == ["requirements"], "other requirements changed: torch is not fetched again"
    (venv / ".torch-cpu").write_text("torch==1.0.0 torchaudio==1.0.0\n")
    age(".torch-cpu")
    assert installs() == ["cpu", "requirements"], "torch changed: the same build of the new version"
    assert installs("TORCH=cuda") == ["cu130", "requirements"] and installs() == []
    assert not (venv / ".torch-cpu").exists()
    assert installs("TORCH=cpu") == ["cpu", "requirements"] and installs() == []
    assert subprocess.run(["make", "-C", str(ROOT), "setup", "TORCH=gpu"], capture_output=True).returncode != 0


def test_a_build_that_cannot_be_installed_is_not_remembered(tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (venv / "bin" / "python").chmod(0o755)
    command = ["make", "-C", str(ROOT), "setup", f"VENV={venv}", "TORCH=cpu"]
    assert subprocess.run(command, capture_output=True).returncode != 0
    assert not (venv / ".torch-cpu").exists() and not (venv / ".runtime").exists()


def test_the_promised_libraries_are_pinned_and_in_use():
    """Winnow is built on these libraries; librosa computes what the audio front end is compared with in tests."""
    pinned = set(re.findall(r"^([\w-]+)(?:\[\w+\])?==", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    sources = [path.read_text() for room in ("app", "core", "storage", "tests") for path in (ROOT / room).rglob("*.py")]
    for package, module in (
        ("streamlit", "streamlit"), ("torch", "torch"), ("torchaudio", "torchaudio"), ("librosa", "librosa"),
        ("umap-learn", "umap"), ("plotly", "plotly"), ("SQLAlchemy", "sqlalchemy"),
    ):  # fmt: skip
        assert package in pinned
        assert any(re.search(rf"^\s*(import|from) {module}\b", text, re.MULTILINE) for text in sources), package
