"""Every screen at desktop and phone size and at 150 and 200 % zoom, light and dark: nothing overlaps, sticks out or is
cut, everything has a name and enough contrast (axe-core), and every control can be reached by mouse and keyboard. One
server and one page, which follows the system's choice of light or dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import update

from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow
from tests.app import sample_store
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import OVERFLOW, SLOW, Server, at_rest, eventually, serious, sign_in, wait_for_card
from tests.browser.screens import READY

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LONG = "Recordings of the northern shore, spring and summer, second microphone"
ZOOMED = [{"width": 853, "height": 533}, {"width": 640, "height": 400}]  # the desktop at 150 and 200 %
BACKGROUND = {"light": "rgb(250, 249, 246)", "dark": "rgb(19, 21, 24)"}
# Boxes of texts and controls that share pixels though neither holds the other, and boxes beyond the window's right edge
# that no scrolling container holds. Shadow roots of the widgets are looked into.
CROWDED = """() => {
  const PARTS = 'button, a, h1, h2, p, kbd, label, input, textarea, summary, [role=button], .winnow-round span';
  const above = (one) => one.parentElement || one.getRootNode().host;
  const shared = (a, b) => [
    Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top),
  ];
  const boxes = [], wide = [];
  const look = (root) => {
    for (const one of root.querySelectorAll('*')) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (!one.matches(PARTS) || !one.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
      const box = one.getBoundingClientRect();
      if (box.width < 3 || box.height < 3 || getComputedStyle(one).clipPath !== 'none') continue;
      let scrolls = false, aside = false;  // aside: scrolled out of sight, or floating above the page on purpose
      for (let up = above(one); up; up = above(up)) {
        const style = getComputedStyle(up);
        if (style.overflowX !== 'visible') {
          scrolls = true;
          aside ||= Math.min(...shared(box, up.getBoundingClientRect())) <= 1;
        }
        aside ||= style.position === 'fixed' || style.position === 'sticky';
      }
      if (aside) continue;
      const name = `${one.tagName} ${(one.textContent || one.getAttribute('aria-label') || '').trim().slice(0, 40)}`;
      boxes.push({ one, box, name });
      if (box.right > innerWidth + 1 && !scrolls) wide.push(name);
    }
  };
  look(document.querySelector('.stMain'));
  const holds = (a, b) => {
    for (let up = b; up; up = above(up)) if (up === a) return true;
    return false;
  };
  const over = [];
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const field = a.one.closest('label');
    if (Math.min(...shared(a.box, b.box)) <= 3 || (field && field === b.one.closest('label'))) return;
    if (!holds(a.one, b.one) && !holds(b.one, a.one)) over.push(`${a.name} | ${b.name}`);
  }));
  return { wide, over };
}"""


# The name of the project does not leave its button.
NAME_INSIDE = """() => {
  const button = document.querySelector('.st-key-project-menu button');
  const [outer, inner] = [button, button.querySelector('p')].map((one) => one.getBoundingClientRect());
  return inner.left >= outer.left && inner.right <= outer.right;
}"""
# Tabs and buttons of the header that lie outside of the window, are cut, or are covered by something else.
OUT_OF_REACH = """() => [...document.querySelectorAll('.st-key-topbar a, .st-key-topbar button')].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width) return false;
  const top = (x) => document.elementFromPoint(x, (box.top + box.bottom) / 2);
  return [box.left + 3, box.right - 3].some((x) => !top(x) || !(one.contains(top(x)) || top(x).contains(one)));
}).map((one) => one.textContent)"""
# Names of buttons and fields that are cut, and words that are broken in two. A name of a project may be cut: the menu
# shows all of it.
CUT = """() => {
  const PARTS = 'button p, label p, h2, th, .winnow-table td, .stSelectbox input', found = [];
  for (const one of document.querySelectorAll(`.stMain :is(${PARTS})`)) {
    if (one.closest('.st-key-project-menu') || !one.checkVisibility({ checkVisibilityCSS: true })) continue;
    const name = one.textContent.trim() || one.value || '';
    if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth) found.push(`cut: ${name}`);
    const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), range = document.createRange();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const word of node.data.matchAll(/\\p{L}+/gu)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
        if (lines.size > 1) found.push(`broken: ${name}`);
      }
    }
  }
  return found;
}"""


# What can be clicked or filled but is left out of the order of Tab, outside of widgets that move inside by arrow keys
# or repeat what the keyboard does in the field itself.
LEFT_OUT = """() => {
  const PARTS = 'button, a[href], input, select, textarea, summary, [role=button], [role=switch], [role=slider]';
  const WITHIN = `[role=radiogroup], [role=grid], [role=listbox], [role=toolbar], [role=group], .stNumberInput,
    [aria-hidden=true], [inert], .js-plotly-plot`;
  const found = [];
  const look = (root) => {
    for (const one of root.querySelectorAll('*')) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (!one.matches(PARTS) || one.disabled || one.tabIndex >= 0 || one.closest(WITHIN)) continue;
      if (!one.checkVisibility({ checkVisibilityCSS: true })) continue;
      found.push(`${one.tagName} ${(one.getAttribute('aria-label') || one.textContent).trim().slice(0, 40)}`);
    }
  };
  look(document.querySelector('.stMain'));
  return found;
}"""
FOCUSED = """() => {
  let one = document.activeElement;
  while (one && one.shadowRoot && one.shadowRoot.activeElement) one = one.shadowRoot.activeElement;
  return `${one.tagName} ${one.getAttribute('aria-label') || one.textContent.trim().slice(0, 40)}`;
}"""


@pytest.fixture(scope="module")
def busy(store: Store) -> ProjectRow:
    """A project with content for every screen: two rounds, labels that differ, a waiting batch, hidden labels."""
    project = sample_store.audio_project(store, LONG, 16, labels_per_item=2)
    pool, known = Pool(store, project.id), list_classes(store, project.id)
    finish_round(store, project, [0, 1, 2], accuracy=0.6)
    ana, bea = (annotator_named(store, name).id for name in ("Ana Koller", "Bea"))
    for item, (mine, hers) in zip(pool.items(), [(0, 1), (1, 1), (2, 2)], strict=False):
        pool.label(item.id, known[mine].id, annotator=ana)
        pool.label(item.id, known[hers].id, annotator=bea)
    finish_round(store, project, [3, 4, 5], accuracy=0.7)
    with store.write() as connection:
        own = update(Item).where(Item.project_id == project.id)
        connection.execute(own.values(truth_class_id=known[0].id))
        connection.execute(own.where(Item.id == pool.items()[-1].id).values(held_out=True))
    return project


@pytest.fixture(scope="module")
def tour(server: Server, store: Store, chromium: Browser, busy: ProjectRow) -> Iterator[Page]:
    """One page, on which the tests go from screen to screen, like users."""
    context = chromium.new_context(viewport=DESK)
    context.set_default_timeout(SLOW)
    sign_in(context, server, annotator_named(store, "Ana Koller"))
    opened = context.new_page()
    opened.goto(f"{server.url}/?project={busy.id}", wait_until="domcontentloaded")
    wait_for_card(opened)
    yield opened
    context.close()


def switch_theme(page: Page, scheme: str) -> None:
    """Switch the color scheme of the system between light and dark."""
    page.emulate_media(color_scheme=scheme)
    color = "app => getComputedStyle(app).backgroundColor"
    eventually(page, lambda: page.locator(".stApp").evaluate(color), BACKGROUND[scheme])


def fits(page: Page) -> None:
    """Wait until the screen fits the current window; plots adapt to a new size with a delay."""
    eventually(page, lambda: page.evaluate(OVERFLOW), 0)
    eventually(page, lambda: page.evaluate(CROWDED), {"wide": [], "over": []})
    eventually(page, lambda: page.evaluate(CUT), [])


@pytest.mark.parametrize("screen", READY)
def test_a_screen_fits_desktop_zoom_and_phone_and_has_no_serious_findings(tour: Page, screen: str):
    page = tour
    page.set_viewport_size(DESK)
    page.locator(".st-key-tabs a", has_text=screen).click()
    expect(page.locator(".st-key-tab-current")).to_have_text(screen)
    page.wait_for_selector(READY[screen])
    for scheme in BACKGROUND:
        switch_theme(page, scheme)
        for size in (DESK, *ZOOMED, PHONE):
            page.set_viewport_size(size)
            page.wait_for_selector(READY[screen])
            at_rest(page)
            fits(page)
            eventually(page, lambda: (page.evaluate(OUT_OF_REACH), page.evaluate(NAME_INSIDE)), ([], True))
            eventually(page, lambda: serious(page), [])
    eventually(page, lambda: page.locator(".st-key-tabs").evaluate("tabs => tabs.scrollWidth - tabs.clientWidth"), 0)
    eventually(page, lambda: page.evaluate(LEFT_OUT), [])
    page.locator(".st-key-tab-current a").focus()
    seen = []
    for _ in range(14):  # no trap: Tab moves on, also through the buttons of a player
        page.keyboard.press("Tab")
        seen.append(page.evaluate(FOCUSED))
    assert len(set(seen)) >= 5


def test_the_question_for_a_name_fits_and_has_no_serious_findings(server, lend_context, busy):
    page = lend_context(server).new_page()
    page.goto(server.url, wait_until="domcontentloaded")
    page.wait_for_selector(".st-key-welcome input")
    for scheme in BACKGROUND:
        switch_theme(page, scheme)
        for size in (PHONE, DESK):
            page.set_viewport_size(size)
            at_rest(page)
            fits(page)
        eventually(page, lambda: serious(page), [])


def test_the_page_process_stays_small_and_never_loads_torch(server: Server):
    """Measured after all screens were opened."""
    process = Path("/proc") / str(server.process.pid)
    if not process.exists():
        pytest.skip("needs /proc to look into the server")
    resident = int((process / "status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    assert resident < 400, f"{resident:.0f} MB"
    assert "libtorch" not in (process / "maps").read_text()
