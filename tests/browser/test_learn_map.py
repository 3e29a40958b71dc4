"""Learn and Map in a real browser: rounds are set up, watched and judged; the map is played, clicked and drawn on."""

from __future__ import annotations

import dataclasses
import re

import pytest
from playwright.sync_api import Page, expect

from core.types import Progress
from storage import comparisons
from storage.pool import Pool
from storage.projects import create_project, get_project, update_project
from storage.rounds import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import finish_round, place

SLOW = 60_000  # ms
expect.set_options(timeout=SLOW)


def at_rest(page: Page) -> None:
    """The script has run and what it drew is there."""
    page.wait_for_selector(".stApp[data-test-script-state='notRunning']", timeout=SLOW)


def test_a_round_is_set_up_watched_cancelled_and_its_failure_told(desks, audio, store):
    desk = desks(audio)
    page = desk.tab("learn")
    start = page.get_by_role("button", name="Start the round")
    expect(start).to_be_enabled()

    # Settings are stored one by one: what someone else changed meanwhile stays.
    batch = page.get_by_label("Batch", exact=True)
    batch.fill("5")
    batch.press("Enter")
    page.get_by_text("Start the next round by itself").click()
    expect(page.get_by_role("switch")).not_to_be_checked()
    at_rest(page)
    settings = get_project(store, audio.id).settings
    assert (settings.batch_size, settings.automatic_rounds) == (5, False)
    update_project(store, audio.id, settings=dataclasses.replace(settings, seed=7, preset="smoke"))
    page.get_by_label("Strategy", exact=True).click()
    page.get_by_role("option", name="BADGE").click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("7")
    kept = get_project(store, audio.id).settings
    assert (kept.strategy, kept.seed, kept.preset, kept.batch_size) == ("badge", 7, "smoke", 5)

    # A round in the store is what is shown: waiting, then its stages, then that it is stopping.
    start.click()
    expect(page.get_by_text("Waiting for a worker to take it")).to_be_visible()
    log = RoundLog(store, audio.id)
    row = log.latest()
    assert row is not None and row.config.selection.batch_size == 5 and row.config.selection.strategy == "badge"
    log.start(row.id)
    for step in (10, 20, 40):
        log.progress(row.id, Progress("train", step, 80, metrics={"loss": 2.0 - step / 40}))
    expect(page.locator("[aria-current='step']")).to_have_text("Train")
    expect(page.get_by_text(re.compile("Step 40 of 80 · .* left · 0 labels"))).to_be_visible()
    expect(page.locator(".winnow-stage-done")).to_have_text(["✓ Snapshot", "✓ Prepare"])
    expect(page.locator(".st-key-loss-line path.js-line")).to_have_count(1)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Stopping")).to_be_disabled()
    assert log.get(row.id).cancel_requested
    log.fail(row.id, "The loss became <b>infinite</b> at step 41. Lower the learning rate.")
    expect(page.get_by_role("alert")).to_contain_text("Round 1 failed. The loss became <b>infinite</b> at step 41")
    expect(start).to_be_enabled()

    empty = create_project(store, "Nothing to learn from", "audio", ["a", "b"])
    page.goto(f"{desk.server.url}/learn?project={empty.id}")
    expect(start).to_be_disabled()
    assert desk.outside == []


def test_finished_rounds_tell_what_they_bought_and_can_be_opened_replayed_and_compared(desks, audio, store):
    desk = desks(audio)
    first = finish_round(store, audio, [3, 9], accuracy=0.7)
    for item, answer in zip(RoundLog(store, audio.id).picks(first.id), (3, 0), strict=True):
        desk.pool.label(item.item_id, desk.classes[answer].id, annotator=desk.person.id)
    finish_round(store, audio, [4, 5], accuracy=0.72)
    page = desk.tab("learn")
    expect(page.get_by_text("72.0 %, 100 items, 95 % interval")).to_be_visible()
    bought = page.locator(".st-key-card-bought")
    expect(bought).to_contain_text("+2.0")
    expect(bought).to_contain_text("1 of 2")
    expect(page.get_by_text("Most often: nine heard as zero (3)")).to_be_visible()
    ticks = page.locator(".st-key-curve .xtick text")
    expect(ticks).to_have_text(["0", "2"])
    row = page.locator(f".st-key-round-row-{first.id}")
    assert re.sub(r"\s+", " ", row.locator(".winnow-round").inner_text()).startswith(
        "1 Bilevel coreset 0 70.0 % 1 of 2"
    )

    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("bico · finished · 0 labels · seed 0")).to_be_visible()
    name = desk.pool.item(RoundLog(store, audio.id).picks(first.id)[0].item_id).name
    expect(dialog.locator("canvas td", has_text=name).first).to_be_attached()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)

    row.get_by_role("button", name="Compare").click()
    expect(dialog.get_by_text("No label is spent", exact=False).or_(dialog.get_by_text("Strategies"))).to_be_visible()
    dialog.get_by_role("button", name="Compare").click()
    expect(dialog.get_by_text("A worker is on it.")).to_be_visible()
    asked = comparisons.get(store, first.id)
    assert asked is not None and asked.strategies == ("badge", "uniform")
    dialog.get_by_role("button", name="Close").click()
    row.get_by_role("button", name="Replay").click()
    expect(page.get_by_text("Waiting for a worker to take it")).to_be_visible()
    replay = RoundLog(store, audio.id).latest()
    assert replay is not None and replay.replay_of == first.id


