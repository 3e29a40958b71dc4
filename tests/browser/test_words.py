"""The names of the tabs, old addresses, restoring an archived project, one vocabulary on all screens, no escapes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from app.simulation import requests as simulation_requests
from app.simulation.requests import SimulationRequest
from storage.database.schema import Item
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes, rename_class
from storage.projects.projects import get_project
from storage.rounds import simulations, workers
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import at_rest, eventually, wait_for_card
from tests.browser.screens import READY

TABS = ["Label", "Grid", "Train", "Map", "Data", "Export", "Review"]
RETIRED = re.compile(
    r"\b(collect|deliver|learn|guess(es|ed)?|hints?|opinions?|truths?|oracle|alike|judged?|held[- ]out|desks?)\b",
    re.I,
)
ESCAPES = re.compile(r"\\[!-/:-@\[-`{-~]|&(quot|amp|lt|gt|apos|#\w+);")  # of Markdown and HTML
WORKER = "a worker of this test"
QUOTED = 'say "nine": 5 % & <b>'
# All texts for people and screen readers: texts, names, tooltips and placeholders, also in the shadow roots of widgets.
READABLE = """() => {
  const found = [];
  const look = (root) => {
    for (const one of root.querySelectorAll('*')) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (['STYLE', 'SCRIPT'].includes(one.tagName)) continue;
      for (const name of ['aria-label', 'title', 'placeholder', 'alt']) found.push(one.getAttribute(name));
      for (const node of one.childNodes) if (node.nodeType === Node.TEXT_NODE) found.push(node.textContent);
    }
  };
  look(document.body);  // dialogs are outside of the app
  return found.filter((text) => text && text.trim());
}"""


def retired_words(page: Page) -> list[str]:
    """Texts of the page with a retired word or an escape."""
    return [text for text in page.evaluate(READABLE) if RETIRED.search(text) or ESCAPES.search(text)]


@pytest.fixture
def busy(store, audio):
    """A project with content for every screen: two rounds, labels of two annotators who disagree, a class with
    characters that Markdown and HTML escape, a running simulation."""
    pool, known = Pool(store, audio.id), list_classes(store, audio.id)
    rename_class(store, audio.id, known[-1].id, QUOTED)
    finish_round(store, audio, [0, 1, 2], accuracy=0.6)
    ana, bea = (annotator_named(store, name).id for name in ("Ana Koller", "Bea"))
    for item, (mine, hers) in zip(pool.items(), [(0, 1), (1, 1), (2, 2)], strict=False):
        pool.label(item.id, known[mine].id, annotator=ana)
        pool.label(item.id, known[hers].id, annotator=bea)
    finish_round(store, audio, [3, 4, 5], accuracy=0.7)
    with store.write() as connection:
        own = update(Item).where(Item.project_id == audio.id)
        connection.execute(own.values(truth_class_id=known[0].id))
        connection.execute(own.where(Item.id == pool.items()[-1].id).values(held_out=True))
    workers.register(store, WORKER, host="here", pid=1, device="cpu")
    simulated = simulation_requests.begin(store, audio.id, SimulationRequest())
    simulations.begin(store, simulated, 1, {}, "pool")
    simulations.start_seed(store, simulated, 1)
    simulations.note(store, simulated, 1, "uniform, seed 1: train")
    yield audio
    workers.remove(store, [WORKER])


@pytest.mark.parametrize(("old", "name"), [("learn", "Train"), ("collect", "Data"), ("deliver", "Export")])
def test_an_old_address_opens_the_renamed_screen_of_the_same_project(open_browser, audio, old, name):
    page = open_browser(audio).tab(old)
    page.wait_for_url(f"**/{name.lower()}?project={audio.id}")
    expect(page.locator(".st-key-tab-current")).to_have_text(name)
    page.wait_for_selector(READY[name])


def test_an_archived_project_is_listed_and_restored_on_the_data_screen(open_browser, store, audio, images):
    user = open_browser(audio)
    page = user.tab("data")
    page.get_by_role("button", name="Archive project").click()
    page.get_by_role("button", name="Archive", exact=True).click()
    archived = page.locator(".st-key-card-archived")
    expect(archived).to_contain_text(f"{audio.name} · 0 of 24 items labeled")
    assert get_project(store, audio.id).archived_at is not None
    assert page.url.endswith(f"?project={images.id}")  # the newest project that remains
    restore = archived.locator(f".st-key-restore-project-{audio.id} button")
    at_rest(page)
    restore.click()
    page.wait_for_url(f"**/data?project={audio.id}")
    expect(restore).to_have_count(0)
    expect(page.get_by_text(f"Add files to {audio.name}")).to_be_visible()
    assert get_project(store, audio.id).archived_at is None
    page.get_by_role("link", name="Label").click()
    wait_for_card(page)


def test_tabs_have_the_agreed_names_and_addresses_and_no_screen_a_retired_word_or_an_escape(open_browser, busy, store):
    page = open_browser(busy).label_tab()
    expect(page.locator(".st-key-tabs a")).to_have_text(TABS)
    eventually(page, lambda: retired_words(page), [])
    for name in TABS[1:]:
        page.locator(".st-key-tabs a", has_text=name).click()
        expect(page.locator(".st-key-tab-current")).to_have_text(name)
        page.wait_for_url(f"**/{name.lower()}?project={busy.id}")
        page.wait_for_selector(READY[name])
        at_rest(page)
        eventually(page, lambda: retired_words(page), [])
    workers.beat(store, WORKER, round_id=None, stage="")  # else it counts as dead on a busy machine
    page.get_by_role("link", name="Train").click()
    page.wait_for_selector(READY["Train"])
    expect(page.get_by_text(f"Most often: {QUOTED} predicted as zero (3)")).to_be_visible()
    expect(page.locator(".st-key-card-simulate")).to_contain_text("· uniform, seed 1: train")
    rounds, dialog = page.locator(".st-key-card-rounds"), page.get_by_role("dialog")
    rounds.get_by_role("button", name="Open", exact=True).first.click()
    expect(dialog).to_contain_text("Round 2")
    eventually(page, lambda: retired_words(page), [])
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    rounds.get_by_role("button", name="Compare", exact=True).first.click()
    expect(page.locator(".st-key-card-comparison")).to_contain_text("Compare strategies")
    eventually(page, lambda: retired_words(page), [])


def test_the_start_screen_has_no_retired_word(server, lend_context):
    page = lend_context(server).new_page()
    page.goto(server.url, wait_until="domcontentloaded")
    page.wait_for_selector(".st-key-welcome input")
    at_rest(page)
    assert retired_words(page) == []
