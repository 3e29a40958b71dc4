"""Who may import whom (docs/architecture.md), and the shape of the house."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("core", "storage", "app")
LIGHT_CORE = {"core.types", "core.errors", "core.config", "core.rows"}
FORBIDDEN_NAMES = {"utils", "helpers", "misc", "common", "manager", "base"}


def modules() -> dict[str, Path]:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path) -> set[str]:
    """Every module named in an import statement, anywhere in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def belongs(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def is_page_module(module: str) -> bool:
    return (
        module in {"app.web.main", "app.web.server"}
        or belongs(module, "app.web.screens")
        or belongs(module, "app.web.widgets")
    )


def forbidden_for(module: str) -> tuple[str, ...]:
    if module in LIGHT_CORE:
        return ("torch", "torchaudio", "librosa", "sqlalchemy", "streamlit", "storage", "app")
    if belongs(module, "core"):
        return ("storage", "app", "streamlit", "sqlalchemy")
    if belongs(module, "storage"):
        return ("torch", "torchaudio", "streamlit", "app")
    if is_page_module(module):
        return ("torch", "torchaudio", "umap", "core.learning", "core.kernels", "core.coresets", "core.rounds.pipeline")
    return (
        ("streamlit",)
        if module in {"app.worker.worker", "app.views.charts", "app.cli.main", "app.rounds.requests"}
        else ()
    )


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_imports_only_what_its_room_may(module):
    named = imports_of(modules()[module])
    broken = sorted(name for name in named for package in forbidden_for(module) if belongs(name, package))
    if belongs(module, "storage"):
        broken += sorted(name for name in named if belongs(name, "core") and not light(name))
    assert not broken, f"{module} imports {', '.join(broken)}"


def light(name: str) -> bool:
    return name == "core" or any(belongs(name, allowed) for allowed in LIGHT_CORE)


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_is_one_idea(module):
    path = modules()[module]
    assert path.stem not in FORBIDDEN_NAMES, f"{module}: a helper with no home is missing its concept"
    if path.name == "__init__.py":
        assert path.read_text() == "", f"{module} must stay empty"
    else:
        assert len(path.read_text().splitlines()) <= 400, f"{module} is longer than 400 lines"


def test_the_light_modules_and_the_store_load_without_torch():
    """FAULTS C11: the page process never loads torch, whatever it reads from the store."""
    names = [m for m in modules() if m in LIGHT_CORE or (belongs(m, "storage") and "migrations" not in m)]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