@pytest.fixture
def mapped(desks, audio, store):
    """Two rounds on one map; the second has shadow picks of another strategy."""
    finish_round(store, audio, [0, 1, 2])
    second = finish_round(store, audio, [20, 21, 22, 23])
    asked = comparisons.request(store, second.id, ["badge"])
    items = [item.id for item in Pool(store, audio.id).items()]
    shadow = dataclasses.replace(asked, status="finished", picks={"badge": items[10:14]}, overlap={"badge": 0})
    assert comparisons.answer(store, shadow)
    desk = desks(audio)
    page = desk.tab("map")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3", "4"])
    return desk, page, items


def spot(page: Page, k: int) -> tuple[float, float]:
    """Where the k-th item is drawn, in pixels: from the axes of the plot itself."""
    x, y = page.evaluate(
        """([x, y]) => {
          const plot = document.querySelector('.js-plotly-plot'), box = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout;
          return [box.x + xaxis._offset + xaxis.d2p(x), box.y + yaxis._offset + yaxis.d2p(y)];
        }""",
        list(place(k)),
    )
    return x, y


def lasso(page: Page, k: int, n: int) -> None:
    """Draw around the n items of one row of the grid that begin with k."""
    left, y = spot(page, k)
    right, _ = spot(page, k + n - 1)
    edge = 12
    corners = [(left - edge, y - edge), (right + edge, y - edge), (right + edge, y + edge), (left - edge, y + edge)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in (*corners[1:], corners[0]):
        page.mouse.move(*corner, steps=4)
    page.mouse.up()


def test_the_map_is_colored_played_and_laid_over(mapped):
    desk, page, _ = mapped
    legend = page.locator(".winnow-legend")
    expect(legend).to_contain_text("nine")
    page.get_by_role("radio", name="Confidence").click()
    expect(legend).to_contain_text("darker: surer")
    page.get_by_role("radio", name="Annotator").click()
    expect(legend).to_contain_text(desk.person.name)
    expect(page.locator(".scatterlayer .trace")).to_have_count(2)
    page.get_by_role("button", name="beside: BADGE").click()
    expect(page.locator(".scatterlayer .trace")).to_have_count(3)

    slider = page.get_by_role("slider", name="Round")
    before = spot(page, 7)
    slider.focus()
    slider.press("ArrowLeft")
    expect(page.locator(".textpoint text")).to_have_text(["1", "2", "3"])
    assert spot(page, 7) == pytest.approx(before, abs=1.5)
    page.get_by_role("button", name="Play through the rounds").click()
    expect(page.locator(".textpoint text")).to_have_count(4)
    expect(page.get_by_role("button", name="Play through the rounds")).to_be_visible()
    assert desk.outside == []


def test_a_point_opens_its_item_and_a_label_given_there_is_on_the_map_at_once(mapped):
    """Picks, labels and colors are right after any change: no stale picture."""
    desk, page, items = mapped
    page.mouse.move(*spot(page, 21))
    expect(page.locator(".hoverlayer .hovertext")).to_contain_text("guess one, 80 %")
    page.mouse.click(*spot(page, 21))
    side = page.locator(".st-key-card-map-side")
    expect(side.get_by_text("Pick 2")).to_be_visible()
    expect(side.get_by_text(desk.pool.item(items[21]).name)).to_be_visible()
    expect(side.locator("img.winnow-thumb")).to_be_visible()
    assert side.locator("img.winnow-thumb").evaluate("image => image.decode().then(() => image.naturalWidth)") == 900
    assert f"/{items[21]}/" in (side.locator("audio").get_attribute("src") or "")
    expect(side.locator(".winnow-bar").first).to_contain_text(re.compile(r"one\s*80 %"))
    expect(side).to_contain_text("41")
    side.get_by_label("Label", exact=True).click()
    page.get_by_role("option", name="seven").click()
    expect(side.get_by_text("Labeled seven")).to_be_visible()
    assert desk.pool.item(items[21]).class_id == desk.classes[7].id
    expect(page.locator(".scatterlayer .trace").nth(1).locator(".point")).to_have_count(1)
    desk.pool.undo(annotator=desk.person.id)
    page.get_by_role("radio", name="Label", exact=True).click()
    expect(side.get_by_text("Labeled seven")).to_have_count(0)
    expect(page.locator(".scatterlayer .trace")).to_have_count(2)


def test_before_the_first_round_the_map_says_what_to_do(desks, store):
    desk = desks(sample_store.image_project(store, "No round yet", 2))
    page = desk.tab("map")
    expect(page.get_by_text("No map yet")).to_be_visible()
    page.get_by_role("button", name="Go to Learn").click()
    page.wait_for_url("**/learn?**")
