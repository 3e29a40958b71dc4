"""The documents are correct: commands, link targets and named tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from core.acquisition import catalog
from core.version import VERSION
from storage.database.locations import from_environment

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BESIDE = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "sample_data/README.md")]
FAST = '--ignore tests/browser -m "not slow and not postgres"'
DOCUMENTS = [*BESIDE, *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_make_targets_exist():
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"run", "check", "test", "bench"} <= named <= targets


@pytest.mark.parametrize("target", ["run", "check", "test", "lint"])
def test_make_runs_the_expected_commands(target):
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    lint = ["-m ruff check", "-m ruff format --check", "-m mypy"]
    expected = {"run": ["-m app run"], "lint": lint, "check": [*lint, FAST], "test": [*lint, "-m pytest -n 3"]}
    assert [words for words in expected[target] if words not in done.stdout] == []


def test_the_hooks_run_what_make_check_runs_and_nothing_from_elsewhere():
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", config) == ["local"]
    done = subprocess.run(["make", "--dry-run", "check"], cwd=ROOT, capture_output=True, text=True, check=True)
    hooks = re.findall(r"entry: \.venv/bin/python (.*)", config)
    made = re.findall(r"^\.venv/bin/python (-m (?:ruff|mypy|pytest).*)", done.stdout, re.MULTILINE)
    assert [hook.replace(" -q", "") for hook in hooks] == made


def test_the_version_is_the_one_of_the_changelog_and_the_command_line():
    newest = re.search(r"^## (\d+\.\d+\.\d+) — (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == VERSION
    done = subprocess.run(
        [sys.executable, "-m", "app", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"winnow {VERSION}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "core.version.VERSION"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_folders_named_in_documents_exist(document):
    named = re.findall(r"`((?:core|storage|app|tests|docs)/[\w/.]*)`", document.read_text())
    missing = [path for path in named if not re.search("NAME|NNNN", path) and not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_cite_nothing_outside_the_repository(document):
    named = re.findall(r"(?<![\w./])\.\./[\w./-]+", document.read_text())
    assert [path for path in named if not (document.parent / path).exists()] == []


def test_the_command_line_has_every_command_the_readme_names():
    done = subprocess.run([sys.executable, "-m", "app", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  ([a-z]+)\s", done.stdout, re.MULTILINE))
    promised = re.search(r"`python -m app --help` lists (.*?);", README, re.DOTALL)
    assert promised is not None
    assert set(re.findall(r"`([a-z]+)`", promised[1])) <= listed


def test_the_readme_names_every_strategy():
    table = README[README.index("## Strategies") : README.index("### Adding a strategy")]
    assert set(catalog.names()) == set(re.findall(r"`([a-z_]+)`", table.split("Before the first label")[0]))


def test_the_settings_defaults_are_those_of_the_code(monkeypatch):
    for name in ("WINNOW_HOME", "WINNOW_DATABASE_URL", "WINNOW_HOST", "WINNOW_PORT"):
        monkeypatch.delenv(name, raising=False)
    found = from_environment()
    assert (found.host, found.port, found.home.name) == ("127.0.0.1", 8501, "winnow-data")
    assert "`127.0.0.1`" in README and "`8501`" in README and "`./winnow-data`" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_in_documents_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_named_in_documents_exist(document):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document.read_text())
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_benchmarks_and_experiments_named_in_documents_exist(document):
    named = re.findall(r"python -m ((?:benchmarks|experiments)(?:\.[a-z_]+)+)(?![.\w])", document.read_text())
    files = {name: name.replace(".", "/") for name in named}
    missing = [
        name
        for name, path in files.items()
        if not (ROOT / f"{path}.py").exists() and not (ROOT / path / "__main__.py").exists()
    ]
    assert missing == []
