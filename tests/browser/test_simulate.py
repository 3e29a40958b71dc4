"""Simulate on the Train screen, with a real worker: requested, shown again after a reload, read, cancelled, removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.simulation import requests as simulation_requests
from storage.database.store import Store
from tests.app import sample_store
from tests.app.simulation.test_requests import with_truth
from tests.browser.conftest import Server, at_rest, own_server, running_worker
from tests.round_pools import draw_project

VERY_SLOW = 400_000  # ms: processes that load torch on a busy machine


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    yield from own_server(tmp_path)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with Store.open(home=server.home) as opened:
        yield opened


def fill(page: Page, label: str, value: str) -> None:
    field = page.get_by_label(label, exact=True)
    field.fill(value)
    field.press("Enter")
    expect(field).to_have_value(value)
    at_rest(page)


@pytest.mark.timeout(1200)
def test_a_simulation_is_requested_run_shown_cancelled_and_removed(open_browser, store):
    project = with_truth(draw_project(store, 36, n_held_out=12, name="Shapes with <i>hidden</i> truth"))
    user = open_browser(project)
    page = user.tab("train")
    card = page.locator(".st-key-card-simulate")
    expect(card.get_by_text("24 items with hidden labels, 12 test items")).to_be_visible()
    fill(page, "First labels", "30")
    expect(card.get_by_text("60 labels are needed, but only 24 items have a hidden label.")).to_be_visible()
    expect(card.get_by_role("button", name="Start simulation")).to_be_disabled()
    fill(page, "First labels", "3")
    fill(page, "Rounds", "0")
    fill(page, "Seeds", "2")
    page.get_by_label("Simulated training", exact=True).click()
    page.keyboard.type("Smoke")  # the menu draws only the options in view
    page.get_by_role("option", name="Smoke").click()
    expect(card.get_by_text(re.compile("2 trainings, 3 labels. Estimated .* Rounds take priority"))).to_be_visible()

    card.get_by_role("button", name="Start simulation").click()
    expect(card.get_by_text("No worker is running. Start one with: python -m app worker")).to_be_visible()
    page.reload()
    expect(card.get_by_text(re.compile("3 to 3 labels · 2 seeds · Smoke test · waiting"))).to_be_visible()
    with running_worker(user.server):
        expect(card.get_by_text(re.compile("2 seeds · Smoke test · done"))).to_be_visible(timeout=VERY_SLOW)
        first = read_the_results(page, store, project.id)
        cancel_and_remove_another(page, store, project.id, first)
    assert user.outside == []

    plain = sample_store.image_project(store, "No truth to simulate with", 4)
    page.goto(f"{user.server.url}/train?project={plain.id}")
    expect(page.get_by_role("button", name="Start round")).to_be_visible()
    expect(card).to_have_count(0)


def read_the_results(page: Page, store: Store, project_id: int) -> int:
    """Curves, tables and the file; gives the simulation's id."""
    card = page.locator(".st-key-card-simulate")
    at_rest(page)
    card.get_by_role("button", name="Results", exact=True).click()
    expect(card.get_by_text("2 seeds, band of one standard deviation, test items")).to_be_visible()
    expect(card.locator(".js-plotly-plot .legendtext")).to_have_text(["Bilevel coreset", "Random"])
    expect(card.locator("table").first.locator("th")).to_have_text(["strategy", "3 labels"])
    expect(card.locator("table").nth(1)).to_contain_text("labels to reach 90 %")
    with page.expect_download() as saved:
        card.get_by_role("button", name="Download results.json").click()
    downloaded = json.loads(saved.value.path().read_text())
    [first] = simulation_requests.listed(store, project_id)
    assert downloaded == simulation_requests.document(store, first.id) and len(downloaded["records"]) == 4
    found = simulation_requests.records(store, first.id)
    by_strategy = [[one.accuracy for one in found if one.strategy == name] for name in ("bico", "uniform")]
    assert by_strategy[0] == by_strategy[1]  # the model of the initial labels is shared
    return first.id


def cancel_and_remove_another(page: Page, store: Store, project_id: int, first: int) -> None:
    card = page.locator(".st-key-card-simulate")
    fill(page, "Rounds", "2")
    expect(card.get_by_text(re.compile("trainings, 3 to 23 labels. Estimated"))).to_be_visible()
    card.get_by_role("button", name="Start simulation").click()
    card.get_by_role("button", name="Cancel").click()
    expect(card.get_by_text(re.compile("3 to 23 labels · 2 seeds · .* · cancelled"))).to_be_visible(timeout=VERY_SLOW)
    cancelled = simulation_requests.listed(store, project_id)[0]
    assert not cancelled.running
    expect(card.get_by_role("button", name="Resume")).to_be_visible()
    at_rest(page)
    page.locator(f".st-key-simulation-{cancelled.id}").get_by_role("button", name="Remove").click()
    expect(card.get_by_role("button", name="Resume")).to_have_count(0)
    assert [one.id for one in simulation_requests.listed(store, project_id)] == [first]
