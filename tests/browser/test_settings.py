"""What the model sees on Data, and advanced settings on Train, in a real browser."""

from __future__ import annotations

from playwright.sync_api import expect

from storage.projects.projects import get_project
from tests.browser.conftest import at_rest, eventually, stands_still

# Fields without a button that explains them.
WITHOUT_HELP = """card => [...card.querySelectorAll('.stSelectbox, .stNumberInput, .stCheckbox')]
  .filter((field) => field.checkVisibility() && !field.querySelector("[aria-label^='Help for']"))
  .map((field) => field.textContent)"""
LOADED = "() => [...document.querySelectorAll('.winnow-inputs img')].every((i) => i.complete && i.naturalWidth > 0)"


def test_items_are_shown_as_the_network_gets_them_and_the_clip_length_can_be_changed(open_browser, store, audio):
    page = open_browser(audio).tab("data")
    page.wait_for_selector(".winnow-inputs img.winnow-pixels")
    page.wait_for_function(LOADED)
    assert page.locator(".winnow-inputs figure").count() == 6
    card = page.locator(".st-key-card-model-inputs")
    expect(card).to_contain_text("frames of 32 mel bins")
    expect(card).to_contain_text("Left: the spectrogram of the whole clip. Right: what the network receives.")
    card.locator("summary").click()
    card.get_by_role("spinbutton", name="Clip length in seconds").fill("2.0")
    stands_still(card.get_by_role("button", name="Save"))
    card.get_by_role("button", name="Save").click()
    eventually(page, lambda: get_project(store, audio.id).settings.media.get("seconds"), 2.0)


def test_every_setting_of_a_round_is_explained_and_an_advanced_one_says_what_it_changes(open_browser, store, audio):
    page = open_browser(audio).tab("train")
    at_rest(page)
    page.get_by_text("Advanced", exact=True).click()
    card = page.locator(".st-key-card-round-now")
    expect(card.get_by_role("spinbutton", name="Landmarks")).to_be_visible()
    assert card.evaluate(WITHOUT_HELP) == []
    card.get_by_role("button", name="Help for Batch").hover()
    expect(page.get_by_role("tooltip")).to_have_text("Number of items to pick.")
    page.mouse.move(0, 0)
    field = page.get_by_role("spinbutton", name="Landmarks")
    field.fill("512")
    field.press("Enter")
    eventually(page, lambda: get_project(store, audio.id).settings.changes, {"kernel.n_landmarks": 512})
    expect(page.get_by_text("Changed from 2048")).to_be_visible()
