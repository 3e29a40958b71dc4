"""The Content-Security-Policy holds on every screen: no violation, nothing blocked, and no frame of another page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from app.views.figures.map import FEW_POINTS
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow
from tests.app import sample_store
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import Server, at_rest, wait_for_card
from tests.browser.screens import READY

LISTEN = """window.violations = [];
document.addEventListener('securitypolicyviolation', (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));"""


@pytest.fixture(scope="module")
def project(store: Store) -> ProjectRow:
    made = sample_store.audio_project(store, "Policy", 12)
    finish_round(store, made, [0, 1, 2], accuracy=0.6)
    pool, known = Pool(store, made.id), list_classes(store, made.id)
    ana = annotator_named(store, "Ana Koller").id
    for item in pool.items()[:3]:
        pool.label(item.id, known[0].id, annotator=ana)
    return made


def test_no_screen_violates_the_policy(open_browser, server: Server, project: ProjectRow):
    page = open_browser(project).context.new_page()
    page.add_init_script(LISTEN)
    violations: list[str] = []
    page.on(
        "console",
        lambda message: violations.append(message.text) if "Content Security Policy" in message.text else None,
    )
    answer = page.goto(f"{server.url}/?project={project.id}", wait_until="domcontentloaded")
    assert answer is not None and "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    wait_for_card(page)
    found: dict[str, list[str]] = {}
    for screen, ready in READY.items():
        page.locator(".st-key-tabs a", has_text=screen).click()
        expect(page.locator(".st-key-tab-current")).to_have_text(screen)
        page.wait_for_selector(ready)
        at_rest(page)
        found[screen] = page.evaluate("window.violations")
    assert found == {screen: [] for screen in READY} and violations == []


def test_a_map_drawn_with_webgl_does_not_violate_the_policy(open_browser, server: Server, store: Store):
    project = sample_store.image_project(store, "Large map", FEW_POINTS + 100)
    finish_round(store, project, [0, 1, 2], accuracy=0.6)
    page = open_browser(project).context.new_page()
    page.add_init_script(LISTEN)
    page.goto(f"{server.url}/map?project={project.id}", wait_until="domcontentloaded")
    page.wait_for_selector(".gl-container canvas")
    at_rest(page)
    found = page.evaluate("window.violations")
    assert found == []


def test_the_policy_stops_a_script_and_a_picture_of_another_host(server: Server, lend_context):
    page = lend_context(server).new_page()
    page.add_init_script(LISTEN)
    page.goto(server.url, wait_until="domcontentloaded")
    page.evaluate(
        """() => { for (const [tag, name] of [['script', 'x.js'], ['img', 'x.png'], ['iframe', '']])
        document.body.append(Object.assign(document.createElement(tag), { src: `http://other.invalid/${name}` })); }"""
    )
    page.wait_for_function("window.violations.length >= 3")
    directives = {one.split(" ")[0] for one in page.evaluate("window.violations")}
    assert {"script-src-elem", "img-src", "frame-src"} <= directives
