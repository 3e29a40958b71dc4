"""The documents tell the truth: commands exist, links lead somewhere, named tests are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.acquisition import catalog
from storage.database.locations import from_environment

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BESIDE = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "sample_data" / "README.md"]
DOCUMENTS = [*BESIDE, *sorted((ROOT / "docs").glob("*.md"))]


def test_the_readmes_make_targets_exist():
    named = set(re.findall(r"\bmake ([a-z-]+)", README))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"run", "test", "bench"} <= named <= targets | {"nothing"}


@pytest.mark.parametrize("target", ["run", "test", "lint"])
def test_make_knows_what_to_do_for(target):
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"run": "-m app run", "test": "-m pytest", "lint": "-m ruff check"}[target] in done.stdout


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
    named = re.findall(r"python -m ((?:benchmarks|experiments)\.[a-z_]+)", document.read_text())
    missing = [name for name in named if not (ROOT / (name.replace(".", "/") + ".py")).exists()]
    assert missing == []
