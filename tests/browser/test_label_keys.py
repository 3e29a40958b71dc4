"""One key gives one label on the item on screen, even with fast keys and a slow network."""

from __future__ import annotations

import time

from playwright.sync_api import Route, expect
from sqlalchemy import update

from storage.database.schema import LabelClass
from storage.projects.projects import ProjectSettings, create_project
from tests.app import sample_store
from tests.browser.conftest import current_item, saved, wait_for_card

# Enter and a click at the same moment: on a busy machine, two successive calls may be far apart in time.
AT_ONCE = """button => {
  const now = performance.now(), clock = performance.now;
  performance.now = () => now;
  button.click();
  button.click();
  performance.now = clock;
}"""


def test_ten_keys_at_20_ms_with_a_slow_server_label_ten_items_in_order(open_browser, audio):
    """The order of items is read from the screen itself, key by key."""
    user = open_browser(audio)
    page = user.label_tab()
    keys = [row.key for row in user.classes]
    shown = page.evaluate(
        """async ([keys, gap]) => {
          const roots = [...document.querySelectorAll('.stBidiComponent *')].filter((e) => e.shadowRoot);
          const screen = roots.map((e) => e.shadowRoot.querySelector('.screen')).find(Boolean);
          const fetched = window.fetch;
          window.fetch = async (address, options) => {
            if (String(address).endsWith('/labels')) await new Promise((r) => setTimeout(r, 500));
            return fetched(address, options);
          };
          const shown = [];
          for (const key of keys) {
            shown.push(Number(screen.dataset.itemId));
            document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, composed: true }));
            await new Promise((r) => setTimeout(r, gap));
          }
          return shown;
        }""",
        [keys, 20],
    )
    saved(page)
    stored = user.events()
    assert len(set(shown)) == 10
    assert [event.item_id for event in stored] == shown
    assert [event.class_id for event in stored] == [row.id for row in user.classes]


def test_real_key_presses_land_one_by_one_and_a_held_key_labels_one_item(open_browser, audio):
    """The browser repeats a held key; repeats do not count."""
    user = open_browser(audio)
    page = user.label_tab()
    for row in user.classes:
        page.keyboard.press(row.key)
        page.wait_for_timeout(20)
    saved(page)
    assert [event.class_id for event in user.events()] == [row.id for row in user.classes]
    wait_for_card(page)
    for _ in range(40):
        page.keyboard.down("3")
        page.wait_for_timeout(50)
    page.keyboard.up("3")
    saved(page)
    assert len(user.events()) == 11


def test_a_double_click_and_enter_with_a_click_give_one_label(open_browser, audio):
    """Two inputs for the same card at the same moment count once."""
    user = open_browser(audio)
    page = user.label_tab()
    button = page.locator(".class").nth(2)
    button.dblclick()
    saved(page)
    assert len(user.events()) == 1
    page.wait_for_timeout(300)
    button.evaluate(AT_ONCE)
    saved(page)
    page.wait_for_timeout(300)
    assert [event.class_id for event in user.events()] == [user.classes[2].id] * 2


def test_typing_a_note_sets_no_label(open_browser, audio):
    """Digits and letters typed into a field are only text."""
    user = open_browser(audio)
    page = user.label_tab()
    item = current_item(page)
    page.keyboard.press("n")
    page.keyboard.type("12 noise 3s u")
    expect(page.locator("dialog.note textarea")).to_have_value("12 noise 3s u")
    assert user.events(None) == []
    page.locator("dialog.note .save").click()
    saved(page)
    assert [(event.kind, event.note, event.item_id) for event in user.events(None)] == [("note", "12 noise 3s u", item)]
    assert current_item(page) == item


def test_a_key_pressed_in_the_moment_a_note_is_closed_counts(open_browser, audio):
    """Before the browser has drawn the next frame and removed the focus from the field."""
    user = open_browser(audio)
    page = user.label_tab()
    for part in (".cancel", ".save"):
        page.keyboard.press("n")
        pressed_at_once = """(button) => {
          button.click();
          document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '3', bubbles: true, composed: true }));
        }"""
        page.locator(f"dialog.note {part}").evaluate(pressed_at_once)
    saved(page)
    assert [event.class_id for event in user.events()] == [user.classes[2].id] * 2


