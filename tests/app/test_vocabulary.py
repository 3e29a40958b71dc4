"""Messages use the terms of docs/glossary.md: no message to users contains a retired word.

The messages are the string literals of the sources with a space, and the texts of the widgets. Docstrings are included
only for `app/cli/main.py`, because `python -m app --help` shows them. Docstrings and comments have a separate list:
idioms and metaphors that have a usual technical term.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RETIRED = re.compile(
    r"\b(guess(es|ed)?|opinions?|truths?|oracle|alike|held[- ]out|to judge by|desks?|by itself|at work"
    r"|Learn screen|Collect|Deliver|at hand|worth more|signs? of life|came after|looks? again)\b"
)
RETIRED_IN_PROSE = re.compile(
    r"\b(at hand|signs? of life|what became of|verbs?|whomever|told|heard|asks? for|gives? up|to judge by|worth more"
    r"|did not see|one currency|came to rest|opens? the door|desks?|likeness|settled guesses)\b"
)
SHOWN_DOCSTRINGS = ROOT / "app" / "cli" / "main.py"
FOLDERS = ("app", "core", "storage")
PROSE_FOLDERS = (*FOLDERS, "winnow_client", "experiments", "benchmarks")
OLD_MIGRATIONS = ROOT / "storage" / "database" / "migrations" / "versions"  # never edited after a release


def docstrings(tree: ast.Module) -> set[int]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [node.body[0] for node in ast.walk(tree) if isinstance(node, kinds) and node.body]
    return {id(one.value) for one in first if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)}


def sentences(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    left_out = set() if path == SHOWN_DOCSTRINGS else docstrings(tree)
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if id(node) not in left_out and " " in text.strip():
            yield text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_message_holds_a_retired_word(folder):
    found = [
        f"{path.relative_to(ROOT)}: {text.strip()[:100]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in sentences(path)
        if RETIRED.search(text)
    ]
    assert found == []


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a module."""
    source = path.read_text()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.parametrize("folder", PROSE_FOLDERS)
def test_no_docstring_or_comment_holds_a_retired_word(folder):
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != OLD_MIGRATIONS
        for text in prose(path)
        if (match := RETIRED_IN_PROSE.search(re.sub(r"`[^`]*`|\"[^\"]*\"", "", " ".join(text.split()))))
    ]
    assert found == []


def test_no_text_of_a_widget_holds_a_retired_word():
    assets = sorted((ROOT / "app" / "web" / "widgets" / "assets").glob("*"))
    texts = {path.name: path.read_text() for path in assets if path.suffix in (".js", ".html")}
    assert texts
    quoted = {".js": re.compile(r'"([^"\n]*)"|`([^`\n]*)`'), ".html": re.compile(r'"([^"]*)"|>([^<>]+)<')}
    found = []
    for name, text in texts.items():
        for match in quoted[Path(name).suffix].finditer(re.sub(r"//.*|\$\{[^}]*\}", "", text)):
            words = next(group for group in match.groups() if group is not None)
            found += [f"{name}: {words}"] if " " in words.strip() and RETIRED.search(words) else []
    assert found == []


FIELDS = {
    "checkbox", "color_picker", "multiselect", "number_input", "pills", "radio", "segmented_control", "select_slider",
    "selectbox", "slider", "text_area", "text_input", "toggle",
}  # fmt: skip


def test_every_setting_with_a_visible_label_has_a_help_sentence():
    found, n_fields = [], 0
    for path in sorted((ROOT / "app" / "web" / "screens").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in FIELDS):
                continue
            given = {keyword.arg for keyword in call.keywords}
            n_fields += 1
            if not given & {"help", "label_visibility"}:
                found.append(f"{path.name}:{call.lineno} {call.func.attr}")
    assert n_fields > 30 and found == []
