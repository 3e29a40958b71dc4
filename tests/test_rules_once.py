"""Rules that are implemented once: each pattern occurs only in the module of its rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES = {
    "what a merged class counts as": (
        r"effective_id or |coalesce\(\s*LabelClass\.effective_id",
        "storage/projects/class_rows.py",
    ),
    "which event an undo event undoes": (r"\.undoes == ", "storage/labeling/undo.py"),
    "whether a process runs": (r"os\.kill\([^)]*, 0\)", "storage/system/processes.py"),
    "compilation by numba": (r"\bnumba\.|\bnjit\b|import numba", "core/numba_compilation.py"),
    "the command of a child process": (
        r"sys\.executable, (\"-P\", )?\"-m\", (?!\"streamlit\")",
        "core/module_processes.py",
    ),
    "the import path of a child process": (r"\"PYTHONPATH\"", "core/module_processes.py"),
    "syncing a file to disk by its path": (r"os\.open\([^)]*O_RDONLY\)\s+try:\s+os\.fsync", "core/atomic_files.py"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_implemented_in_one_module(rule):
    pattern, home = RULES[rule]
    sources = [path for folder in ("core", "storage", "app") for path in (ROOT / folder).rglob("*.py")]
    code = {path: re.sub(r'"""(.|\n)*?"""|#.*', "", path.read_text()) for path in sources}
    assert {str(path.relative_to(ROOT)) for path, text in code.items() if re.search(pattern, text)} == {home}
