"""The map with more items than are drawn, in a real Chromium: the time to draw it, and to lasso everything.

    python -m benchmarks.map [--items 60000]

drawn            points on the screen; above 50,000 items a sample, which the page states. Needs more than 3,000 items
draw_seconds     from opening the address until points and picks are drawn
lasso_seconds    from releasing the mouse until the server has computed the items in the area
selected         items in the area: all, not only those drawn
largest_message  bytes of the largest message the page sent (the server closes the connection beyond 50 MB)
disconnects      how often the WebSocket was closed meanwhile

Seconds depend on the machine; the other values do not. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import insert, select

from app.web import tickets
from app.web.access import SESSION_COOKIE
from core.config import RoundConfig
from core.types import Selection
from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling import projections
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.projects import ProjectRow, create_project
from storage.rounds.log import RoundLog
from tests.browser.conftest import CHROMIUM_FLAGS, Server, at_rest

CLASSES = 10
CHUNK = 5_000
DRAWN = """() => document.querySelector('.js-plotly-plot')._fullData
  .filter((trace) => ['labeled', 'not labeled'].includes(trace.name)).reduce((n, trace) => n + trace.x.length, 0)"""


def fill(store: Store, n_items: int) -> ProjectRow:
    """A project of items without files (the map needs none) and one finished round with a model and a map."""
    project = create_project(store, "Many", "image", [str(k) for k in range(CLASSES)])
    now = datetime.now(UTC)
    rows = [
        {"project_id": project.id, "sha256": hashlib.sha256(str(k).encode()).hexdigest(), "name": f"{k}.png",
         "media_type": "image/png", "n_bytes": 1, "width": 8, "height": 8, "held_out": False, "condition": "ok",
         "condition_note": "", "imported_at": now}
        for k in range(n_items)
    ]  # fmt: skip
    with store.write() as connection:
        for start in range(0, n_items, CHUNK):
            connection.execute(insert(Item), rows[start : start + CHUNK])
        ids = list(connection.execute(select(Item.id).where(Item.project_id == project.id)).scalars())
        projections.start_states(connection, project.id, ids)
    finish(store, project)
    return project


def finish(store: Store, project: ProjectRow) -> None:
    log, snapshot = RoundLog(store, project.id), Pool(store, project.id).snapshot()
    row = log.request(RoundConfig())
    log.start(row.id)
    rng, n = np.random.default_rng(0), len(snapshot.item_ids)
    guess = rng.integers(0, CLASSES, n)
    probabilities = np.full((n, CLASSES), 0.02, np.float32)
    probabilities[np.arange(n), guess] = 0.82
    points = rng.normal(size=(n, 2)) + 10 * np.stack([guess % 4, guess // 4], 1)
    picks = Selection(item_ids=snapshot.item_ids[:10], scores=np.ones(10, np.float32), strategy="bico")
    arrays = {
        "item_ids": snapshot.item_ids,
        "probabilities": probabilities,
        "embeddings": np.zeros((n, 2), np.float32),
        "map": points.astype(np.float32),
    }
    metrics = {"has_model": True, "class_names": list(snapshot.class_names)}
    log.finish(row.id, arrays=arrays, selection=picks, metrics=metrics)


def measure(page: Page, server: Server, project: ProjectRow) -> dict[str, Any]:
    sent, closed = [0], [0]

    def follow(socket: Any) -> None:
        socket.on("framesent", lambda data: sent.append(len(data)))
        socket.on("close", lambda _: closed.append(1))

    page.on("websocket", follow)
    start = time.monotonic()
    page.goto(f"{server.url}/map?project={project.id}", wait_until="domcontentloaded")
    page.wait_for_selector(".gl-container canvas")
    at_rest(page)
    draw_seconds = time.monotonic() - start
    drawn = page.evaluate(DRAWN)
    page.get_by_text("Draw areas", exact=True).click()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.dragmode === 'lasso'")
    at_rest(page)
    box = page.locator(".nsewdrag").bounding_box()
    assert box is not None
    left, top, right, bottom = box["x"] + 5, box["y"] + 5, box["x"] + box["width"] - 5, box["y"] + box["height"] - 5
    page.mouse.move(left, top)
    page.mouse.down()
    for corner in ((right, top), (right, bottom), (left, bottom), (left, top)):
        page.mouse.move(*corner, steps=3)
    start = time.monotonic()
    page.mouse.up()
    page.get_by_role("button", name="Move to front of queue").wait_for()
    lasso_seconds = time.monotonic() - start
    selected = page.locator(".st-key-card-map-side .winnow-figure strong").inner_text()
    return {
        "drawn": drawn,
        "draw_seconds": round(draw_seconds, 1),
        "lasso_seconds": round(lasso_seconds, 1),
        "selected": int(selected.replace(",", "")),
        "largest_message": max(sent),
        "disconnects": sum(closed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=60_000)
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="winnow-map-"))
    server = Server(home)
    try:
        with Store.open(home=home) as store, sync_playwright() as playwright:
            project = fill(store, arguments.items)
            server.start()
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            context.set_default_timeout(300_000)
            ticket = tickets.issue(tickets.signing_key(home), annotator_named(store, "Ana").id, 3600)
            context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": server.url}])
            results = measure(context.new_page(), server, project)
            browser.close()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps({"items": arguments.items, **results}))


if __name__ == "__main__":
    main()
