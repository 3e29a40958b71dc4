"""Projects with 40 and 200 classes: full names, everything reachable, filtered by typing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from storage.projects.projects import ProjectRow, ProjectSettings, create_project
from tests.app import sample_store
from tests.browser.conftest import OVERFLOW, current_item, eventually, saved, serious

SIZES = [(1280, 800), (853, 533), (640, 400)]  # 100, 150 and 200 % of one window
NEVER = ProjectSettings(suggestions="hide")
LONG = "a very long name of a species that does not fit on two lines of any column of buttons, whatever is done"
# Names that are cut: an element whose text is larger than its box and that has no title with all of it.
CUT = """names => names.filter((one) => one.checkVisibility())
  .filter((one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)
  .map((one) => one.textContent)"""


def made(store, n: int, kind: str = "image", grouped: bool = False) -> ProjectRow:
    groups = ("birds", "mammals", "fish/salt water", "insects")
    names = [f"{groups[i * 4 // n]}/species {i:03d}" if grouped else f"kind_of_species_{i:03d}" for i in range(n)]
    names[-1] = f"{groups[-1]}/{LONG}" if grouped else LONG
    project = create_project(store, f"{n} classes {kind} {grouped}", kind, names)
    content = sample_store.clip if kind == "audio" else sample_store.picture
    sample_store.add_items(store, project, [(f"{i}.bin", content(90_000 + n + i)) for i in range(8)])
    return project


def inside(page: Page, selector: str) -> None:
    """Whether the element is within the window."""
    box, size = page.locator(selector).bounding_box(), page.viewport_size
    assert box["y"] >= 0 and box["y"] + box["height"] <= size["height"] + 1, (selector, box, size)


@pytest.mark.parametrize(("n", "kind"), [(40, "audio"), (200, "image")])
def test_many_classes_are_in_reach_at_every_zoom_and_only_the_longest_name_is_cut(open_browser, store, n, kind):
    """Item, search field and actions stay in the window; forty classes are all in it at 100 %."""
    user = open_browser(made(store, n, kind))
    page = user.label_tab()
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        eventually(page, lambda: page.evaluate(OVERFLOW), 0)
        for part in (".picture", ".search", ".classes"):
            inside(page, part)
        assert page.locator(".picture").bounding_box()["height"] >= 60
        assert set(page.locator(".class .name").evaluate_all(CUT)) <= {LONG}
    page.set_viewport_size({"width": 1280, "height": 800})
    inside(page, "[data-action='undo']")
    if n == 200:  # they scroll anyway, so the item stays large
        assert page.locator(".picture").bounding_box()["height"] >= 200
    if n == 40:
        bottom = page.locator(".class").last.bounding_box()
        assert bottom["y"] + bottom["height"] <= 800
    last = page.locator(".class").last
    expect(last).to_have_attribute("title", LONG)
    page.keyboard.press("/")
    last.focus()
    expect(page.locator(".tip")).to_have_text(LONG)
    eventually(page, lambda: serious(page), [])


def test_typing_filters_classes_and_enter_takes_the_best_match(open_browser, store):
    """Words in any order, without regard to case and separators; a name that starts with them comes first."""
    names = [f"filler {i}" for i in range(30)] + ["steel_door Knock", "door_wood_knock", "door", "Café"]
    project = create_project(store, "Filtered classes", "image", names)
    sample_store.add_items(store, project, [(f"{i}.png", sample_store.picture(95_000 + i)) for i in range(8)])
    user = open_browser(project)
    page = user.label_tab()
    shown = page.locator(".class:visible .name")
    page.keyboard.press("/")
    for typed, expected in (
        ("knock door", ["steel_door Knock", "door_wood_knock"]),
        ("door", ["door", "door_wood_knock", "steel_door Knock"]),
        ("cafe", ["Café"]),
        ("no such", []),
    ):
        page.locator(".search").fill(typed)
        eventually(page, shown.all_inner_texts, expected)
    expect(page.locator(".found")).to_have_text("No class has this in its name.")
    page.keyboard.press("Enter")
    page.locator(".search").fill("door")
    page.keyboard.press("Enter")
    page.keyboard.type("cafe")  # more classes than keys: the field keeps the focus for the next item
    page.keyboard.press("Enter")
    saved(page)
    ids = {row.name: row.id for row in user.classes}
    assert [event.class_id for event in user.events(None)] == [ids["door"], ids["Café"]]
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    saved(page)
    assert len(user.events("undo")) == 1


def test_classes_with_slashes_are_shown_in_groups_under_their_full_names(open_browser, store):
    project = made(store, 40, grouped=True)
    user = open_browser(project)
    page = user.label_tab()
    assert page.locator(".group").all_inner_texts() == ["birds", "mammals", "fish/salt water", "insects"]
    expect(page.locator(".class").first).to_have_text("1species 000", use_inner_text=False)
    expect(page.locator(".class").first).to_have_attribute("title", "birds/species 000")
    page.get_by_role("button", name="mammals/species 012").click()
    saved(page)
    assert [event.class_id for event in user.events()] == [user.classes[12].id]
    eventually(page, lambda: serious(page), [])


def test_likely_and_recent_classes_come_first_and_likely_ones_only_when_suggestions_are_shown(open_browser, store):
    project = made(store, 41)
    user = open_browser(project)
    page = user.label_tab()
    row = page.locator(".quick")
    expect(row.locator(".chip")).to_have_count(0)
    page.locator(".class").nth(33).click()
    expect(row).to_have_text("Recentkind_of_species_033")
    saved(page)
    sample_store.finish_round(store, project)
    page.reload()
    page.wait_for_selector(".chip[data-suggested='true']")
    likely = row.locator(".chip").first.inner_text().split("\n")[-1]
    assert likely == page.locator(".guess span").first.inner_text()
    item = current_item(page)
    row.locator(".chip").first.click()
    saved(page)
    event = user.events()[-1]
    assert (event.item_id, event.class_id) == (item, event.suggested_class_id)
    hidden = create_project(store, "Forty hidden", "image", [f"kind {i}" for i in range(40)], settings=NEVER)
    sample_store.add_items(store, hidden, [(f"{i}.png", sample_store.picture(97_000 + i)) for i in range(4)])
    sample_store.finish_round(store, hidden)
    page = open_browser(hidden).label_tab()
    expect(page.locator(".chip")).to_have_count(0)
