"""Names: who may sign in, how names are shown, and that nothing in them is interpreted as markup."""

from __future__ import annotations

import ast
import logging
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.simulation.requests import SimulationRequest
from app.views.text import count, markup, plain, visible
from app.web import people, server
from app.web.screens.rounds import simulate
from app.web.server_command import ROOT
from core.errors import NotFound


@pytest.mark.parametrize(
    ("email", "allowed", "enters"),
    [
        ("ana@lab.org", "", True),
        ("ana@lab.org", "ana@lab.org, @uni.edu", True),
        ("Ben@Uni.edu", "ana@lab.org, @uni.edu", True),
        ("eve@evil.example", "ana@lab.org, @uni.edu", False),
        ("eve@notuni.edu", "@uni.edu", False),
        ("", "@uni.edu", False),
    ],
)
def test_who_may_enter_after_signing_in(email, allowed, enters):
    assert people.may_enter(email, allowed) is enters


@pytest.mark.parametrize(
    ("name", "letters"), [("Ana Koller", "AK"), ("ben", "BE"), ("Å b c", "ÅC"), ("<img>", "?"), ("", "?")]
)
def test_initials(name, letters):
    assert people.initials(name) == letters


@pytest.mark.slow
@given(st.text(max_size=60))
def test_every_punctuation_mark_is_escaped_and_the_text_stays_the_same(text):
    shown = plain(text)
    assert "\n" not in shown and "\r" not in shown
    assert shown.replace("\u2060", "").replace("\\", "") == visible(text).replace("\u2060", "").replace("\\", "")
    stripped = shown.replace("\\\\", "")
    for i, letter in enumerate(stripped):
        if letter in "*_`[]()<>!#$:|~&":
            assert stripped[i - 1] == "\\"


def test_direction_marks_controls_and_breaks_are_visible():
    assert visible("a\u202egnp.exe\nb\tc\x00\ud800") == "a\\u202egnp.exe⏎b c\\u0000\\ud800"
    assert plain("x" * 100, limit=10) == "x" * 9 + "…"
    assert markup('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
    assert (count(1, "clip"), count(3000, "clip"), count(2, "class", "classes")) == (
        "1 clip",
        "3,000 clips",
        "2 classes",
    )


def test_a_failing_page_shows_a_number_and_the_log_has_the_cause(monkeypatch, caplog):
    """The page shows no stack trace, but a number that identifies the trace in the log."""
    said: list[str] = []
    monkeypatch.setattr(server.st, "error", said.append)
    with caplog.at_level(logging.ERROR):
        assert server.on_script_error(ZeroDivisionError("inner detail")) is True
    number = said[0].split("error ")[1].split(";")[0]
    assert len(number) == 8 and number in caplog.text and "inner detail" in caplog.text
    assert "inner detail" not in said[0] and "Labels are not affected" in said[0]
    assert server.on_script_error(NotFound("Project 7 is gone.")) is True
    assert said[1] == plain("Project 7 is gone.")


@pytest.mark.slow
def test_the_start_screen_offers_people_and_refuses_the_name_of_the_importer(page_store, monkeypatch):
    from streamlit.testing.v1 import AppTest

    from storage.projects.annotators import annotator_named

    for name in ("Ana", "import"):
        annotator_named(page_store, name)

    def screen() -> None:
        from app.web import people

        people.ask()

    # A script run replaces `__main__`, which processes that later tests start would try to run.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    page = AppTest.from_function(screen, default_timeout=60).run()
    assert [button.label for button in page.button if button.key and button.key.startswith("person-")] == ["Ana"]
    page.text_input[0].set_value("import")
    page.button[-1].click().run()
    assert "no person gave" in page.error[0].value.replace("\\", "")


def test_text_that_is_shown_literally_is_not_escaped_for_markdown():
    """The blocks of `theme` show their text literally: a backslash of `plain` would be visible on the screen."""
    found = []
    for path in (ROOT / "app" / "web").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            is_block = isinstance(call, ast.Call) and ast.unparse(call.func).startswith("theme.")
            if is_block and any(isinstance(one, ast.Name) and one.id == "plain" for one in ast.walk(call)):
                found.append(f"{path.name}:{call.lineno}")
    assert found == []


def test_the_state_of_a_simulation_has_no_escapes():
    asked = SimulationRequest()
    one = SimpleNamespace(
        without_worker=False,
        status="running",
        seconds_left=None,
        n_records=3,
        asked=asked,
        notes=["uniform, seed 1: train"],
    )
    assert simulate._where(one) == f"3 of {asked.n_records:,} · uniform, seed 1: train"


WIDGETS = {
    "selectbox", "number_input", "text_area", "slider", "checkbox", "toggle", "multiselect", "segmented_control",
    "radio",
}  # fmt: skip


def test_every_setting_has_one_sentence():
    """The help of a widget, or `**` that contains it. A control without a visible name needs none."""
    bare = []
    for path in (ROOT / "app" / "web" / "screens").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in WIDGETS):
                continue
            given = {one.arg for one in call.keywords}
            if not given & {"help", "label_visibility", None}:
                bare.append(f"{path.name}:{call.lineno}")
            for one in call.keywords:
                if one.arg == "help" and isinstance(one.value, ast.Constant) and not str(one.value.value).endswith("."):
                    bare.append(f"{path.name}:{call.lineno} is no sentence")
    assert bare == []
