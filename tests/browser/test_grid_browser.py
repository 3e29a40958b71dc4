"""Grid as the browser of the whole pool: filters, preview, undo, keys, and actions on what was found."""

from __future__ import annotations

import csv
import io
import zipfile

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from storage.database.schema import Item
from storage.labeling.held_out import move_to_test
from storage.labeling.pool import ItemFilter, Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from tests.app import sample_store
from tests.browser.conftest import (
    OVERFLOW,
    at_rest,
    current_item,
    eventually,
    saved,
    serious,
    wait_for_card,
)
from tests.browser.test_grid import ids_shown, selected
from tests.storage.pools import event


@pytest.fixture
def mixed(store, images):
    """Thirty pictures: a round, ten labels of two annotators, a flag, a skip, a note and two test items."""
    sample_store.finish_round(store, images)
    pool, known = Pool(store, images.id), list_classes(store, images.id)
    items = [item.id for item in pool.items()]
    ana, bea = (annotator_named(store, name).id for name in ("Ana Koller", "Bea"))
    pool.apply([event(item, class_id=known[k % 3].id) for k, item in enumerate(items[:8])], annotator=ana)
    pool.apply([event(item, class_id=known[5].id) for item in items[8:10]], annotator=bea)
    more = [event(items[3], "flag"), event(items[12], "skip"), event(items[13], "note", note="two digits & a <b>")]
    pool.apply(more, annotator=ana)
    move_to_test(store, images.id, items[20:22])
    return images, items


FOUND_BY_MARK = (("flagged", [3]), ("skipped", [12]), ("noted", [13]), ("contested", [2]), ("unreadable", [25]))


def found(page: Page, items: list[int]) -> list[int]:
    return sorted(items.index(one) for one in ids_shown(page))


def show(page: Page, what: str) -> None:
    page.locator(".show select").select_option(what)


def test_every_item_is_found_by_its_state_label_annotator_date_confidence_marks_name_and_split(open_browser, mixed):
    project, items = mixed
    user = open_browser(project)
    bea = annotator_named(user.store, "Bea").id
    user.pool.label(items[2], user.classes[5].id, annotator=bea)  # Ana said something else
    with user.store.write() as connection:
        connection.execute(update(Item).where(Item.id == items[25]).values(condition="unreadable"))
    page = user.grid_tab()
    show(page, "labeled")
    eventually(page, lambda: found(page, items), list(range(10)))
    expect(page.locator(".tile .label").first).to_be_visible()
    page.locator(".toggle").click()
    page.locator("[data-field='annotator_id']").select_option(label="Bea")
    eventually(page, lambda: found(page, items), [2, 8, 9])
    page.locator(".clear").click()
    page.locator("[data-field='label_id']").select_option(label="one")
    eventually(page, lambda: found(page, items), [1, 4, 7])
    page.locator(".clear").click()
    for since, expected in (("2099-01-01", []), ("2020-01-01", list(range(10)))):
        page.locator("[data-field='since']").fill(since)
        eventually(page, lambda expected=expected: found(page, items), expected)
    page.locator(".clear").click()
    show(page, "waiting")
    shares = "all => all.map((one) => parseInt(one.textContent))"
    everything = page.locator(".tile .share")
    eventually(page, lambda: len(everything.evaluate_all(shares)) > 10, True)
    middle = sorted(everything.evaluate_all(shares))[5]
    kept = sum(one >= middle for one in everything.evaluate_all(shares))
    page.locator("[data-field='least']").fill(str(middle))
    page.keyboard.press("Tab")
    eventually(page, lambda: min(everything.evaluate_all(shares)) >= middle, True)
    assert kept - 3 <= everything.count() <= kept  # shares are shown in whole percents
    page.locator(".clear").click()
    show(page, "all")
    for mark, expected in FOUND_BY_MARK:
        page.locator(f".marks [value='{mark}']").check()
        eventually(page, lambda expected=expected: found(page, items), expected)
        page.locator(f".marks [value='{mark}']").uncheck()
    page.locator("[data-field='split']").select_option("test")
    eventually(page, lambda: found(page, items), [20, 21])
    page.locator(".clear").click()
    page.locator("[data-field='round_id']").select_option(label="1")
    eventually(page, lambda: len(ids_shown(page)), 10)
    page.locator(".clear").click()
    page.keyboard.press("/")
    page.keyboard.type("_01")
    eventually(page, lambda: found(page, items), list(range(10, 20)))
    page.locator(".search").fill("nothing has this name")
    expect(page.locator(".empty h2")).to_have_text("No items")
    page.locator(".empty .primary").click()
    eventually(page, lambda: len(ids_shown(page)), 30)
    eventually(page, lambda: serious(page), [])


