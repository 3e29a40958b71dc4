"""The map in a real browser: colored, played, clicked, drawn on. What is checked is what plotly draws and what is
stored, item by item."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.charts import LIGHT, class_colors
from app.parcels import open_array
from storage import comparisons
from storage.annotators import annotator_named
from storage.classes import style_class
from storage.pool import Pool
from storage.rounds import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import COLUMNS, finish_round
from tests.browser.conftest import at_rest

DRAWN = """() => {
  const plot = document.querySelector('.js-plotly-plot'), box = plot.getBoundingClientRect();
  const { xaxis, yaxis } = plot._fullLayout, found = {};
  for (const trace of plot._fullData) {
    const { color, symbol } = trace.marker;
    found[trace.name] = [...trace.customdata].map((id, k) => ({
      id: Number(id),
      color: Array.isArray(color) ? color[k] : color,
      symbol,
      x: box.x + xaxis._offset + xaxis.d2p(trace.x[k]),
      y: box.y + yaxis._offset + yaxis.d2p(trace.y[k]),
    }));
  }
  return found;
}"""


@pytest.fixture
def mapped(desks, audio, store):
    """Two rounds on one map; the second has shadow picks of another strategy. Item 3 was picked first and labeled."""
    desk, items = desks(audio), [item.id for item in Pool(store, audio.id).items()]
    finish_round(store, audio, [3, 4, 5])
    desk.pool.label(items[3], desk.classes[3].id, annotator=desk.person.id)
    desk.pool.label(items[9], desk.classes[0].id, annotator=annotator_named(store, "Bea").id)
    second = finish_round(store, audio, [20, 21, 22, 23])
    asked = comparisons.request(store, second.id, ["badge"])
    shadow = dataclasses.replace(asked, status="finished", picks={"badge": items[10:14]}, overlap={"badge": 0})
    assert comparisons.answer(store, shadow)
    page = desk.tab("map")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3", "4"])
    return desk, page, items


def drawn(page: Page) -> dict[str, list[dict[str, Any]]]:
    """trace -> its points, from the plot itself: item, color, symbol, place in pixels."""
    found: dict[str, list[dict[str, Any]]] = page.evaluate(DRAWN)
    return found


def colors(page: Page, coloring: str, told: str) -> dict[int, str]:
    """Choose a coloring; gives item -> color once the legend says `told`."""
    page.get_by_role("radio", name=coloring, exact=True).click()
    expect(page.locator(".winnow-legend")).to_contain_text(told)
    at_rest(page)
    traces = drawn(page)
    return {point["id"]: point["color"] for name in ("not labeled", "labeled") for point in traces[name]}


def spot(page: Page, item_id: int) -> tuple[float, float]:
    """Where an item is drawn, in pixels of the page."""
    points = [point for trace in drawn(page).values() for point in trace if point["id"] == item_id]
    return points[0]["x"], points[0]["y"]


def lasso(page: Page, first: int, last: int) -> None:
    """Draw around the items of one row of the grid from `first` to `last`."""
    (left, y), (right, _) = spot(page, first), spot(page, last)
    edge = 12
    corners = [(left - edge, y - edge), (right + edge, y - edge), (right + edge, y + edge), (left - edge, y + edge)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in (*corners[1:], corners[0]):
        page.mouse.move(*corner, steps=4)
    page.mouse.up()


def test_colors_say_what_is_guessed_labeled_sure_asked_for_and_by_whom(mapped, store):
    desk, page, items = mapped
    palette, guess = class_colors(10), {item: k % 10 for k, item in enumerate(items)}
    found = colors(page, "Prediction", "nine")
    said = guess | {items[3]: 3, items[9]: 0}
    assert found == {item: palette[k] for item, k in said.items()}
    assert {point["id"]: point["symbol"] for point in drawn(page)["labeled"]} == {
        items[3]: "triangle-up",
        items[9]: "triangle-up",
    }
    found = colors(page, "Label", "nine")
    assert found == dict.fromkeys(items, LIGHT.line) | {items[3]: palette[3], items[9]: palette[0]}
    sure = set(colors(page, "Confidence", "darker: surer").values())
    assert len(sure) == 1 and sure.isdisjoint(palette)
    asked = colors(page, "Round", "darker: labeled later")
    assert {asked[item] for item in items if item not in (items[3], items[9])} == {LIGHT.line}
    assert asked[items[3]] == LIGHT.accent and asked[items[9]] not in (LIGHT.line, LIGHT.accent)
    by = colors(page, "Annotator", "Bea")
    assert page.locator(".winnow-legend").inner_text().count("●") == 2
    assert {by[items[3]], by[items[9]]} == set(palette[:2])

    # The project's own colors, as soon as they change.
    style_class(store, desk.project.id, desk.classes[3].id, color="#123456")
    assert colors(page, "Label", "nine")[items[3]] == "#123456"
    assert desk.outside == []


def test_points_keep_their_place_through_the_rounds_and_picks_of_others_lie_over(mapped):
    desk, page, items = mapped
    assert [point["id"] for point in drawn(page)["picked"]] == items[20:24]
    before = {point["id"]: (point["x"], point["y"]) for point in drawn(page)["not labeled"]}
    page.get_by_role("button", name="beside: BADGE").click()
    expect(page.locator(".scatterlayer .trace")).to_have_count(4)
    shadow = drawn(page)["badge"]
    assert [point["id"] for point in shadow] == items[10:14]
    assert {point["symbol"] for point in shadow} == {"square-open"}
    page.get_by_role("button", name="beside: BADGE").click()
    expect(page.locator(".scatterlayer .trace")).to_have_count(3)

    slider = page.get_by_role("slider", name="Round")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3"])
    traces = drawn(page)
    assert [point["id"] for point in traces["picked"]] == items[3:6]
    for point in traces["not labeled"]:
        assert (point["x"], point["y"]) == pytest.approx(before[point["id"]], abs=1.5)
    page.get_by_role("button", name="Play through the rounds").click()
    expect(page.locator(".textpoint text")).to_have_count(4)
    expect(page.get_by_role("button", name="Play through the rounds")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "2")
    assert desk.outside == []


def test_a_point_opens_its_item_and_a_label_given_there_is_on_the_map_at_once(mapped):
    """Picks, labels and colors are right after any change: no stale picture."""
    desk, page, items = mapped
    page.mouse.move(*spot(page, items[21]))
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("guess one, 80 %")
    page.mouse.click(*spot(page, items[21]))
    side = page.locator(".st-key-card-map-side")
    expect(side.get_by_text("Pick 2")).to_be_visible()
    expect(side.get_by_text(desk.pool.item(items[21]).name)).to_be_visible()
    at_rest(page)
    assert [point["id"] for point in drawn(page)["open"]] == [items[21]]
    faded = "points => points.filter((one) => Number(one.style.opacity || 1) < 0.8).length"
    assert page.locator(".scatterlayer .point").evaluate_all(faded) == 0
    assert side.locator("img.winnow-thumb").evaluate("image => image.decode().then(() => image.naturalWidth)") == 900
    assert f"/{items[21]}/" in (side.locator("audio").get_attribute("src") or "")
    page.wait_for_function("() => document.querySelector('.st-key-card-map-side audio').duration > 0.6")
    expect(side.locator(".winnow-bar").first).to_contain_text(re.compile(r"one\s*80 %"))
    expect(side).to_contain_text("41")
    side.get_by_label("Label", exact=True).click()
    page.get_by_role("option", name="seven").click()
    expect(side.get_by_text("Labeled seven")).to_be_visible()
    assert desk.pool.item(items[21]).class_id == desk.classes[7].id
    assert [(event.item_id, event.class_id) for event in desk.events()][-1] == (items[21], desk.classes[7].id)
    expect(page.locator(".scatterlayer .trace").nth(1).locator(".point")).to_have_count(3)
    labeled = {point["id"]: point["color"] for point in drawn(page)["labeled"]}
    assert labeled[items[21]] == class_colors(10)[7]
    desk.pool.undo(annotator=desk.person.id)
    page.get_by_role("radio", name="Label", exact=True).click()
    expect(side.get_by_text("Labeled seven")).to_have_count(0)
    expect(page.locator(".scatterlayer .trace").nth(1).locator(".point")).to_have_count(2)
    assert {point["id"] for point in drawn(page)["labeled"]} == {items[3], items[9]}


def test_an_area_drawn_with_the_mouse_goes_to_the_queue_the_next_batch_and_the_grid(mapped, store):
    """What is inside is decided on the server, from the drawn line."""
    desk, page, items = mapped
    open_items = [items[COLUMNS + 1], items[COLUMNS + 2]]  # the row also holds items 6 to 11; 9 is labeled
    page.get_by_text("Draw areas", exact=True).click()
    expect(page.get_by_role("switch", name="Draw areas")).to_be_checked()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.dragmode === 'lasso'")
    at_rest(page)
    lasso(page, open_items[0], items[9])
    side = page.locator(".st-key-card-map-side")
    expect(side).to_contain_text("1 of them labeled")
    expect(side.locator(".winnow-figure strong")).to_have_text("3")
    expect(page.locator(".shapelayer path")).to_have_count(1)

    side.get_by_role("button", name="Put first in the queue").click()
    expect(page.get_by_text("2 items are first in the queue now.")).to_be_visible()
    waiting = [item.id for item in desk.pool.next_to_label(annotator=desk.person.id, holder="test", limit=2)]
    assert waiting == open_items
    desk.pool.release(annotator=desk.person.id, holder="test")

    side.get_by_role("button", name="Spend half the next batch here").click()
    expect(page.get_by_text("Round 3 is on its way.")).to_be_visible()
    row = RoundLog(store, desk.project.id).latest()
    assert row is not None and row.constraint is not None and row.constraint["share"] == 0.5
    assert open_array(store.artifacts, row.constraint["region"]).tolist() == open_items

    side.get_by_role("button", name="Label these in the grid").click()
    page.wait_for_url("**/grid?**")
    expect(page.locator(".tile")).to_have_count(2)
    assert page.locator(".tile").evaluate_all("all => all.map((one) => Number(one.dataset.itemId))") == open_items
    page.keyboard.press("Control+a")
    page.keyboard.press(desk.classes[5].key)
    page.wait_for_selector(".saved[data-state='saved']")
    assert [desk.pool.item(item).class_id for item in open_items] == [desk.classes[5].id] * 2
    assert desk.outside == []


def test_before_the_first_round_the_map_says_what_to_do(desks, store):
    desk = desks(sample_store.image_project(store, "No round yet", 2))
    page = desk.tab("map")
    expect(page.get_by_text("No map yet")).to_be_visible()
    page.get_by_role("button", name="Go to Learn").click()
    page.wait_for_url("**/learn?**")
