"""Speed and correctness of labeling by keyboard, in a real Chromium against the real server.

    python -m benchmarks.labeling [--items 90] [--keys 50]

key_to_next_ms   from the key press to the frame that shows the next card (its media decoded and in the page), over 50
                 keys while labels are being saved
landed_of_10     ten keys at a fixed interval, each for the item on screen: the number stored on the right item
first_card_ms    from opening the address to the first card with its media

The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from app.web import tickets
from app.web.access import SESSION_COOKIE
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow
from tests.app import sample_store
from tests.browser.conftest import CHROMIUM_FLAGS, Server, saved, wait_for_card

SCREEN = """[...document.querySelectorAll('.stBidiComponent *')].filter((e) => e.shadowRoot)
  .map((e) => e.shadowRoot.querySelector('.screen')).find(Boolean)"""
PRESS = """async ([keys, gap]) => {
  const screen = SCREEN;
  const shown = [];
  for (const key of keys) {
    shown.push(Number(screen.dataset.itemId));
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, composed: true }));
    await new Promise((resolve) => setTimeout(resolve, gap));
  }
  return shown;
}""".replace("SCREEN", SCREEN)
WATCH = """() => {
  const screen = SCREEN;
  window.timings = [];
  document.addEventListener('keydown', (e) => {
    const start = e.timeStamp, before = screen.dataset.itemId;
    const look = () => {
      const image = screen.querySelector('.frame img');
      if (screen.dataset.itemId !== before && image && image.complete) window.timings.push(performance.now() - start);
      else if (performance.now() - start < 5000) requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, { capture: true });
}""".replace("SCREEN", SCREEN)


def open_page(browser: Browser, server: Server, project: ProjectRow, annotator: int) -> tuple[Page, float]:
    """A tab with the first card on screen, and how long that took in milliseconds since navigation began."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    ticket = tickets.issue(tickets.signing_key(server.home), annotator, 3600)
    context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": server.url}])
    page = context.new_page()
    page.goto(f"{server.url}/?project={project.id}")
    page.wait_for_selector(".screen[data-view='card'] .frame img")
    first = float(page.evaluate("() => performance.now()"))
    wait_for_card(page)
    return page, first


def key_to_next(page: Page, keys: list[str], n: int) -> list[float]:
    page.evaluate(WATCH)
    for i in range(n):
        page.keyboard.press(keys[i % len(keys)])
        page.wait_for_timeout(120)
    page.wait_for_timeout(500)
    return [float(value) for value in page.evaluate("() => window.timings")]


def landed(page: Page, pool: Pool, annotator: int, keys: list[str], gap: int) -> int:
    """Of ten keys `gap` ms apart, the number whose class is stored on the item that was shown at the key press."""
    page.wait_for_function(f"() => Number(({SCREEN}).dataset.ahead) >= {len(keys)}")
    wait_for_card(page)
    known = len(pool.recent(annotator, 10_000))
    shown = page.evaluate(PRESS, [keys, gap])
    saved(page, 60_000)
    events = pool.recent(annotator, 10_000)[::-1][known:]
    classes = [row.id for row in list_classes(pool.store, pool.project_id)]
    meant = set(zip(shown, classes, strict=True))
    return len({(event.item_id, event.class_id) for event in events} & meant) if len(events) == len(keys) else 0


def measure(browser: Browser, server: Server, store: Store, n_items: int, n_keys: int) -> dict[str, Any]:
    project = sample_store.audio_project(store, "Benchmark", n_items)
    sample_store.finish_round(store, project)
    person = annotator_named(store, "Benchmark").id
    pool = Pool(store, project.id)
    keys = [row.key or "" for row in list_classes(store, project.id)]
    page, first = open_page(browser, server, project, person)
    times = sorted(key_to_next(page, keys, n_keys))
    saved(page, 60_000)
    results = {f"landed_of_10_at_{gap}ms": landed(page, pool, person, keys, gap) for gap in (20, 100)}
    return {
        "key_to_next_ms_median": round(statistics.median(times), 1),
        "key_to_next_ms_p90": round(times[int(0.9 * (len(times) - 1))], 1),
        "n_keys": len(times),
        **results,
        "first_card_ms": round(first),
        "labels_stored": pool.counts().labeled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=90)
    parser.add_argument("--keys", type=int, default=50)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="winnow-labeling-"))
    server = Server(home)
    try:
        with Store.open(home=home) as store, sync_playwright() as playwright:
            server.start()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
            results = measure(browser, server, store, arguments.items, arguments.keys)
            browser.close()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