def test_a_labeled_item_is_relabeled_in_place_and_undo_restores_it(open_browser, mixed):
    project, items = mixed
    user = open_browser(project)
    page = user.grid_tab()
    show(page, "labeled")
    eventually(page, lambda: found(page, items), list(range(10)))
    tile = page.locator(f".tile[data-item-id='{items[0]}']")
    tile.click()
    page.keyboard.press("8")
    expect(tile.locator(".label")).to_have_text("seven")
    saved(page)
    assert user.pool.item(items[0]).class_id == user.classes[7].id
    page.keyboard.press("Control+z")
    expect(tile.locator(".label")).to_have_text("zero")
    saved(page)
    assert user.pool.item(items[0]).class_id == user.classes[0].id
    page.keyboard.press("Escape")
    page.keyboard.press("Backspace")  # nothing left of this page: the newest action before it, the note
    expect(page.locator(".message")).to_contain_text("Undone: note")
    saved(page)
    assert user.events("undo")[-1].item_id == items[13]


def test_double_click_and_e_preview_large_and_space_selects(open_browser, mixed):
    """In the preview, arrow keys show other items, a class key labels the shown item, and the item opens on Label."""
    project, _ = mixed
    user = open_browser(project)
    page = user.grid_tab()
    shown = ids_shown(page)
    page.locator(".tile").nth(2).dblclick()
    expect(page.locator("dialog.preview[open] .big img")).to_be_visible()
    assert selected(page) == []
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("3")
    saved(page)
    assert [(one.item_id, one.class_id) for one in user.events()][-1] == (shown[1], user.classes[2].id)
    page.keyboard.press("Control+z")
    saved(page)
    assert user.events("undo")[-1].item_id == shown[1] and ids_shown(page) == shown  # each in its place
    page.keyboard.press("3")  # undo went back to the item
    saved(page)
    assert [(one.item_id, one.class_id) for one in user.events()][-1] == (shown[1], user.classes[2].id)
    page.keyboard.press("Escape")
    expect(page.locator("dialog.preview")).to_be_hidden()
    page.keyboard.press("Space")
    eventually(page, lambda: selected(page), [shown[2]])
    page.keyboard.press("e")
    expect(page.locator("dialog.preview[open]")).to_be_visible()
    at_rest(page)
    eventually(page, lambda: serious(page), [])
    page.get_by_role("button", name="Open on Label").click()
    wait_for_card(page)
    eventually(page, lambda: current_item(page), shown[2])


def test_all_like_this_are_selected_and_shown_first(open_browser, mixed):
    project, _ = mixed
    page = open_browser(project).grid_tab()
    tile = page.locator(".tile").nth(4)
    item, guess = int(tile.get_attribute("data-item-id")), tile.locator(".guess").inner_text()
    tile.focus()
    page.keyboard.press("l")
    expect(page.locator(".similar")).to_contain_text("with the same prediction")
    assert ids_shown(page)[0] == item
    chosen = selected(page)
    assert chosen == ids_shown(page)[: len(chosen)]
    assert set(page.locator(".tile[aria-selected='true'] .guess").all_inner_texts()) == {guess}
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".similar")).to_be_hidden()


