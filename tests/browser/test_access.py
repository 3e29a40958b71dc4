"""The real server with unauthorized requests: no session, foreign origins, invalid addresses, a page that fails."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from playwright.sync_api import Route, expect
from sqlalchemy import update
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.web.routes.media import media_path
from core.config import RoundConfig
from storage.database.schema import Round
from storage.rounds.log import RoundLog
from tests.browser.conftest import at_rest, saved


def status(address: str, **headers: str) -> int:
    request = urllib.request.Request(address, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_nothing_private_is_served_without_a_session(server, open_browser, audio):
    """On the running server, Streamlit's own routes included."""
    item = open_browser(audio).pool.items()[0]
    assert status(server.url + media_path(item, "file")) == 401
    for path in ("/media/abc.png", f"/media/{item.sha256}.wav"):
        assert status(server.url + path) == 401
    for path in ("/app/static/winnow.sqlite", "/app/static/../winnow.sqlite"):
        assert status(server.url + path) in (400, 404) or b"<!" in urllib.request.urlopen(server.url + path).read(20)
    assert status(server.url + "/_stcore/health", Host="evil.example") == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_a_websocket_from_another_page_is_refused(server, origin):
    """Checked against the running server."""
    address = server.url.replace("http", "ws") + "/_stcore/stream"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, origin=origin, open_timeout=60)
    assert refused.value.response.status_code == 403
    with connect(address, origin=server.url, open_timeout=60):
        pass


def test_invalid_addresses_show_the_app_and_no_stack_trace(open_browser, audio):
    """Values in the address that are not identifiers are ignored."""
    user = open_browser(audio)
    page = user.context.new_page()
    for query in ("project=99999999999999999999999&page=-1", "project=../../etc/passwd&project=%00&x=NaN"):
        page.goto(f"{user.server.url}/grid?{query}")
        page.wait_for_selector(".st-key-topbar")
        page.wait_for_selector(".tray")
        at_rest(page)
        assert page.locator("[data-testid='stException']").count() == 0


def test_a_page_that_fails_shows_a_number_and_others_go_on(open_browser, audio, images, store):
    """A damaged round breaks one project's Train screen; labeling and other sessions are not affected."""
    row = RoundLog(store, audio.id).request(RoundConfig())
    with store.write() as connection:
        connection.execute(update(Round).where(Round.id == row.id).values(status="failed", config="{damaged"))
    broken = open_browser(audio, "Unlucky Person")
    page = broken.tab("train")
    expect(page.get_by_test_id("stAlert")).to_contain_text("error")
    at_rest(page)
    text = page.get_by_test_id("stAlert").inner_text()
    assert "Traceback" not in text and "damaged" not in text
    other = open_browser(images, "Lucky Person")
    page = other.label_tab()
    page.keyboard.press("1")
    saved(page)
    assert len(other.events()) == 1


def test_a_screen_opened_by_its_address_loads_its_pictures_when_the_session_begins(server, lend_context, images):
    """The page requests pictures when it is drawn, which may be before the session cookie is set."""
    page = lend_context(server).new_page()
    page.goto(f"{server.url}/label", wait_until="domcontentloaded")
    expect(page.get_by_text("Who is labeling?")).to_be_visible()
    expect(page.get_by_text("Page not found")).to_have_count(0)
    held: list[Route] = []
    begun = False
    page.route("**/api/session", lambda route: route.continue_() if begun else held.append(route))
    page.goto(f"{server.url}/data?project={images.id}", wait_until="domcontentloaded")
    page.get_by_role("textbox").first.fill("Ana Koller")
    with page.expect_response(lambda answer: answer.status == 401 and "/api/media/" in answer.url):
        page.keyboard.press("Enter")
    begun = True
    while held:
        held.pop().continue_()
    page.wait_for_function(
        """() => { const all = [...document.querySelectorAll("img[src*='/api/media/']")];
        return all.length > 0 && all.every((one) => one.naturalWidth > 0); }"""
    )
