"""Names of people, files and projects are shown literally; nothing in them runs, styles or fetches."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import urllib.request

import pytest
from playwright.sync_api import expect

from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings, create_project
from tests.app import sample_store
from tests.browser.conftest import (
    FIRST_START_SECONDS,
    ROOT,
    SLOW,
    STOP_SECONDS,
    at_rest,
    current_item,
    eventually,
    saved,
)
from tests.browser.screens import READY
from tests.free_ports import free_port

_numbers = itertools.count()
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "![x](http://203.0.113.7/a.png)",
    "[a](javascript:alert(1))",
    ":red[x] :material/home: :smile:",
    "$x^2$ and `code` *b* _i_ ~~s~~",
    "http://203.0.113.7/x www.example.org a@b.example",
    "# heading | table | > quote",
    "1. list - item + item",
    "=1+1 -2 @x &amp; &#60;",
    "<script>fetch('http://203.0.113.7/s')</script>",
    "back\\\\slash \\\\* and |pipe|",
    "émoji 🙂 " + "x" * 120,
)
FIRST_CUT = """tiles => tiles.map((tile) => tile.querySelector('.name'))
  .findIndex((name) => name.scrollWidth > name.clientWidth + 1 || name.scrollHeight > name.clientHeight + 1)"""
PAGE = """
import streamlit as st
from app.views.text import plain
for i, text in enumerate({texts!r}):
    with st.container(key=f"case-{{i}}"):
        st.markdown(plain(text))
        st.caption(plain(text))
        st.button(plain(text), key=f"b{{i}}")
        st.checkbox(plain(text), key=f"c{{i}}")
        st.error(plain(text))
"""


@pytest.fixture(scope="module")
def page_of_names(tmp_path_factory):
    script = tmp_path_factory.mktemp("names") / "page.py"
    script.write_text(PAGE.format(texts=HOSTILE))
    port = free_port()
    arguments = ["--server.address", "127.0.0.1", "--server.port", str(port), "--server.headless", "true"]
    process = subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", str(script), *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(script.parent)},
    )
    end = time.monotonic() + FIRST_START_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=10).read()
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < end, "the page of names did not start"
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(STOP_SECONDS)


def texts_of_case(page, i: int) -> list[str]:
    shown = page.locator(f".st-key-case-{i} .stElementContainer").all_inner_texts()
    return [one.strip().replace("\u2060", "") for one in shown]


def test_escaped_names_are_shown_literally_in_every_markdown_element(chromium, page_of_names):
    """Five kinds of element show exactly the text, hold no link, image or formula, and fetch nothing."""
    context = chromium.new_context()
    context.set_default_timeout(SLOW)
    outside: list[str] = []
    ours = (page_of_names, page_of_names.replace("http", "ws"), "data:")
    context.on("request", lambda request: None if request.url.startswith(ours) else outside.append(request.url))
    page = context.new_page()
    page.goto(page_of_names)
    page.wait_for_selector(f".st-key-case-{len(HOSTILE) - 1} [data-testid='stAlert']")
    for lazy in ("button p", "label p"):
        page.wait_for_function(f"() => document.querySelectorAll('.stMain {lazy}').length >= {len(HOSTILE)}")
    for i, text in enumerate(HOSTILE):
        eventually(page, lambda i=i: texts_of_case(page, i), [text] * 5)
        made = page.locator(f".st-key-case-{i} :is(a, img, .katex, code, em, strong, del, script)")
        assert made.evaluate_all("all => all.map(e => e.outerHTML)") == []
    assert outside == []
    context.close()


def test_no_name_on_the_labeling_screens_can_run_or_fetch(open_browser, store):
    """In the app itself: project, class, file, person and guidelines, on every screen."""
    names = [text[:60] for text in HOSTILE]
    files = [(text + ".png", sample_store.picture(90 + i)) for i, text in enumerate(HOSTILE)]
    title = f"<b>![p](http://203.0.113.7/p{next(_numbers)}.png)</b>"  # a new one when the test is tried again
    project = create_project(store, title, "image", names, settings=ProjectSettings(), guidelines=HOSTILE[0])
    sample_store.add_items(store, project, files)
    sample_store.finish_round(store, project)
    user = open_browser(project, "<img src=http://203.0.113.7/me.png>")
    page = user.label_tab()
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    classes = [row.name for row in list_classes(store, project.id)]
    eventually(page, page.locator(".class .name").all_inner_texts, classes)
    first = user.pool.item(current_item(page))
    page.locator(".file summary", has_text="File name").click()
    eventually(page, page.locator(".filename").inner_text, first.name)
    page.keyboard.press("g")
    eventually(page, page.locator(".guidelines").inner_text, HOSTILE[0])
    page.keyboard.press("Escape")
    at_rest(page)
    page.locator(".st-key-person button").first.click()
    page.get_by_text("Labeling as <img src=http://203.0.113.7/me.png>").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Grid").click()
    page.wait_for_selector(".tile")
    assert set(page.locator(".tile .guess").all_inner_texts()) <= set(names)
    name_of_tile = "tiles => tiles.map((one) => [one.title, one.querySelector('.name').textContent])"
    assert all(title == name for title, name in page.locator(".tile").evaluate_all(name_of_tile))  # on hover
    cut = page.locator(".tile").evaluate_all(FIRST_CUT)
    page.keyboard.press("ArrowRight")
    page.locator(".tile").nth(cut).focus()
    expect(page.locator(".tip")).to_have_text(page.locator(".tile").nth(cut).get_attribute("title"))
    for screen in ("Train", "Map", "Data", "Export", "Review"):
        page.get_by_role("link", name=screen).click()
        page.wait_for_url(f"**/{screen.lower()}**")
        expect(page.locator(".st-key-tab-current")).to_have_text(screen)
        if screen == "Map":
            expect(page.get_by_text("Round 1 has no map.")).to_be_visible()
        else:
            page.wait_for_selector(READY[screen])
        at_rest(page)
        page.wait_for_timeout(500)
    assert user.outside == [] and alerts == []


def test_notes_are_stored_exactly_and_shown_inert(open_browser, audio):
    """Notes with markup, line breaks and 100 kB are stored and shown exactly as typed."""
    notes = ["<script>alert(1)</script>", "![x](http://203.0.113.7/n.png)", "é🙂\nsecond line", "é" * 100_000]
    user = open_browser(audio)
    page = user.label_tab()
    for note in notes:
        page.keyboard.press("n")
        page.locator("dialog.note textarea").fill(note)
        page.locator("dialog.note .save").click()
        saved(page)
        page.keyboard.press("n")
        eventually(page, page.locator("dialog.note textarea").input_value, note)
        page.locator("dialog.note .cancel").click()
    assert [event.note for event in user.events("note")] == notes
    assert user.outside == []
