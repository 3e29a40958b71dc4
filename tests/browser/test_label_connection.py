"""No label shown as saved is lost or counted twice when connections, tabs, browsers or servers fail."""

from __future__ import annotations

import contextlib

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import expect

from app.web import tickets
from app.web.access import SESSION_COOKIE
from storage.projects.annotators import remove_annotator
from storage.projects.classes import merge_classes, rename_class, retire_class
from storage.projects.projects import archive_project
from tests.app import sample_store
from tests.browser.conftest import (
    CHROMIUM,
    CHROMIUM_FLAGS,
    SLOW,
    Server,
    at_rest,
    current_item,
    require_chromium,
    saved,
    wait_for_card,
)


def test_a_cut_connection_loses_and_duplicates_nothing(open_browser, audio):
    """Labeling continues without a connection; labels are shown as unsaved, and arrive once when it is restored."""
    user = open_browser(audio)
    page = user.label_tab()
    page.keyboard.press("1")
    saved(page)
    user.context.set_offline(True)
    shown = []
    for key in "234":
        shown.append(current_item(page))
        page.keyboard.press(key)
    page.wait_for_selector(".saved[data-state='lost']")
    expect(page.locator(".saved .words")).to_have_text("3 unsaved — reconnecting")
    page.wait_for_timeout(12_000)  # the time between attempts has reached its longest, 5 s
    assert len(user.events()) == 1
    user.context.set_offline(False)
    saved(page)
    assert [event.item_id for event in user.events()][1:] == shown
    page.wait_for_timeout(600)
    assert len(user.events()) == 4


def test_an_answer_that_never_arrives_makes_the_retry_harmless(open_browser, audio):
    """The server stored the labels, but its response was lost; the same events are sent again."""
    user = open_browser(audio)
    page = user.label_tab()
    lost = []

    def lose_first_answers(route):
        route.fetch(timeout=SLOW)
        lost.append(route.request.post_data_json["events"])
        route.abort() if len(lost) < 3 else route.continue_()

    page.route("**/labels", lose_first_answers)
    page.keyboard.press("1")
    page.keyboard.press("2")
    saved(page)
    assert len(lost) >= 3
    assert [event.class_id for event in user.events()] == [row.id for row in user.classes[:2]]


def test_labels_of_a_crashed_tab_are_sent_by_the_next_page(open_browser, audio):
    """The tab dies with three unsaved labels; any other page of this browser sends them."""
    user = open_browser(audio)
    page = user.label_tab()
    page.route("**/labels", lambda route: route.abort())
    for key in "123":
        page.keyboard.press(key)
    page.wait_for_selector(".saved[data-state='lost']")
    expect(page.locator(".saved .words")).to_have_text("3 unsaved — reconnecting")
    with contextlib.suppress(PlaywrightError):  # the answer dies with the tab
        user.context.new_cdp_session(page).send("Page.crash", timeout=1500)
    assert user.events() == []
    other = user.tab("grid")
    saved(other)
    assert [event.class_id for event in user.events()] == [row.id for row in user.classes[:3]]


def test_labels_of_a_closed_browser_are_sent_when_it_is_opened_again(open_browser, audio, server, tmp_path):
    """With a browser profile on disk, like that of a user."""
    require_chromium()
    user = open_browser(audio, "Profile Person")
    cookies = user.context.cookies()

    def start_browser():
        options = {"executable_path": CHROMIUM, "args": CHROMIUM_FLAGS, "timeout": 2 * SLOW}
        opened = user.context.browser.browser_type.launch_persistent_context(tmp_path / "profile", **options)
        opened.set_default_timeout(SLOW)
        opened.add_cookies(cookies)
        page = opened.new_page()
        page.goto(f"{server.url}/?project={audio.id}")
        wait_for_card(page)
        return opened, page

    first, page = start_browser()
    page.route("**/labels", lambda route: route.abort())
    for key in "123":
        page.keyboard.press(key)
    page.wait_for_selector(".saved[data-state='lost']")
    first.close()
    assert user.events() == []
    second, page = start_browser()
    saved(page)
    second.close()
    assert [event.class_id for event in user.events()] == [row.id for row in user.classes[:3]]


@pytest.mark.timeout(600)
def test_a_server_restart_under_an_open_tab_loses_nothing(open_browser, audio, store, home):
    """Killed with -9 while labels are being sent; the tab continues and everything arrives once."""
    own = Server(home).start()
    try:
        user = open_browser(audio, "Restart Person")
        user.context.clear_cookies()
        user.server = own
        ticket = tickets.issue(tickets.signing_key(home), user.person.id, 3600)
        user.context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": own.url}])
        page = user.label_tab()
        page.keyboard.press("1")
        saved(page)
        own.stop(hard=True)
        for key in "234":
            page.keyboard.press(key)
        page.wait_for_selector(".saved[data-state='lost']")
        own.start()
        saved(page)
        assert [event.class_id for event in user.events()] == [row.id for row in user.classes[:4]]
        at_rest(page)  # connected again, and the page was drawn again
        wait_for_card(page)
        page.keyboard.press("5")
        saved(page)
        assert len(user.events()) == 5
    finally:
        own.stop()