def test_with_many_classes_a_name_is_searched_and_typing_labels_nothing(open_browser, store):
    """The search field; Enter takes the first match."""
    names = [f"species {i:02d}" for i in range(25)]
    project = create_project(store, "Many classes", "audio", names)
    sample_store.add_items(store, project, [(f"{i}.wav", sample_store.clip(70_000 + i)) for i in range(4)])
    user = open_browser(project)
    page = user.label_tab()
    page.keyboard.press("/")
    page.keyboard.type("species 17")
    expect(page.locator(".class:visible")).to_have_count(1)
    assert user.events(None) == []
    page.keyboard.press("Enter")
    saved(page)
    assert [(event.kind, event.class_id) for event in user.events(None)] == [("label", user.classes[17].id)]


def test_undo_goes_back_over_any_number_of_items_and_over_a_reload(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    shown = []
    for key in "1234":
        shown.append(current_item(page))
        page.keyboard.press(key)
    saved(page)
    page.keyboard.press("u")
    page.wait_for_selector(f".screen[data-item-id='{shown[3]}']")
    page.keyboard.press("u")
    page.wait_for_selector(f".screen[data-item-id='{shown[2]}']")
    saved(page)
    held: list[Route] = []
    page.route("**/recent", lambda route: held.append(route))
    page.reload()
    wait_for_card(page)
    page.keyboard.press("u")
    held.pop().continue_()  # what was done before the reload is answered only now
    page.wait_for_selector(f".screen[data-item-id='{shown[1]}']")
    page.keyboard.press("u")
    page.wait_for_selector(f".screen[data-item-id='{shown[0]}']")
    saved(page)
    assert user.pool.counts().labeled == 0
    page.keyboard.press("7")
    saved(page)
    assert user.pool.item(shown[0]).class_id == user.classes[6].id


def test_back_shows_the_label_given_and_a_key_changes_it(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    first = current_item(page)
    page.keyboard.press("1")
    second = current_item(page)
    page.keyboard.press("ArrowLeft")
    assert current_item(page) == first
    expect(page.locator(".class[data-given='true']")).to_have_attribute("title", "zero")
    page.keyboard.press("5")
    assert current_item(page) == second
    saved(page)
    assert user.pool.item(first).class_id == user.classes[4].id
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    assert current_item(page) == second


def test_skips_and_flags_can_be_undone_and_the_time_to_decide_is_measured(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    first = current_item(page)
    page.keyboard.press("f")
    page.keyboard.press("s")
    saved(page)
    assert (user.pool.item(first).flagged, user.pool.item(first).skipped) == (True, True)
    page.keyboard.press("u")
    shown = time.monotonic()
    page.keyboard.press("u")
    saved(page)
    assert (user.pool.item(first).flagged, user.pool.item(first).skipped) == (False, False)
    assert current_item(page) == first
    page.wait_for_timeout(700)
    page.keyboard.press("2")
    saved(page)
    seconds = user.events()[0].seconds
    assert seconds is not None and 0.6 < seconds <= time.monotonic() - shown + 0.1


def test_a_stored_class_key_that_is_also_a_command_never_labels(open_browser, store):
    """Earlier versions stored such keys. The keys that are shown are those that work: S skips, the class has
    another."""
    names = ["stop", "yes", *(f"class {k}" for k in range(12))]
    project = create_project(store, "Letters", "audio", names, settings=ProjectSettings())
    sample_store.add_items(store, project, [(f"{i}.wav", sample_store.clip(80_000 + i)) for i in range(6)])
    user = open_browser(project)
    with store.write() as connection:
        for one, key in zip(user.classes[:4], "slaz", strict=True):
            connection.execute(update(LabelClass).where(LabelClass.id == one.id).values(key=key))
    page = user.label_tab()
    caps = page.locator(".class kbd").all_inner_texts()
    assert not set(caps) & set("slaz") and caps[:4] == ["1", "2", "3", "4"]
    for key in ("a", "l", "z", "s", caps[0]):
        page.keyboard.press(key)
    saved(page)
    stored = user.events(None)
    assert [(event.kind, event.class_id) for event in stored] == [("skip", None), ("label", user.classes[0].id)]


def test_enter_accepts_a_shown_suggestion_and_nothing_else(open_browser, store):
    """Held down it counts once; without a suggestion, a message says so and nothing is labeled."""
    project = sample_store.audio_project(store, "Accepting", 12, suggestions="show")
    user = open_browser(project)
    page = user.label_tab()
    page.keyboard.press("Enter")
    expect(page.locator(".given")).to_have_text("There is no suggestion to accept.")
    assert user.events(None) == []
    sample_store.finish_round(store, project)
    page.reload()
    wait_for_card(page)
    suggested = int(page.locator(".class[data-suggested='true']").get_attribute("data-class"))
    first = current_item(page)
    for _ in range(5):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    saved(page)
    assert [(event.item_id, event.class_id, event.suggestion) for event in user.events()] == [
        (first, suggested, "shown")
    ]


def test_backspace_and_control_z_undo_and_a_note_keeps_its_own(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    shown = []
    for key in "123":
        shown.append(current_item(page))
        page.keyboard.press(key)
    saved(page)
    page.keyboard.press("Backspace")
    page.wait_for_selector(f".screen[data-item-id='{shown[2]}']")
    page.keyboard.press("Meta+z")
    page.wait_for_selector(f".screen[data-item-id='{shown[1]}']")
    page.keyboard.press("Control+z")
    page.wait_for_selector(f".screen[data-item-id='{shown[0]}']")
    saved(page)
    assert user.pool.counts().labeled == 0
    page.keyboard.press("3")
    page.keyboard.press("n")
    page.keyboard.type("noise")
    for key in ("Backspace", "Control+z", "Meta+z"):
        page.keyboard.press(key)
    saved(page)
    assert user.pool.counts().labeled == 1


def test_enter_saves_a_note_and_escape_asks_before_it_discards(open_browser, audio):
    """Ctrl+Enter and Shift+Enter start a new line. Escape on an unchanged note closes it at once."""
    user = open_browser(audio)
    page = user.label_tab()
    sheet = page.locator("dialog.note")
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    page.keyboard.press("n")
    page.keyboard.type("two voices")
    page.keyboard.press("Control+Enter")
    page.keyboard.type("and rain")
    page.keyboard.press("Escape")
    expect(sheet.get_by_text("Discard what you typed?")).to_be_visible()
    page.keyboard.press("Escape")  # back to the text
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")  # "Keep editing" has the focus
    expect(sheet.locator("textarea")).to_have_value("two voices\nand rain")
    page.keyboard.press("Enter")
    expect(sheet).to_be_hidden()
    saved(page)
    assert [event.note for event in user.events("note")] == ["two voices\nand rain"]
    page.keyboard.press("n")
    page.keyboard.type(" changed")
    page.keyboard.press("Escape")
    sheet.get_by_role("button", name="Discard").click()
    expect(sheet).to_be_hidden()
    saved(page)
    assert len(user.events(None)) == 1


def test_the_list_of_keys_opens_at_its_top(open_browser, audio):
    user = open_browser(audio, viewport={"width": 853, "height": 533})
    page = user.label_tab()
    page.keyboard.press("Shift+?")
    sheet = page.locator("dialog.keys[open]")
    expect(sheet).to_be_visible()
    assert sheet.evaluate("sheet => sheet.scrollHeight > sheet.clientHeight && sheet.scrollTop") == 0
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    assert user.events(None) == []


FRENCH = [("&", "Digit1"), ("é", "Digit2"), ('"', "Digit3"), ("à", "Digit0")]


def test_digit_keys_label_without_shift_on_a_french_keyboard(open_browser, audio):
    """The row of digits gives other characters there. Shift with a digit key of an English keyboard labels nothing."""
    user = open_browser(audio)
    page = user.label_tab()
    press = """([key, code, shiftKey]) => document.body.dispatchEvent(
      new KeyboardEvent('keydown', { key, code, shiftKey, bubbles: true, composed: true }))"""
    page.evaluate(press, ["!", "Digit1", True])
    for key, code in FRENCH:
        page.evaluate(press, [key, code, False])
    page.evaluate(press, ["5", "Digit5", True])
    saved(page)
    assert [event.class_id for event in user.events(None)] == [user.classes[k].id for k in (0, 1, 2, 9, 4)]