def test_tiles_have_a_size_that_stays_and_help_opens_at_its_top(open_browser, mixed):
    project, _ = mixed
    page = open_browser(project).grid_tab()
    width = page.locator(".tile").first.bounding_box()["width"]
    for _ in range(3):
        page.keyboard.press("]")
    eventually(page, lambda: page.locator(".tile").first.bounding_box()["width"] > width + 60, True)
    wide = page.locator(".tile").first.bounding_box()["width"]
    page.reload()
    page.wait_for_selector(".tile")
    eventually(page, lambda: round(page.locator(".tile").first.bounding_box()["width"]), round(wide))
    slider = page.get_by_role("slider", name="Tile size")
    slider.press("Home")
    eventually(page, lambda: page.locator(".tile").first.bounding_box()["width"] < width, True)
    slider.press("End")
    eventually(page, lambda: page.locator(".tile").first.bounding_box()["width"] > width + 60, True)
    page.keyboard.press("Shift+?")
    sheet = page.locator("dialog.keysheet[open]")
    expect(sheet).to_be_visible()
    assert sheet.evaluate("sheet => sheet.scrollTop") == 0
    page.keyboard.press("Escape")
    for _ in range(5):
        page.keyboard.press("[")


def test_found_items_are_queued_made_test_items_exported_and_deleted(open_browser, mixed, store, server):
    project, items = mixed
    user = open_browser(project)
    user.pool.apply([event(items[14], "flag")], annotator=user.person.id)
    page = user.grid_tab()

    def act(name: str) -> None:
        page.locator(".menu summary").click()
        page.locator(f"[data-act='{name}']").click()

    page.locator(f".tile[data-item-id='{items[15]}']").click()
    act("queue")
    expect(page.locator(".message")).to_contain_text("1 item moved to the front of the queue")
    assert user.pool.first_in_queue()[0] == items[15]
    before = user.pool.prioritized(items)
    page.locator(".message").get_by_role("button", name="Undo").click()
    expect(page.locator(".message")).to_contain_text("1 item moved back")
    assert user.pool.prioritized(items) == before - {items[15]}
    page.locator(".search").fill("_018")
    eventually(page, lambda: found(page, items), [18])
    act("test")
    page.locator("dialog.confirm .do").click()
    expect(page.locator(".message")).to_contain_text("Test items now: 1")
    assert user.pool.item(items[18]).held_out
    show(page, "all")
    page.locator(".search").fill("_01")
    eventually(page, lambda: found(page, items), list(range(10, 20)))
    act("export")
    page.locator("dialog.confirm .do").click()
    page.get_by_role("button", name="Open Export").click()
    page.wait_for_url("**/export?**")
    link = page.get_by_role("link", name="Download")
    expect(link).to_be_visible()
    with page.expect_download() as download:
        link.click()
    with zipfile.ZipFile(download.value.path()) as archive:
        table = archive.read(next(name for name in archive.namelist() if name.endswith("labels.csv"))).decode()
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(table.lstrip("\ufeff")))}
    assert sorted(rows) == [f"digit_{k:03d}.png" for k in range(10, 20)]
    assert [name for name, row in rows.items() if row["flagged"] == "true"] == ["digit_014.png"]
    assert rows["digit_013.png"]["note"] == "two digits & a <b>" and rows["digit_013.png"]["label"] == ""
    page = user.grid_tab()
    page.locator(".search").fill("_019")
    show(page, "all")
    eventually(page, lambda: found(page, items), [19])
    act("delete")
    page.locator("dialog.confirm .do").click()
    expect(page.locator("dialog.confirm .trouble")).to_contain_text("Nothing is deleted")
    page.locator("dialog.confirm input").fill(project.name)
    page.locator("dialog.confirm .do").click()
    eventually(page, lambda: user.pool.count_items(ItemFilter()), 29)


def test_the_grid_and_its_filters_fit_every_zoom_and_the_phone(open_browser, mixed):
    project, _ = mixed
    page = open_browser(project).grid_tab()
    page.locator(".toggle").click()
    for width, height in ((1280, 800), (853, 533), (640, 400), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        expect(page.locator(".panel")).to_be_visible()
        eventually(page, lambda: page.evaluate(OVERFLOW), 0)
        page.locator(".tile").first.click()
        page.locator(".menu summary").click()
        box = page.locator(".menu .list").bounding_box()
        assert box["y"] >= 0 and box["x"] >= 0 and box["x"] + box["width"] <= width
        eventually(page, lambda: serious(page), [])
        page.locator(".menu").evaluate("menu => { menu.open = false; }")
        page.keyboard.press("Escape")
        eventually(page, lambda: selected(page), [])
