"""What people see: honest words, no overlap at desk and phone size, contrast and names for everything."""

from __future__ import annotations

from storage.projects import ProjectSettings, create_project
from tests.app import sample_store
from tests.browser.conftest import OVERFLOW, current_item, saved, serious, wait_for_card


def test_the_list_of_keys_and_a_selection_have_no_serious_accessibility_findings(desks, audio, store):
    """The screens themselves, light and dark: test_every_screen.py."""
    sample_store.finish_round(store, audio)
    page = desks(audio).label_tab()
    page.keyboard.press("?")
    page.wait_for_selector("dialog.keys[open]")
    assert serious(page) == []
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Grid").click()
    page.wait_for_selector(".tile")
    page.locator(".tile").first.click()
    assert serious(page) == []


def test_a_name_is_given_by_keyboard_alone_and_remembered(server, chromium, store, audio):
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.url)
    page.wait_for_selector(".st-key-welcome")
    page.get_by_role("textbox").focus()
    page.keyboard.type("Clara Neu")
    page.keyboard.press("Enter")
    page.wait_for_selector(".st-key-topbar")
    wait_for_card(page)
    page.reload()
    wait_for_card(page)
    assert page.locator(".st-key-person").inner_text().strip().startswith("CN")
    context.close()


def test_a_phone_shows_the_card_and_a_two_column_pad_without_overlap(desks, audio, store):
    sample_store.finish_round(store, audio)
    desk = desks(audio, viewport={"width": 390, "height": 844}, has_touch=True)
    page = desk.label_tab()
    assert page.evaluate(OVERFLOW) == 0
    boxes = [box.bounding_box() for box in page.locator(".class").all()]
    assert len({round(box["x"]) for box in boxes}) == 2
    assert all(box["height"] >= 44 for box in boxes)
    card, pad = page.locator(".card").bounding_box(), boxes[0]
    assert card["y"] + card["height"] <= pad["y"]
    assert boxes[-1]["y"] + boxes[-1]["height"] <= 844
    assert not page.locator(".why").evaluate("why => why.open")
    item = current_item(page)
    page.locator(".class").nth(3).tap()
    saved(page)
    assert desk.pool.item(item).class_id == desk.classes[3].id
    grid = desk.grid_tab()
    assert grid.evaluate(OVERFLOW) == 0


def test_the_card_says_where_the_work_stands_and_why_the_item_is_shown(desks, audio, store):
    picks = sample_store.finish_round(store, audio)
    desk = desks(audio)
    page = desk.label_tab()
    assert current_item(page) == picks[0]
    assert page.locator(".batch").inner_text() == "1 of 10 in this batch · then round 2 starts by itself"
    assert page.locator(".project").inner_text() == "0 of 24 labeled"
    why = page.locator(".reasons").inner_text()
    assert "Pick 1 of 10" in why and "chosen by bilevel coreset in round 1" in why
    assert "1.284 → 1.241" in why and "41 clips nearby" in why
    assert page.locator(".guess").count() == 3
    for key in "123":
        page.keyboard.press(key)
    saved(page)
    page.wait_for_function("() => true")
    page.wait_for_selector(".batch:has-text('4 of 10')")
    assert page.locator(".dashes [data-done='yes']").count() == 3


def test_a_hidden_guess_is_nowhere_on_the_screen_and_stored_as_hidden(desks, store):
    """What was shown is stored; FAULTS C10: the suggestion belongs to the item on screen."""
    project = sample_store.audio_project(store, "Hidden guesses", 14, suggestions="random", hidden_share=1.0)
    sample_store.finish_round(store, project)
    desk = desks(project)
    page = desk.label_tab()
    assert page.locator(".guess").count() == 0
    assert page.locator(".class[data-suggested='true']").count() == 0
    page.keyboard.press("1")
    saved(page)
    event = desk.events()[0]
    assert event.suggestion == "hidden" and event.suggested_class_id is not None


def test_sound_waits_for_the_first_gesture_then_plays_by_itself(desks, audio):
    desk = desks(audio)
    page = desk.label_tab()
    assert page.locator(".toggle").get_attribute("data-playing") == "false"
    page.keyboard.press("1")
    page.wait_for_selector(".toggle[data-playing='true']")
    page.wait_for_selector(".toggle[data-playing='false']")
    page.keyboard.press("Space")
    page.wait_for_selector(".toggle[data-playing='true']")
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert page.locator(".speed").inner_text() == "1.5×"
    page.keyboard.press("l")
    assert page.locator(".loop").get_attribute("aria-pressed") == "true"


def test_pictures_zoom_and_go_back(desks, images):
    desk = desks(images)
    page = desk.label_tab()
    page.keyboard.press("z")
    assert page.locator(".picture").get_attribute("data-zoomed") == "true"
    page.keyboard.press("1")
    assert page.locator(".picture").get_attribute("data-zoomed") == "false"


def test_an_empty_screen_says_why_and_offers_the_next_step(desks, store):
    empty = create_project(store, "Empty project", "audio", ["a", "b"], settings=ProjectSettings())
    desk = desks(empty)
    page = desk.tab()
    page.wait_for_selector(".empty:not([hidden]) .primary")
    assert page.locator(".empty h2").inner_text() == "No clips yet"
    page.locator(".empty .primary").click()
    page.wait_for_url("**/collect?**")
    small = sample_store.audio_project(store, "Nearly done", 2)
    desk = desks(small)
    page = desk.label_tab()
    page.keyboard.press("1")
    page.keyboard.press("s")
    page.wait_for_selector(".empty:not([hidden]) .primary")
    assert page.locator(".empty h2").inner_text() == "Everything is labeled"
    assert "1 were skipped" in page.locator(".empty p").inner_text()
