"""Signing in with an identity provider, in a real browser against a provider on loopback (OpenID Connect)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from app.web.access import SESSION_COOKIE
from app.web.routes.media import media_path
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named, list_annotators
from storage.projects.classes import list_classes
from storage.projects.projects import get_project
from storage.projects.roles import list_members
from tests.app import sample_store
from tests.browser.conftest import SLOW, Server, at_rest, choose, current_item, eventually, saved, wait_for_card
from tests.browser.identity_provider import CLIENT_ID, CLIENT_SECRET, Provider, running_provider
from tests.free_ports import free_port

SECRETS = """[auth]
redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
cookie_secret = "cookies-of-a-test-0123456789-0123456789"
client_id = "{client_id}"
client_secret = "{client_secret}"
server_metadata_url = "{provider}/.well-known/openid-configuration"
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as running:
        yield running


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[tuple[Server, Store]]:
    """A server with sign-in by this provider; its secrets are in a separate home folder."""
    home, user, port = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("user"), free_port()
    (user / ".streamlit").mkdir()
    provider.redirect_uris.add(f"http://127.0.0.1:{port}/oauth2callback")
    text = SECRETS.format(port=port, client_id=CLIENT_ID, client_secret=CLIENT_SECRET, provider=provider.url)
    (user / ".streamlit" / "secrets.toml").write_text(text)
    extra = {"HOME": str(user), "WINNOW_ALLOWED_EMAILS": "@lab.example"}
    with Store.open(home=home) as store:
        sample_store.audio_project(store, "Spoken digits", 4)
        server = Server(home, port, extra).start()
        yield server, store
        server.stop()


def entering(context: BrowserContext, server: Server, person: str) -> Page:
    page = context.new_page()
    page.goto(server.url, wait_until="domcontentloaded")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name=person).click()
    return page


def statuses(context: BrowserContext, server: Server, item: object, ticket: str = "") -> list[int]:
    """The status codes of the media and API routes for this browser's cookies."""
    seen = [context.request.get(server.url + media_path(item, "file")).status]
    seen.append(context.request.get(server.url + "/media/abc.png").status)
    headers = {"Origin": server.url} | ({"X-Winnow-Ticket": ticket} if ticket else {})
    answer = context.request.post(f"{server.url}/api/projects/1/cards", data={"n": 1}, headers=headers)
    return [*seen, answer.status]


def test_signing_in_gives_the_name_and_opens_media_and_routes_signing_out_closes_them(
    signed: tuple[Server, Store], provider: Provider, chromium: Browser
):
    server, store = signed
    item = Pool(store, 1).items()[0]
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(SLOW)
    assert statuses(context, server, item) == [401, 401, 401]
    page = entering(context, server, "ana")
    wait_for_card(page)
    assert provider.problems == []
    person = next(row for row in list_annotators(store) if row.name == "Ana <b>Koller</b>")
    expect(page.locator(".st-key-person")).to_have_text(re.compile(r"^\s*AN"))
    page.wait_for_function("() => fetch('/media/abc.png').then((answer) => answer.status !== 401)")
    assert statuses(context, server, item)[0] == 200

    # The label is stored under the name the provider gave; a reload needs no second sign-in.
    shown, chosen = current_item(page), list_classes(store, 1)[2]
    page.keyboard.press(str(chosen.key))
    saved(page)
    stored = Pool(store, 1).recent(person.id, 5)
    assert [(event.item_id, event.class_id) for event in stored] == [(shown, chosen.id)]
    page.reload()
    wait_for_card(page)
    assert len([row for row in list_annotators(store) if row.name == person.name]) == 1

    at_rest(page)
    page.locator(".st-key-person button").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    eventually(page, lambda: SESSION_COOKIE in {cookie["name"] for cookie in context.cookies()}, False)
    assert statuses(context, server, item) == [401, 401, 401]
    context.close()


def test_an_account_that_is_not_on_the_list_is_refused(signed: tuple[Server, Store], chromium: Browser):
    server, store = signed
    context = chromium.new_context()
    context.set_default_timeout(SLOW)
    page = entering(context, server, "eve")
    expect(page.get_by_text("is not allowed to sign in here", exact=False)).to_be_visible()
    at_rest(page)
    assert page.locator(".screen").count() == 0
    assert statuses(context, server, Pool(store, 1).items()[0]) == [401, 401, 401]
    assert "Eve" not in [row.name for row in list_annotators(store)]
    context.close()


def test_a_new_project_belongs_to_its_creator_who_gives_roles_on_data(signed: tuple[Server, Store], chromium: Browser):
    server, store = signed
    ben = annotator_named(store, "Ben")
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SLOW)
    page = entering(context, server, "ana")
    wait_for_card(page)
    page.get_by_role("link", name="Data").click()
    card = page.locator(".st-key-card-members")
    expect(card).to_contain_text("Everyone who can sign in is an owner")  # made by the operator: open
    page.get_by_role("button", name="New project").click()
    page.get_by_placeholder("Garden birds").fill("Garden birds")
    page.get_by_role("button", name="Create project").click()
    expect(card).to_contain_text("Ana <b>Koller</b>")
    made = get_project(store, "Garden birds")
    ana = next(row for row in list_annotators(store) if row.name == "Ana <b>Koller</b>")
    assert [(row.annotator_id, row.role) for row in list_members(store, made.id)] == [(ana.id, "owner")]

    choose(page, card.get_by_role("combobox", name="Person"), "Ben")
    card.get_by_role("button", name="Set role").click()
    eventually(page, lambda: [row.role for row in list_members(store, made.id)], ["owner", "viewer"])
    expect(card).to_contain_text("Ben")
    assert list_members(store, made.id)[1].annotator_id == ben.id
    context.close()
