"""The loading time of each screen, in a real Chromium against the real server, with the sample projects and two rounds.

    python -m benchmarks.screens [--repeats 3]

first_paint_ms   first contentful paint, as the browser reports it: the address opened in a new browser profile
ready_ms         until the main content is drawn (card with its media, tiles, charts, points, forms)
again_ms         the same in a profile with a warm cache
page_process_mb  resident memory of the page server afterwards; `torch_loaded` must be false

Each is the median over the repeats. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

from app.web import tickets
from app.web.access import SESSION_COOKIE
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, get_project
from storage.projects.sample_projects import HANDWRITTEN, SPOKEN, load_sample_projects
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import CHROMIUM_FLAGS, Server
from tests.browser.screens import READY

PAINT = "() => performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"
PROJECTS = {"Map": HANDWRITTEN, "Grid": HANDWRITTEN}  # has more items than the other one


def prepare(store: Store, name: str) -> ProjectRow:
    """Two rounds and a few labels, so that every screen has something to show."""
    project = get_project(store, name)
    pool, known, ana = Pool(store, project.id), list_classes(store, project.id), annotator_named(store, "Ana").id
    finish_round(store, project, range(10), accuracy=0.6)
    for place, item in enumerate(pool.items(limit=10)):
        pool.label(item.id, known[place % len(known)].id, annotator=ana)
    finish_round(store, project, range(10, 20), accuracy=0.7)
    return project


def opened(context: BrowserContext, address: str, ready: str) -> tuple[float, float]:
    """(first contentful paint, main content drawn), in ms since the address was opened."""
    page = context.new_page()
    page.goto(address, wait_until="commit")
    page.wait_for_selector(ready)
    done = float(page.evaluate("() => performance.now()"))
    paint = float(page.evaluate(PAINT))
    page.close()
    return paint, done


def measure(browser: Browser, server: Server, store: Store, repeats: int) -> dict[str, Any]:
    projects = {name: prepare(store, name) for name in (SPOKEN, HANDWRITTEN)}
    ticket = tickets.issue(tickets.signing_key(server.home), annotator_named(store, "Ana").id, 3600)
    found: dict[str, Any] = {}
    for screen, ready in READY.items():
        project = projects[PROJECTS.get(screen, SPOKEN)]
        path = "" if screen == "Label" else screen.lower()
        address = f"{server.url}/{path}?project={project.id}"
        times = []
        for _ in range(repeats):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(120_000)
            context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": server.url}])
            times.append((*opened(context, address, ready), opened(context, address, ready)[1]))
            context.close()
        paint, first, again = (round(statistics.median(column)) for column in zip(*times, strict=True))
        found[screen.lower()] = {"first_paint_ms": paint, "ready_ms": first, "again_ms": again}
    return found


def memory(server: Server) -> dict[str, Any]:
    assert server.process is not None
    process = Path("/proc") / str(server.process.pid)
    if not process.exists():
        return {}
    resident = int((process / "status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return {"page_process_mb": round(resident), "torch_loaded": "libtorch" in (process / "maps").read_text()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="winnow-screens-"))
    server = Server(home)
    try:
        with Store.open(home=home) as store, sync_playwright() as playwright:
            load_sample_projects(store)
            server.start()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
            screens = measure(browser, server, store, arguments.repeats)
            browser.close()
            results = {"screens": screens, **memory(server)}
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    results["slowest_first_paint_ms"] = max(one["first_paint_ms"] for one in screens.values())
    results["slowest_ready_ms"] = max(one["ready_ms"] for one in screens.values())
    print(json.dumps(results))


if __name__ == "__main__":
    main()
