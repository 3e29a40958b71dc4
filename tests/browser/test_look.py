"""The appearance of the screens: texts, no overlap at desktop and phone size, contrast, names of controls."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from storage.projects.projects import ProjectSettings, create_project
from tests.app import sample_store
from tests.browser.conftest import (
    OVERFLOW,
    at_rest,
    current_item,
    eventually,
    remember,
    saved,
    serious,
    wait_for_card,
)


def test_the_list_of_keys_and_a_selection_have_no_serious_accessibility_findings(open_browser, audio, store):
    """The screens themselves, light and dark: test_every_screen.py."""
    sample_store.finish_round(store, audio)
    page = open_browser(audio).label_tab()
    page.keyboard.press("?")
    page.wait_for_selector("dialog.keys[open]")
    eventually(page, lambda: serious(page), [])
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Grid").click()
    page.wait_for_selector(".tile")
    page.locator(".tile").first.click()
    expect(page.locator(".tray .n")).to_have_text("1 selected")
    at_rest(page)
    eventually(page, lambda: serious(page), [])


def test_a_name_is_given_by_keyboard_alone_and_remembered(server, lend_context, audio):
    page = lend_context(server).new_page()
    page.goto(f"{server.url}/?project={audio.id}")
    page.wait_for_selector(".st-key-welcome input")
    at_rest(page)
    page.get_by_role("textbox").focus()
    page.keyboard.type("Clara Neu")
    page.keyboard.press("Enter")
    page.wait_for_selector(".st-key-topbar")
    wait_for_card(page)
    page.reload()
    wait_for_card(page)
    expect(page.locator(".st-key-person")).to_have_text(re.compile(r"^\s*CN"))


def test_a_phone_shows_the_card_and_a_two_column_pad_without_overlap(open_browser, audio, store):
    sample_store.finish_round(store, audio)
    user = open_browser(audio, viewport={"width": 390, "height": 844}, has_touch=True)
    page = user.label_tab()
    at_rest(page)
    eventually(page, lambda: page.evaluate(OVERFLOW), 0)
    boxes = [box.bounding_box() for box in page.locator(".class").all()]
    assert len({round(box["x"]) for box in boxes}) == 2
    assert all(box["height"] >= 44 for box in boxes)
    card, pad = page.locator(".card").bounding_box(), boxes[0]
    assert card["y"] + card["height"] <= pad["y"]
    assert boxes[-1]["y"] + boxes[-1]["height"] <= 844
    assert not page.locator(".why").evaluate("why => why.open")
    item = current_item(page)
    page.locator(".class").nth(3).tap()
    eventually(page, lambda: user.pool.item(item).class_id, user.classes[3].id)
    saved(page)
    grid = user.grid_tab()
    at_rest(grid)
    eventually(grid, lambda: grid.evaluate(OVERFLOW), 0)


def test_the_card_shows_the_progress_and_why_the_item_is_shown(open_browser, audio, store):
    picks = sample_store.finish_round(store, audio)
    user = open_browser(audio)
    page = user.label_tab()
    assert current_item(page) == picks[0]
    expect(page.locator(".batch")).to_have_text("1 of 10 in this batch · then round 2 starts automatically")
    expect(page.locator(".project")).to_have_text("0 of 24 labeled")
    why = page.locator(".reasons")
    sentence = "Its label is expected to help the model most with all the other clips. It stands for 41 similar clips."
    expect(why.locator(".sentence")).to_have_text(sentence)
    expect(why.locator(".numbers dl")).to_be_hidden()
    why.locator(".numbers summary").click()
    for number in ("1 of 10 in round 1", "Bilevel coreset", "1.284 → 1.241"):
        expect(why.locator(".numbers")).to_contain_text(number, use_inner_text=True)
    expect(page.locator(".guess")).to_have_count(3)
    for key in "123":
        page.keyboard.press(key)
    saved(page)
    expect(page.locator(".batch")).to_contain_text("4 of 10")
    expect(page.locator(".dashes [data-done='yes']")).to_have_count(3)


def test_a_hidden_suggestion_is_nowhere_on_the_screen_and_stored_as_hidden(open_browser, store):
    """Whether it was shown is stored, and the suggestion belongs to the item on screen."""
    project = sample_store.audio_project(store, "Hidden guesses", 14, suggestions="random", hidden_share=1.0)
    sample_store.finish_round(store, project)
    user = open_browser(project)
    page = user.label_tab()
    assert page.locator(".guess").count() == 0
    assert page.locator(".class[data-suggested='true']").count() == 0
    page.keyboard.press("1")
    saved(page)
    event = user.events()[0]
    assert event.suggestion == "hidden" and event.suggested_class_id is not None


def test_sound_waits_for_the_first_gesture_then_plays_automatically(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    expect(page.locator(".toggle")).to_have_attribute("data-playing", "false")
    played = remember(page, ".toggle", "data-playing")
    page.keyboard.press("1")
    eventually(page, lambda: played()[-2:], ["true", "false"])
    before = len(played())
    page.keyboard.press("Space")
    eventually(page, lambda: played()[before : before + 1], ["true"])
    page.keyboard.press("]")
    page.keyboard.press("]")
    expect(page.locator(".speed")).to_have_text("1.5×")
    page.keyboard.press("l")
    expect(page.locator(".loop")).to_have_attribute("aria-pressed", "true")


def test_pictures_zoom_and_go_back(open_browser, images):
    user = open_browser(images)
    page = user.label_tab()
    page.keyboard.press("z")
    expect(page.locator(".picture")).to_have_attribute("data-zoomed", "true")
    page.keyboard.press("1")
    expect(page.locator(".picture")).to_have_attribute("data-zoomed", "false")


def test_an_empty_screen_says_why_and_offers_the_next_step(open_browser, store):
    empty = create_project(store, "Empty project", "audio", ["a", "b"], settings=ProjectSettings())
    user = open_browser(empty)
    page = user.tab()
    page.wait_for_selector(".empty:not([hidden]) .primary")
    expect(page.locator(".empty h2")).to_have_text("No clips yet")
    at_rest(page)
    page.locator(".empty .primary").click()
    page.wait_for_url("**/data?**")
    small = sample_store.audio_project(store, "Nearly done", 2)
    user = open_browser(small)
    page = user.label_tab()
    page.keyboard.press("1")
    page.keyboard.press("s")
    page.wait_for_selector(".empty:not([hidden]) .primary")
    expect(page.locator(".empty h2")).to_have_text("All items are labeled")
    expect(page.locator(".empty p")).to_contain_text("1 skipped")
