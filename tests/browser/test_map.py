"""The map in a real browser: colored, played, clicked, drawn on. What is checked is what plotly draws and what is
stored, item by item."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from app.rounds.stage_outputs import open_array
from app.views.figures.charts import LIGHT, class_colors
from storage.database.schema import Item
from storage.labeling.pool import Pool
from storage.labeling.projections import shuffle_of
from storage.projects.annotators import annotator_named
from storage.projects.classes import style_class
from storage.rounds import comparisons
from storage.rounds.log import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import COLUMNS, finish_round
from tests.browser.conftest import at_rest, eventually, saved

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
def mapped(open_browser, audio, store):
    """Two rounds on one map; the second has shadow picks of another strategy. Item 3 was picked first and labeled."""
    user, items = open_browser(audio), [item.id for item in Pool(store, audio.id).items()]
    finish_round(store, audio, [3, 4, 5])
    user.pool.label(items[3], user.classes[3].id, annotator=user.person.id)
    user.pool.label(items[9], user.classes[0].id, annotator=annotator_named(store, "Bea").id)
    second = finish_round(store, audio, [20, 21, 22, 23])
    asked = comparisons.request(store, second.id, ["badge"])
    shadow = dataclasses.replace(asked, status="finished", picks={"badge": items[10:14]}, overlap={"badge": 0})
    assert comparisons.store_result(store, shadow)
    page = user.tab("map")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3", "4"])
    at_rest(page)
    return user, page, items


def drawn(page: Page) -> dict[str, list[dict[str, Any]]]:
    """trace -> its points, from the plot itself: item, color, symbol, place in pixels."""
    found: dict[str, list[dict[str, Any]]] = page.evaluate(DRAWN)
    return found


def colors(page: Page) -> dict[int, str]:
    """item -> its current color."""
    traces = drawn(page)
    return {point["id"]: point["color"] for name in ("not labeled", "labeled") for point in traces[name]}


def choose_coloring(page: Page, coloring: str, legend: str) -> None:
    """Choose a coloring and wait for the title `legend`. Two colorings may share it, so tests also wait for the
    colors."""
    page.get_by_role("radio", name=coloring, exact=True).click()
    expect(page.locator(".winnow-legend")).to_contain_text(legend)


def places(page: Page, *traces: str) -> dict[tuple[int, str], float]:
    """(item, axis) -> pixel of the page, for all points of `traces`, or of all traces."""
    found = drawn(page)
    points = [point for name in traces or found for point in found[name]]
    return {(point["id"], axis): point[axis] for point in points for axis in ("x", "y")}


def settled(page: Page, *traces: str) -> dict[tuple[int, str], float]:
    """The positions of the points once the plot has its size: it is drawn again when its column gets its width."""
    at_rest(page)
    page.evaluate("() => document.fonts.ready.then(() => 0)")
    before = places(page, *traces)
    while True:
        page.wait_for_timeout(150)
        if (now := places(page, *traces)) == before:
            return now
        before = now


def spot(page: Page, item_id: int) -> tuple[float, float]:
    """The position of an item, in pixels of the page."""
    found = settled(page)
    return found[item_id, "x"], found[item_id, "y"]


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


def test_colors_show_predictions_labels_confidence_rounds_and_annotators(mapped, store):
    user, page, items = mapped
    palette, guess = class_colors(10), {item: k % 10 for k, item in enumerate(items)}
    expect(page.get_by_role("radio", name="Prediction", exact=True)).to_be_checked()
    expect(page.locator(".winnow-legend")).to_contain_text("nine")
    said = guess | {items[3]: 3, items[9]: 0}
    eventually(page, lambda: colors(page), {item: palette[k] for item, k in said.items()})
    assert {point["id"]: point["symbol"] for point in drawn(page)["labeled"]} == {
        items[3]: "triangle-up",
        items[9]: "triangle-up",
    }
    choose_coloring(page, "Label", "nine")
    given = dict.fromkeys(items, LIGHT.line) | {items[3]: palette[3], items[9]: palette[0]}
    eventually(page, lambda: colors(page), given)
    choose_coloring(page, "Confidence", "darker: more confident")
    eventually(page, lambda: len(set(colors(page).values())), 2)
    assert set(colors(page).values()).isdisjoint(palette)
    pale = {item for item, color in colors(page).items() if color == LIGHT.line}
    assert pale == {items[3], items[9]}  # the model has seen their labels: no prediction
    choose_coloring(page, "Round", "darker: labeled later")
    eventually(page, lambda: colors(page)[items[3]], LIGHT.accent)
    asked = colors(page)
    assert {asked[item] for item in items if item not in (items[3], items[9])} == {LIGHT.line}
    assert asked[items[9]] not in (LIGHT.line, LIGHT.accent)
    choose_coloring(page, "Annotator", "Bea")
    expect(page.locator(".winnow-legend [aria-hidden]")).to_have_text(["●", "●"])
    eventually(page, lambda: {colors(page)[item] for item in (items[3], items[9])}, set(palette[:2]))

    # The project's own colors, as soon as they change.
    style_class(store, user.project.id, user.classes[3].id, color="#123456")
    choose_coloring(page, "Label", "nine")
    eventually(page, lambda: colors(page)[items[3]], "#123456")
    assert user.outside == []


def test_points_keep_their_positions_across_rounds_and_picks_of_other_strategies_are_above_them(mapped):
    user, page, items = mapped
    assert [point["id"] for point in drawn(page)["picked"]] == items[20:24]
    before = settled(page, "not labeled", "labeled")
    page.get_by_role("button", name="Compare: BADGE").click()
    expect(page.locator(".scatterlayer .trace")).to_have_count(4)
    shadow = drawn(page)["badge"]
    assert [point["id"] for point in shadow] == items[10:14]
    assert {point["symbol"] for point in shadow} == {"square-open"}
    page.get_by_role("button", name="Compare: BADGE").click()
    expect(page.locator(".scatterlayer .trace")).to_have_count(3)

    slider = page.get_by_role("slider", name="Round")
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3"])
    eventually(page, lambda: [point["id"] for point in drawn(page)["picked"]], items[3:6])
    eventually(page, lambda: places(page, "not labeled", "labeled"), pytest.approx(before, abs=1.5))
    page.get_by_role("button", name="Animate rounds").click()
    expect(page.locator(".textpoint text")).to_have_count(4)
    expect(page.get_by_role("button", name="Animate rounds")).to_be_visible()
    expect(slider).to_have_attribute("aria-valuetext", "2")
    assert user.outside == []


def test_a_point_opens_its_item_and_a_label_given_there_is_on_the_map_at_once(mapped):
    """Picks, labels and colors are right after any change."""
    user, page, items = mapped
    page.mouse.move(*spot(page, items[21]))
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("predicted one, 80 %")
    page.mouse.click(*spot(page, items[21]))
    side = page.locator(".st-key-card-map-side")
    expect(side.get_by_text("Pick 2")).to_be_visible()
    expect(side.get_by_text(user.pool.item(items[21]).name)).to_be_visible()
    eventually(page, lambda: [point["id"] for point in drawn(page)["open"]], [items[21]])
    at_rest(page)
    faded = "points => points.filter((one) => Number(one.style.opacity || 1) < 0.8).length"
    eventually(page, lambda: page.locator(".scatterlayer .point").evaluate_all(faded), 0)
    wide = "image => image.decode().then(() => image.naturalWidth)"
    eventually(page, lambda: side.locator("img.winnow-thumb").evaluate(wide), 900)
    expect(side.locator("audio")).to_have_attribute("src", re.compile(f"/{items[21]}/"))
    page.wait_for_function("() => document.querySelector('.st-key-card-map-side audio').duration > 0.6")
    expect(side.locator(".winnow-bar").first).to_contain_text(re.compile(r"one\s*80 %"))
    expect(side).to_contain_text("41")
    side.get_by_label("Label", exact=True).click()
    page.get_by_role("option", name="seven").click()
    expect(side.get_by_text("Labeled seven")).to_be_visible()
    assert user.pool.item(items[21]).class_id == user.classes[7].id
    assert [(event.item_id, event.class_id) for event in user.events()][-1] == (items[21], user.classes[7].id)
    expect(page.locator(".scatterlayer .trace").nth(1).locator(".point")).to_have_count(3)
    eventually(page, lambda: {point["id"] for point in drawn(page)["labeled"]}, {items[3], items[9], items[21]})
    assert colors(page)[items[21]] == class_colors(10)[7]
    user.pool.undo(annotator=user.person.id)
    page.get_by_role("radio", name="Label", exact=True).click()
    expect(side.get_by_text("Labeled seven")).to_have_count(0)
    expect(page.locator(".scatterlayer .trace").nth(1).locator(".point")).to_have_count(2)
    eventually(page, lambda: {point["id"] for point in drawn(page)["labeled"]}, {items[3], items[9]})


def test_an_area_drawn_with_the_mouse_goes_to_the_queue_the_next_batch_and_the_grid(mapped, store):
    """The server computes the items in the area from the drawn line."""
    user, page, items = mapped
    open_items = [items[COLUMNS + 1], items[COLUMNS + 2]]  # the row also holds items 6 to 11; 9 is labeled
    page.get_by_text("Draw areas", exact=True).click()
    expect(page.get_by_role("switch", name="Draw areas")).to_be_checked()
    page.wait_for_function("() => document.querySelector('.js-plotly-plot')?._fullLayout?.dragmode === 'lasso'")
    at_rest(page)
    lasso(page, open_items[0], items[9])
    side = page.locator(".st-key-card-map-side")
    expect(side).to_contain_text("1 labeled")
    expect(side.locator(".winnow-figure strong")).to_have_text("3")
    expect(page.locator(".shapelayer path")).to_have_count(1)

    side.get_by_role("button", name="Move to front of queue").click()
    expect(page.get_by_text("2 items moved to the front of the queue.")).to_be_visible()
    waiting = [item.id for item in user.pool.next_to_label(annotator=user.person.id, holder="test", limit=2)]
    assert waiting == open_items
    user.pool.release(annotator=user.person.id, holder="test")

    side.get_by_role("button", name="Pick half of the next batch here").click()
    expect(page.get_by_text("Round 3 was requested.")).to_be_visible()
    row = RoundLog(store, user.project.id).latest()
    assert row is not None and row.constraint is not None and row.constraint["share"] == 0.5
    assert open_array(store.artifacts, row.constraint["region"]).tolist() == open_items

    side.get_by_role("button", name="Label these in the grid").click()
    page.wait_for_url("**/grid?**")
    expect(page.locator(".tile")).to_have_count(2)
    shown = "all => all.map((one) => Number(one.dataset.itemId))"  # of equal confidence: in the order of the queue
    shuffled = sorted(open_items, key=lambda one: shuffle_of(user.pool.item(one).sha256))
    eventually(page, lambda: page.locator(".tile").evaluate_all(shown), shuffled)
    page.keyboard.press("Control+a")
    page.keyboard.press(user.classes[5].key)
    saved(page)
    assert [user.pool.item(item).class_id for item in open_items] == [user.classes[5].id] * 2
    assert user.outside == []


def test_before_the_first_round_the_map_says_what_to_do(open_browser, store):
    user = open_browser(sample_store.image_project(store, "No round yet", 2))
    page = user.tab("map")
    expect(page.get_by_text("No map yet")).to_be_visible()
    page.get_by_role("button", name="Go to Train").click()
    page.wait_for_url("**/train?**")


def test_a_point_shows_its_picture_and_is_found_by_search_and_keyboard(mapped, store):
    user, page, items = mapped
    # The pointer on a point: its spectrogram.
    page.mouse.move(*spot(page, items[20]))
    card = page.locator(".winnow-hover")
    expect(card).to_be_visible()
    expect(card.locator("img")).to_have_attribute("src", f"/api/preview/{user.project.id}/{items[20]}")
    assert card.locator("img").evaluate("(one) => one.naturalWidth") > 0
    expect(page.locator(".hoverlayer")).to_contain_text(user.pool.item(items[20]).name)
    page.mouse.move(5, 5)
    expect(card).to_be_hidden()

    # The list beside the map: picks in order, opened by arrow keys.
    listed = page.get_by_role("radiogroup", name="Picks of round 2")
    expect(listed.get_by_role("radio")).to_have_count(4)
    listed.get_by_role("radio").first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".st-key-card-map-side h2")).to_have_text([re.compile("^Pick ")])

    # Search by number, also for an item that is no pick.
    search = page.get_by_role("textbox", name="Find an item")
    search.fill(f"Item {items[0]}")
    search.press("Enter")
    found = page.get_by_role("radiogroup", name=re.compile("Found"))
    expect(found.get_by_role("radio")).not_to_have_count(0)
    found.locator("label").first.click()
    expect(page.locator(".st-key-card-map-side h2")).to_have_text(["Item"])
    search.fill("there is no such item")
    search.press("Enter")
    expect(page.get_by_text("No item of this round has this name or number.")).to_be_visible()


def test_a_point_of_the_map_and_a_card_open_the_grid_by_similarity(mapped, store):
    """The grid names the item, without the file name if that reveals the class."""
    user, page, items = mapped
    with store.write() as connection:
        connection.execute(update(Item).where(Item.id == items[20]).values(name="take 3, seven.wav"))
    page.mouse.click(*spot(page, items[20]))
    expect(page.get_by_role("button", name="More like this")).to_be_visible()
    at_rest(page)
    page.get_by_role("button", name="More like this").click()
    expect(page.locator(".similar .words")).to_have_text(f"Most similar to Item {items[20]} first.")
    page.locator(".similar button").click()
    expect(page.locator(".similar")).to_be_hidden()

    card = user.label_tab()
    card.get_by_role("button", name="More like this").click()
    expect(card.locator(".similar .words")).to_have_text(re.compile("^Most similar to .+ first.$"))
    expect(card.locator(".tile").first).to_be_visible()