def test_two_tabs_of_one_person_work_on_different_items_and_undo_their_own(open_browser, audio):
    """Leases and undo belong to a tab, not to a person."""
    user = open_browser(audio)
    one, two = user.label_tab(), user.label_tab()
    assert current_item(one) != current_item(two)
    a, b = current_item(one), current_item(two)
    one.keyboard.press("1")
    saved(one)
    two.keyboard.press("2")
    saved(two)
    one.keyboard.press("u")
    one.wait_for_selector(f".screen[data-item-id='{a}']")
    saved(one)
    assert user.pool.item(a).class_id is None
    assert user.pool.item(b).class_id == user.classes[1].id


def test_two_people_never_get_the_same_item(open_browser, store):
    """With fewer items than two tabs would lease, each item is leased by one of them."""
    project = sample_store.audio_project(store, "Two people", 16)
    ana, ben = open_browser(project, "Ana Koller"), open_browser(project, "Ben Ott")
    one, two = ana.label_tab(), ben.label_tab()
    for _ in range(6):
        one.keyboard.press("1")
        if two.locator(".screen").get_attribute("data-view") == "card":
            two.keyboard.press("2")
        one.wait_for_timeout(30)
    saved(one)
    saved(two)
    mine, theirs = {e.item_id for e in ana.events()}, {e.item_id for e in ben.events()}
    assert mine and not (mine & theirs)


def test_a_reload_shows_the_same_item(open_browser, audio):
    user = open_browser(audio)
    page = user.label_tab()
    page.keyboard.press("1")
    item = current_item(page)
    saved(page)
    page.reload()
    wait_for_card(page)
    assert current_item(page) == item


def test_classes_renamed_merged_or_retired_while_on_screen(open_browser, audio, store):
    """A rename keeps the label, a merge counts for the successor, a label of a retired class is refused."""
    user = open_browser(audio)
    page = user.context.new_page()
    page.route("**/state", lambda route: route.abort())  # only the response to a label tells the page about a change
    page.goto(f"{user.server.url}/?project={audio.id}", wait_until="domcontentloaded")
    wait_for_card(page)
    zero, one, two = user.classes[:3]
    rename_class(store, audio.id, zero.id, "null")
    merge_classes(store, audio.id, one.id, two.id)
    first = current_item(page)
    page.route("**/labels", lambda route: route.abort())
    page.keyboard.press("1")
    second = current_item(page)
    page.keyboard.press("2")
    page.unroute("**/labels")
    saved(page)
    assert user.pool.item(first).class_id == zero.id
    assert user.pool.counts().per_class[two.id] == 1
    retire_class(store, audio.id, user.classes[-1].id)
    third = current_item(page)
    page.keyboard.press("0")
    expect(page.locator(".message:not([hidden]) .words")).to_contain_text("'nine' was retired")
    page.locator(".message .show").click()
    page.wait_for_selector(f".screen[data-item-id='{third}']")
    page.keyboard.press("4")
    saved(page)
    assert user.pool.item(third).class_id is not None
    assert second != third


def test_labels_in_an_archived_project_or_of_a_removed_person_are_refused_with_a_message(
    open_browser, audio, images, store
):
    """The card shows the reason, and no event is stored."""
    user = open_browser(audio, "Leaving Person")
    page = user.label_tab()
    archive_project(store, audio.id)
    page.keyboard.press("1")
    expect(page.locator(".message:not([hidden]) .words")).to_contain_text("is archived; the label was not stored")
    assert user.events() == []
    other = open_browser(images, "Removed Person")
    page = other.label_tab()
    remove_annotator(store, other.person.id)
    page.keyboard.press("1")
    expect(page.locator(".message:not([hidden]) .words")).to_contain_text("The annotator was removed")
    assert other.events() == []


def test_labels_wait_for_the_next_sign_in_when_a_ticket_has_run_out(open_browser, audio):
    """Labels stay in the browser while tickets are refused; with a valid ticket they arrive."""
    user = open_browser(audio)
    page = user.label_tab()
    page.route("**/labels", lambda route: route.fulfill(status=401, json={"error": "You are signed out."}))
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.wait_for_selector(".saved[data-state='lost']")
    expect(page.locator(".saved .words")).to_have_text("2 unsaved — sign in again")
    page.unroute("**/labels")
    saved(page)
    assert len(user.events()) == 2
