"""Summarize in a real browser: start it, wait for the job, see the accuracy of the summary, download it."""

from __future__ import annotations

import csv
import io
import itertools
import re
import zipfile

import pytest
from playwright.sync_api import expect

from storage.projects.projects import get_project
from tests.round_pools import draw_project

_numbers = itertools.count()  # a new name when the test is tried again


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_summary_is_requested_measured_and_downloaded(open_browser, store):
    drawn = draw_project(store, 36, n_held_out=9, name=f"Shapes to summarize {next(_numbers)}")
    drawn.label(drawn.item_ids[9:])
    page = open_browser(get_project(store, drawn.project_id)).tab("export")
    card = page.locator(".st-key-card-summarize")
    expect(card.get_by_text("Items are selected for softmax regression")).to_be_visible(timeout=60_000)
    expect(card.get_by_text("With 27 labels (fewer than 100)")).to_be_visible()
    size = card.get_by_role("spinbutton", name="Size")
    size.fill("5")
    size.press("Enter")
    card.get_by_role("button", name="Summarize").click()
    jobs = page.locator(".st-key-card-jobs-summary")
    expect(jobs.get_by_text("with a random subset of the same size (5 draws)")).to_be_visible(timeout=240_000)
    expect(jobs.get_by_text("of 27 labeled; measured on 9 test items")).to_be_visible()
    expect(jobs.locator(".js-plotly-plot")).to_be_visible()
    verdict = re.compile("This summary is (better|worse|not clearly better) than a random subset of the same size")
    expect(jobs.get_by_text(verdict)).to_be_visible()
    with page.expect_download() as downloading:
        jobs.get_by_role("link", name="Download summary-").click()
    with zipfile.ZipFile(downloading.value.path()) as packed:
        rows = list(csv.DictReader(io.StringIO(packed.read("labels.csv").decode("utf-8-sig"))))
    assert len(rows) == 5 and all(float(row["weight"]) > 0 for row in rows)
    assert {row["sha256"] for row in rows} <= set(drawn.hashes[9:])
