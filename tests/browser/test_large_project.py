"""Map and Grid of a million items in a real browser: what is drawn, found, hovered, selected, and how much is loaded.

The expected content of the pages is computed with numpy from the formulas of `large_project`. `benchmarks/` measures
times.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Page, Request, Response, expect

from storage.database.store import Store
from storage.projects.annotators import annotator_named
from storage.projects.projects import ProjectRow
from tests.app import sample_store
from tests.browser import large_project as large
from tests.browser.conftest import SLOW, Server, at_rest, eventually, sign_in
from tests.browser.test_grid import ids_shown

PAGE = 60  # tiles that are loaded at once
MOST_BYTES = 100_000  # of a page of tiles
# The traces of the plot: name -> kind and items; of the density, cells and their values.
DRAWN = """() => Object.fromEntries(document.querySelector('.js-plotly-plot')._fullData.map((trace) => [
  trace.name,
  trace.type === 'heatmap'
    ? { type: trace.type, x: [...trace.x], y: [...trace.y], z: trace.z.map((row) => [...row]) }
    : { type: trace.type, ids: [...trace.customdata].map(Number) },
]))"""
OPENED = """() => [...document.querySelector('.js-plotly-plot')._fullData.find((one) => one.name === 'open').customdata]
  .map(Number)"""
PIXELS = """(places) => {
  const plot = document.querySelector('.js-plotly-plot'), box = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout;
  return places.map(([x, y]) => [box.x + xaxis._offset + xaxis.d2p(x), box.y + yaxis._offset + yaxis.d2p(y)]);
}"""


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, ProjectRow, Store]]:
    """A separate server, because its memory for a million items would otherwise remain for the tests of other files."""
    home = tmp_path_factory.mktemp("million")
    with Store.open(home=home) as store:
        project = large.fill(store)
        running = Server(home).start()
        yield running, project, store
        running.stop()


@pytest.fixture(scope="module")
def tab(million: tuple[Server, ProjectRow, Store], chromium: Browser) -> Iterator[Page]:
    server, _, store = million
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(SLOW)
    sign_in(context, server, annotator_named(store, "Ana Koller"))
    opened = context.new_page()
    yield opened
    context.close()


def open_map(million: tuple[Server, ProjectRow, Store], page: Page) -> None:
    """Open the map, unless the page already shows it."""
    server, project, _ = million
    if "/map?" not in page.url:
        page.goto(f"{server.url}/map?project={project.id}", wait_until="domcontentloaded")
    page.wait_for_selector(".gl-container canvas")


def answer_for_pictures(page: Page) -> None:
    """The test serves the pictures of tiles, because most items have no file and would count as missing."""
    page.route("**/thumb.png*", lambda route: route.fulfill(body=sample_store.picture(0), content_type="image/png"))


def first_of(wanted: NDArray[np.bool_], values: NDArray[Any], n: int = PAGE) -> list[int]:
    """Ids of the first n of the wanted items by ascending value, then by id."""
    ids, values = large.NUMBERS[wanted], values[wanted]
    if len(ids) > n:
        near = values <= np.partition(values, n - 1)[n - 1]
        ids, values = ids[near], values[near]
    found: list[int] = ids[np.argsort(values, kind="stable")][:n].tolist()
    return found


def has_in_name(part: str) -> NDArray[np.bool_]:
    return np.array([part in f"{number:07d}" for number in large.NAMES.tolist()])


def waiting() -> NDArray[np.bool_]:
    return ~large.remainder(large.SKIPPED, large.TEST, large.LABELED)


def pixels(page: Page, places: NDArray[np.float64]) -> list[tuple[float, float]]:
    """The positions of map coordinates on the page, once the plot has its size."""
    at_rest(page)
    before = None
    while True:
        now = [tuple(one) for one in page.evaluate(PIXELS, places.tolist())]
        if now == before:
            return now
        before = now
        page.wait_for_timeout(150)


@pytest.mark.slow(15)
def test_a_map_of_a_million_items_shows_a_stated_sample_over_the_density_of_all(million, tab):
    page = tab
    open_map(million, page)
    stated = "10,000 points over the density of all · 1,000,000 items · placed by the model · round 1"
    expect(page.get_by_text(stated)).to_be_visible()
    at_rest(page)
    traces = page.evaluate(DRAWN)
    assert {name: trace["type"] for name, trace in traces.items()} == {
        "density": "heatmap", "not labeled": "scattergl", "labeled": "scattergl", "picked": "scattergl"
    }  # fmt: skip
    points = large.map_points()
    check_density(traces["density"], points)
    others, labeled = np.array(traces["not labeled"]["ids"]), np.array(traces["labeled"]["ids"])
    assert sorted(labeled) == large.NUMBERS[large.remainder(large.LABELED)].tolist()
    assert len(others) + len(labeled) == 10_000 and set(large.PICKS) <= set(others)
    share = np.bincount(large.GROUP[others - 1], minlength=large.GROUPS)[:-1]
    assert share.sum() > 8_900 and np.abs(share - 1_000).max() < 160  # 9,000 at random from nine groups: 28 is usual
    assert traces["picked"]["ids"] == list(large.PICKS)
    check_picture(page)


def check_density(density: dict[str, Any], points: NDArray[np.float32]) -> None:
    """Every item is counted once, in its cell."""
    shown = np.expm1(np.nan_to_num(np.array(density["z"], np.float64)))  # empty cells have no color
    assert round(shown.sum()) == large.N
    edges = []
    for middle in (np.array(density["y"]), np.array(density["x"])):
        half = (middle[1] - middle[0]) / 2
        edges.append(np.append(middle - half, middle[-1] + half))
    counted, *_ = np.histogram2d(points[:, 1], points[:, 0], bins=edges)
    assert np.abs(shown - counted).sum() < 20  # items on the border of two cells


def check_picture(page: Page) -> None:
    """On the screen, every group is darker than the empty areas between groups."""
    middles = large.centers()
    free = middles[:4] + large.APART / 2
    spots = pixels(page, np.vstack([middles, free]))
    screen = Image.open(io.BytesIO(page.screenshot())).convert("L")
    light = [np.mean([screen.getpixel((int(x) + dx, int(y) + dy)) for dx in range(-4, 5) for dy in range(-4, 5)])
             for x, y in spots]  # fmt: skip
    assert max(light[: large.GROUPS]) < min(light[large.GROUPS :]) - 5


@pytest.mark.slow(5)
def test_points_of_a_large_map_are_hovered_opened_searched_and_selected_with_all_items_below_them(million, tab):
    """A file name that reveals a class is hidden, and the name of a class is shown literally."""
    page = tab
    open_map(million, page)
    pick = large.PICKS[1]
    [spot] = pixels(page, np.array([[large.APART, -large.APART]]))
    page.mouse.move(*spot)
    share = round(100 * large.CONFIDENCE[pick - 1])
    said = page.locator(".hoverlayer .hovertext")
    expect(said).to_have_text(f'Item {pick}predicted say "no" & <b>, {share} %')
    card = page.locator(".winnow-hover")
    expect(card).to_be_visible()
    assert card.locator("img").evaluate("(one) => one.naturalWidth") > 0
    page.mouse.click(*spot)
    side = page.locator(".st-key-card-map-side")
    expect(side.locator("h2")).to_have_text(["Pick 2"])
    expect(side.get_by_text(f"Item {pick}", exact=True)).to_be_visible()
    assert large.TELLING not in side.inner_text()  # folded
    eventually(page, lambda: page.evaluate(OPENED), [pick])

    # An item that is no point is found by its name.
    assert large.FAR not in page.evaluate(DRAWN)["not labeled"]["ids"]
    search = page.get_by_role("textbox", name="Find an item")
    search.fill(large.name_of(large.FAR))
    search.press("Enter")
    found = page.get_by_role("radiogroup", name="Found: 1 item")
    found.locator("label").first.click()
    eventually(page, lambda: page.evaluate(OPENED), [large.FAR])
    expect(side.get_by_text(large.name_of(large.FAR))).to_be_visible()

    # An area holds all items below it, not the few that are points.
    inside = large.NUMBERS[large.GROUP == large.GROUPS - 1]
    page.get_by_text("Draw areas", exact=True).click()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.dragmode === 'lasso'")
    draw_around(page, large.centers()[-1])
    expect(side.locator(".winnow-figure strong")).to_have_text([f"{len(inside):,}"])
    assert len(inside) == 500 and np.isin(page.evaluate(DRAWN)["not labeled"]["ids"], inside).sum() < 50
    answer_for_pictures(page)
    side.get_by_role("button", name="Label these in the grid").click()
    page.wait_for_url("**/grid?**")
    expect(page.locator(".total")).to_contain_text("500 pictures")
    listed = first_of(large.GROUP == large.GROUPS - 1, -large.CONFIDENCE)
    eventually(page, lambda: ids_shown(page), listed)


def draw_around(page: Page, middle: NDArray[np.float64]) -> None:
    reach = 0.35 * large.APART
    corners = pixels(page, middle + reach * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]))
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in (*corners[1:], corners[0]):
        page.mouse.move(*corner, steps=4)
    page.mouse.up()


@dataclass
class Traffic:
    """Records the pages of tiles that the browser gets, and the pictures that it requests."""

    pages: list[Response] = field(default_factory=list)
    n_tiles: int = 0
    n_pictures: int = 0

    def answer(self, response: Response) -> None:
        if response.url.endswith("/tiles"):
            self.pages.append(response)

    def ask(self, request: Request) -> None:
        self.n_pictures += "/thumb.png" in request.url

    def taken(self) -> list[list[int]]:
        """The items of each response since the last call. A response is small for any number of matching items."""
        found = [[tile["item_id"] for tile in response.json()["tiles"]] for response in self.pages]
        assert all(len(response.body()) < MOST_BYTES for response in self.pages)
        self.pages.clear()
        self.n_tiles += sum(map(len, found))
        assert self.n_pictures <= self.n_tiles
        return found


@pytest.mark.slow(5)
def test_the_grid_of_a_million_items_is_paged_sorted_filtered_and_searched_one_page_at_a_time(million, tab):
    (server, project, _), page, traffic = million, tab, Traffic()
    page.on("response", traffic.answer)
    page.on("request", traffic.ask)
    answer_for_pictures(page)
    page.goto(f"{server.url}/grid?project={project.id}", wait_until="domcontentloaded")

    def shows(wanted: NDArray[np.bool_], values: NDArray[Any], words: str = "") -> None:
        """The first page of the wanted items by ascending value, and their number, from one request."""
        ids = first_of(wanted, values)
        expect(page.locator(".total")).to_have_text(f"{np.count_nonzero(wanted):,} pictures{words}")
        eventually(page, lambda: ids_shown(page), ids)
        assert traffic.taken() == [ids]

    shows(waiting(), -large.CONFIDENCE, " to label")
    by_confidence = first_of(waiting(), -large.CONFIDENCE, 3 * PAGE)
    for n_pages in (2, 3):
        page.locator(".more").scroll_into_view_if_needed()
        eventually(page, lambda n=n_pages: ids_shown(page), by_confidence[: n_pages * PAGE])
        assert traffic.taken() == [by_confidence[(n_pages - 1) * PAGE : n_pages * PAGE]]

    page.locator(".sort").scroll_into_view_if_needed()
    for order, values in (("unsure", large.CONFIDENCE), ("newest", -large.NUMBERS), ("name", large.NAMES)):
        page.locator(".sort").select_option(order)
        shows(waiting(), values, " to label")
    page.locator(".show select").select_option("all")
    everything = np.ones(large.N, np.bool_)
    shows(everything, large.NAMES)
    page.locator(".filter button", has_text="dog").click()
    predicted = (large.PREDICTED == 1) & ~large.remainder(large.TEST, large.LABELED)
    shows(predicted, large.NAMES)
    page.locator(".search").fill("1234")
    shows(predicted & has_in_name("1234"), large.NAMES)
    page.locator(".toggle").click()
    page.locator(".clear").click()
    shows(everything, large.NAMES)
    labeled = large.remainder(large.LABELED)
    page.locator("[data-field='label_id']").select_option(label="dog")
    shows(labeled & (large.NUMBERS // 1_000 % 3 == 1), large.NAMES)
    page.locator(".clear").click()
    shows(everything, large.NAMES)
    page.locator(".sort").select_option("labeled")
    shows(everything, np.where(labeled, -large.NUMBERS, 0))  # newest label first, then those without one
    page.locator(".marks [value='flagged']").check()
    shows(large.remainder(large.FLAGGED), large.NUMBERS)
    page.locator(".sort").select_option("unsure")
    shows(large.remainder(large.FLAGGED), large.CONFIDENCE)
