"""Labeling many items at once: select with mouse and keys, one key labels all of them, one undo reverts it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from app.views.predictions import newest_predictions
from storage.labeling.pool import ItemFilter
from storage.projects.classes import list_classes
from tests.app import sample_store
from tests.browser.conftest import eventually, remember, saved


@pytest.fixture
def guessed(store, images):
    sample_store.finish_round(store, images)
    return images


def ids_shown(page) -> list[int]:
    return [int(i) for i in page.locator(".tile").evaluate_all("tiles => tiles.map(t => t.dataset.itemId)")]


def selected(page) -> list[int]:
    found = page.locator(".tile[aria-selected='true']").evaluate_all("tiles => tiles.map(t => t.dataset.itemId)")
    return [int(i) for i in found]


def test_one_key_labels_all_that_is_selected_and_undo_brings_it_back(open_browser, guessed, store):
    user = open_browser(guessed)
    page = user.grid_tab()
    shown = ids_shown(page)
    page.locator(".tile").nth(1).click()
    page.locator(".tile").nth(3).click(modifiers=["Shift"])
    eventually(page, lambda: selected(page), shown[1:4])
    expect(page.locator(".tray .n")).to_have_text("3 selected")
    page.keyboard.press("4")
    saved(page)
    expect(page.locator(".project")).to_have_text("3 of 30 labeled")
    assert {(e.item_id, e.class_id) for e in user.events()} == {(i, user.classes[3].id) for i in shown[1:4]}
    eventually(page, lambda: set(ids_shown(page)) & set(shown[1:4]), set())
    page.keyboard.press("u")
    saved(page)
    assert user.pool.counts().labeled == 0
    expect(page.locator(".project")).to_have_text("0 of 30 labeled")
    eventually(page, lambda: set(selected(page)), set(shown[1:4]))
    stored = user.events()[0]
    opinion = newest_predictions(store, guessed.id)
    best = opinion.most_probable(stored.item_id, list_classes(store, guessed.id))[0]
    assert (stored.suggestion, stored.suggested_class_id) == ("shown", best.class_id)


def test_tiles_are_sorted_by_confidence_and_filtered_by_prediction(open_browser, guessed):
    user = open_browser(guessed)
    page = user.grid_tab()

    def shares() -> list[int]:
        return [int(text.split()[0]) for text in page.locator(".tile .share").all_inner_texts()]

    most = shares()
    assert most == sorted(most, reverse=True) and most[0] > most[-1]
    page.locator(".sort").select_option("unsure")
    eventually(page, shares, most[::-1])
    guess = page.locator(".tile .guess").first.inner_text()
    page.locator(".filterlist select").select_option(label=guess)
    eventually(page, lambda: set(page.locator(".tile .guess").all_inner_texts()), {guess})
    expect(page.locator(".total")).to_have_text(f"{page.locator('.tile').count()} pictures")


def test_tiles_are_selected_with_keys_and_by_dragging(open_browser, guessed):
    user = open_browser(guessed)
    page = user.grid_tab()
    shown = ids_shown(page)
    page.locator(".tile").first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    eventually(page, lambda: selected(page), shown[:3])
    page.keyboard.press("Escape")
    eventually(page, lambda: selected(page), [])
    one, six = page.locator(".tile").nth(0).bounding_box(), page.locator(".tile").nth(5).bounding_box()
    page.mouse.move(one["x"] + 20, one["y"] + 20)
    page.mouse.down()
    page.mouse.move(six["x"] + 40, six["y"] + 60, steps=4)
    page.mouse.up()
    expect(page.locator(".tile[aria-selected='true']")).to_have_count(6)
    assert selected(page) == shown[:6]
    page.keyboard.press("Control+a")
    eventually(page, lambda: selected(page), shown)
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    page.wait_for_timeout(200)
    saved(page)
    assert user.events(None) == []


def test_sound_plays_on_focus_after_the_first_gesture(open_browser, audio):
    user = open_browser(audio)
    page = user.grid_tab()
    page.locator(".tile").nth(2).hover()
    page.wait_for_timeout(200)
    assert page.locator(".tile[data-playing='true']").count() == 0
    page.mouse.click(5, 400)
    played = remember(page, ".tile", "data-playing")
    page.locator(".tile").nth(4).hover()
    eventually(page, lambda: played()[:1], ["true"])


def test_an_emptied_grid_says_so_and_offers_the_next_step(open_browser, store):
    project = sample_store.image_project(store, "Small grid", 3)
    user = open_browser(project)
    page = user.grid_tab()
    page.keyboard.press("Control+a")
    page.keyboard.press("1")
    saved(page)
    page.wait_for_selector(".empty:not([hidden])")
    assert user.pool.count_items(ItemFilter(state="labeled")) == 3
