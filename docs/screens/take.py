"""Takes the pictures in this folder: the sample projects, labeled with their hidden labels, after real rounds.

    python -m docs.screens.take --home DIR [--rounds 3] [--only train --only map_dark]

DIR is prepared on the first run (labels, rounds by a worker, a comparison with other strategies: some minutes on two
cores) and reused afterwards. Rounds are short, so accuracy is below that of the laptop preset. Figures are measured;
only the annotators are invented.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from sqlalchemy import select

from app.rounds import requests as round_requests
from app.web import tickets
from app.web.access import SESSION_COOKIE
from app.web.server_command import ROOT, environment
from core.config import RoundConfig
from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow, get_project, update_project
from storage.projects.sample_projects import HANDWRITTEN, SPOKEN, load_sample_projects
from storage.rounds.log import RoundLog
from tests.browser.conftest import CHROMIUM, CHROMIUM_FLAGS, Server, at_rest, wait_for_card

FOLDER = Path(__file__).parent
BATCH = 10
MOST_BYTES = 140_000
TIMEOUT_SECONDS = 3_600.0
STEPS, WARM_STEPS = 600, 300  # of training


def prepare(store: Store, name: str, n_rounds: int) -> None:
    """Bring a sample project to `n_rounds` finished rounds, each batch labeled before the next; the last one waits."""
    project = get_project(store, name)
    settings = dataclasses.replace(project.settings, preset="laptop", batch_size=BATCH, automatic_rounds=False)
    update_project(store, project.id, settings=settings)
    log, pool, ana = RoundLog(store, project.id), Pool(store, project.id), annotator_named(store, "Ana Koller").id
    while (newest := log.latest("finished")) is None or newest.number < n_rounds:
        if pool.counts().labeled < BATCH * (1 + (newest.number if newest else 0)):
            label_hidden(store, project, [item.id for item in pool.next_to_label(annotator=ana, limit=BATCH)], ana)
            pool.release(annotator=ana)
        row = round_requests.request_round(
            store, project.id, by=ana, config=short(round_requests.round_config(settings, project.kind))
        )
        wait(lambda row=row: not log.get(row.id).unfinished)
        assert log.get(row.id).status == "finished", log.get(row.id).error
    if round_requests.comparison(store, newest.id) is None:
        round_requests.request_comparison(store, project.id, newest.id, ["badge", "uniform"])
    wait(lambda: round_requests.comparison(store, newest.id).status != "requested")
    if name == SPOKEN:
        second_annotator(store, project)


def short(config: RoundConfig) -> RoundConfig:
    training = dataclasses.replace(config.training, steps=STEPS, warm_steps=WARM_STEPS)
    return dataclasses.replace(config, training=training)


def label_hidden(store: Store, project: ProjectRow, item_ids: list[int], annotator: int) -> None:
    with store.read() as connection:
        query = select(Item.id, Item.truth_class_id).where(Item.id.in_(item_ids))
        truth = {found.id: found.truth_class_id for found in connection.execute(query)}
    for k, item_id in enumerate(item_ids):
        seconds = 1.6 + 0.1 * (k % 9)
        Pool(store, project.id).label(item_id, truth[item_id], annotator=annotator, seconds=seconds)


def second_annotator(store: Store, project: ProjectRow) -> None:
    """A second annotator labels most of the same items and disagrees on a few."""
    pool, known = Pool(store, project.id), list_classes(store, project.id)
    ben = annotator_named(store, "Ben Okafor").id
    ana = annotator_named(store, "Ana Koller").id
    labeled = pool.items_by_id([event.item_id for event in pool.recent(ana, 100)][: 3 * BATCH - 4])
    if len(pool.recent(ben, 100)) >= len(labeled):
        return
    places = {row.id: place for place, row in enumerate(known)}
    for k, item in enumerate(labeled):
        other = known[(places[item.class_id] + 4) % len(known)].id if k % 8 == 5 else item.class_id
        pool.label(item.id, other, annotator=ben, seconds=2.4)


def wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < end, "no worker answered"
        time.sleep(1)


@contextmanager
def working(home: Path) -> Iterator[None]:
    """A worker on this home, for the length of the block."""
    with (home / "worker.log").open("ab") as log:
        command, values = [sys.executable, "-m", "app", "worker"], environment("127.0.0.1", 1, home)
        values |= {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=values, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def open_screen(page: Page, server: Server, project: ProjectRow, screen: str, ready: str) -> None:
    page.goto(f"{server.url}/{screen}?project={project.id}", wait_until="domcontentloaded")
    page.wait_for_selector(ready)
    at_rest(page)
    page.wait_for_function("() => !document.querySelector('[data-testid=stSkeleton]')")  # widgets load one by one
    page.wait_for_timeout(1_500)  # charts grow in


def show_label(page: Page, server: Server, project: ProjectRow) -> None:
    open_screen(page, server, project, "", ".screen[data-view='card'] .frame img")
    wait_for_card(page)


def show_grid(page: Page, server: Server, project: ProjectRow) -> None:
    open_screen(page, server, project, "grid", ".tile")
    page.locator(".tile").nth(2).click()
    page.locator(".tile").nth(5).click(modifiers=["Shift"])


def show_train(page: Page, server: Server, project: ProjectRow) -> None:
    open_screen(page, server, project, "train", ".st-key-confusion .heatmaplayer")


def show_projects(page: Page, server: Server, project: ProjectRow) -> None:
    page.goto(f"{server.url}/projects", wait_until="domcontentloaded")
    page.wait_for_selector(".winnow-project-name")
    at_rest(page)


def show_compare(page: Page, server: Server, project: ProjectRow) -> None:
    """The card that compares strategies, for the newest round."""
    open_screen(page, server, project, "train", ".st-key-card-rounds")
    page.locator(".st-key-card-rounds").get_by_role("button", name="Compare", exact=True).first.click()
    page.wait_for_selector(".winnow-picks img")
    at_rest(page)
    page.wait_for_timeout(1_500)
    page.mouse.move(5, 5)
    page.locator(".st-key-card-comparison").evaluate("(card) => card.scrollIntoView({ block: 'start' })")


def show_map(page: Page, server: Server, project: ProjectRow) -> None:
    """An item is open: one of the batch, compared with the picks of another strategy."""
    open_screen(page, server, project, "map", ".textpoint text")
    page.get_by_role("button", name="Compare: BADGE").click()
    page.wait_for_selector(".scatterlayer .trace:nth-child(4)")
    page.mouse.click(*page.evaluate(PICK))
    page.wait_for_selector(".winnow-bar")
    at_rest(page)
    page.mouse.move(5, 400)


def show_area(page: Page, server: Server, project: ProjectRow) -> None:
    """An area is drawn around the items near the first pick."""
    open_screen(page, server, project, "map", ".textpoint text")
    page.get_by_text("Draw areas", exact=True).click()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.dragmode === 'lasso'")
    at_rest(page)
    x, y = page.evaluate(PICK)
    turn = [2 * math.pi * k / 40 for k in range(41)]
    page.mouse.move(x + 70, y)
    page.mouse.down()
    for angle in turn[1:]:
        page.mouse.move(x + 70 * math.cos(angle), y + 56 * math.sin(angle))
    page.mouse.up()
    page.get_by_role("button", name="Move to front of queue").wait_for()
    at_rest(page)
    page.wait_for_function("() => !document.querySelector('[data-stale=true]')")  # what is drawn anew is faded
    page.mouse.move(5, 400)


def show_plain(screen: str, ready: str) -> Callable[[Page, Server, ProjectRow], None]:
    return lambda page, server, project: open_screen(page, server, project, screen, ready)


# Where the plot draws the pick that stands apart most from the others and from its edges, in pixels.
PICK = """() => {
  const plot = document.querySelector('.js-plotly-plot'), box = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout, picked = plot._fullData.find((trace) => trace.name === 'picked');
  const at = [...picked.x].map((x, k) => [xaxis.d2p(x) + xaxis._offset, yaxis.d2p(picked.y[k]) + yaxis._offset]);
  const edge = (x, y) => (Math.min(x, y, box.width - x, box.height - y) > 80 ? 1e9 : 0);
  const room = ([x, y], k) => Math.min(...at.map(([u, v], j) => (j === k ? edge(x, y) : Math.hypot(x - u, y - v))));
  const [x, y] = at[at.map(room).reduce((best, far, k, all) => (far > all[best] ? k : best), 0)];
  return [x + box.x, y + box.y];
}"""
PICTURES: dict[str, tuple[str, Callable[[Page, Server, ProjectRow], None]]] = {
    "projects": (SPOKEN, show_projects),
    "label": (SPOKEN, show_label),
    "label_dark": (SPOKEN, show_label),
    "grid": (HANDWRITTEN, show_grid),
    "train": (SPOKEN, show_train),
    "train_dark": (SPOKEN, show_train),
    "compare": (HANDWRITTEN, show_compare),
    "map": (HANDWRITTEN, show_map),
    "map_dark": (HANDWRITTEN, show_area),
    "data": (SPOKEN, show_plain("data", ".st-key-card-project [data-testid='stFormSubmitButton'] button")),
    "export": (SPOKEN, show_plain("export", ".st-key-card-carries")),
    "review": (SPOKEN, show_plain("review", ".st-key-card-people")),
}


def take(server: Server, store: Store, names: list[str]) -> None:
    ana = annotator_named(store, "Ana Koller").id
    ticket = tickets.issue(tickets.signing_key(server.home), ana, 3600)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        for name in names:
            scheme = "dark" if name.endswith("_dark") else "light"
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            context.set_default_timeout(120_000)
            context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": server.url}])
            page = context.new_page()
            project, show = PICTURES[name]
            show(page, server, get_project(store, project))
            keep(page.screenshot(), FOLDER / f"{name}.png")
            context.close()
        browser.close()


def keep(png: bytes, path: Path) -> None:
    """As it is where that is small; else with a palette."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(PICTURES))
    arguments = parser.parse_args()
    arguments.home.mkdir(parents=True, exist_ok=True)
    with Store.open(home=arguments.home) as store:
        load_sample_projects(store)
        with working(arguments.home):
            for name in (SPOKEN, HANDWRITTEN):
                prepare(store, name, arguments.rounds)
        server = Server(arguments.home).start()
        try:
            take(server, store, arguments.only or list(PICTURES))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
