"""The model of a round in a real browser: rounds are named and compared on Train, and exported on Export."""

from __future__ import annotations

import zipfile

from playwright.sync_api import expect

from storage.exporting.verify import verify_folder
from storage.projects.projects import get_project
from storage.rounds.names import round_names, set_round_name
from tests.app.real_rounds import quick_settings, run_round_here
from tests.browser.conftest import at_rest, eventually
from tests.round_pools import draw_project


def test_two_rounds_are_named_compared_and_exported(open_browser, store, tmp_path):
    drawn = draw_project(store, 30, n_held_out=6, name="Compared shapes")
    rows = []
    for start, seed in ((6, 0), (12, 1)):
        drawn.label(drawn.item_ids[start : start + 6])
        rows.append(run_round_here(store, drawn.project_id, quick_settings(seed=seed, image_size=16)))
    user = open_browser(get_project(store, drawn.project_id))
    page = user.tab("train")
    card = page.locator(".st-key-card-versions")
    expect(card).to_contain_text("points on 6 test items")
    expect(card).to_contain_text("exact McNemar test")
    expect(card).to_contain_text("Labels: 6 → 12")
    expect(card).to_contain_text("of 18 items without a label in both")

    page.locator(f".st-key-round-row-{rows[0].id}").get_by_role("button", name="Open").click()
    name = page.get_by_role("dialog").get_by_label("Name", exact=True)
    name.fill("<b>baseline</b>")
    name.press("Enter")
    eventually(page, lambda: round_names(store, drawn.project_id), {rows[0].id: "<b>baseline</b>"})

    set_round_name(store, drawn.project_id, rows[0].id, "baseline")
    page = user.tab("export")
    card = page.locator(".st-key-card-model")
    expect(card.get_by_label("Round", exact=True)).to_have_value("Round 2")
    card.get_by_role("button", name="Export model").click()
    made = page.locator(".st-key-card-jobs-model")
    link = made.get_by_role("link", name="Download")
    expect(link).to_be_visible(timeout=120_000)
    expect(made).to_contain_text("6 items, 95 % interval")
    at_rest(page)
    with page.expect_download() as download:
        link.click()
    with zipfile.ZipFile(download.value.path()) as packed:
        packed.extractall(tmp_path / "model")
    found = verify_folder(tmp_path / "model")
    assert found.problems == [] and found.source["round"] == 2
    assert user.outside == []
