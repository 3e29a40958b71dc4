"""Long recordings in a real browser: cut at import, shown on a strip, played with the seconds before and after."""

from __future__ import annotations

import io
import itertools
import re

import numpy as np
import pytest
import soundfile
from playwright.sync_api import expect

from storage.importing.open import open_source
from storage.importing.run import ImportOptions, run_import
from storage.labeling.pool import Pool
from storage.media.windows import WindowOptions
from storage.projects.projects import ProjectRow, create_project
from storage.projects.recordings import WINDOW_CLASSES, list_recordings
from tests.browser.conftest import at_rest, current_item, eventually, saved, wait_for_card
from tests.browser.test_data import upload

RATE = 8_000
_numbers = itertools.count(1)


def flac(seconds: float) -> bytes:
    out = io.BytesIO()
    values = np.random.default_rng(next(_numbers)).uniform(-0.5, 0.5, round(seconds * RATE))
    soundfile.write(out, values, RATE, format="FLAC")
    return out.getvalue()


@pytest.fixture
def night(store, tmp_path) -> ProjectRow:
    """Sixty windows of one recording of a minute."""
    project = create_project(store, f"Night {next(_numbers)}", "audio", ["owl", "fox", *WINDOW_CLASSES])
    (tmp_path / "night.flac").write_bytes(flac(60))
    run_import(store, project.id, open_source(tmp_path), ImportOptions(windows=WindowOptions(seconds=1)))
    return project


def test_a_window_is_played_in_its_place_and_with_its_context(open_browser, night):
    user = open_browser(night)
    page = user.label_tab()
    item = user.pool.item(current_item(page))
    number = item.first_frame // RATE
    place = page.locator(".recording .place")
    expect(place).to_contain_text(f"Window {number + 1} of 60, 0:00:{number:02d}")
    expect(place).to_contain_text("label the most prominent class")
    expect(page.locator(".clock")).to_contain_text("/ 1.00 s")
    page.keyboard.press("x")
    mark = page.locator(".picture .window")
    expect(mark).to_be_visible()
    before, after = min(number, 5), min(59 - number, 5)
    expect(page.locator(".clock")).to_contain_text(f"/ {before + 1 + after:.2f} s")
    picture, window = page.locator(".picture").bounding_box(), mark.bounding_box()
    assert picture is not None and window is not None
    share = (window["x"] - picture["x"]) / picture["width"]
    assert abs(share - before / (before + 1 + after)) < 0.01
    page.keyboard.press("x")
    expect(mark).to_be_hidden()
    expect(page.locator(".clock")).to_contain_text("/ 1.00 s")
    page.keyboard.press("1")
    saved(page)
    wait_for_card(page)
    expect(page.locator(".recording .labeled")).to_have_count(1)
    left = page.locator(".recording .labeled").evaluate("e => e.style.left")
    assert float(left.rstrip("%")) == pytest.approx(100 * number / 60, abs=0.01)
    assert [event.item_id for event in user.events()] == [item.id]


def test_the_import_form_suggests_windows_and_cuts_the_recording(open_browser, store, audio):
    project = create_project(store, f"Field {next(_numbers)}", "audio", ["owl"])
    page = open_browser(project).tab("data")
    upload(page, [{"name": "long.flac", "mimeType": "audio/flac", "buffer": flac(90)}])
    page.get_by_role("button", name="Preview import").click()
    expect(page.get_by_text(re.compile("1 file is longer than 60 s"))).to_be_visible()
    page.get_by_text("Cut recordings into windows", exact=True).first.click()
    at_rest(page)
    page.get_by_role("button", name="Preview import").click()
    page.get_by_role("button", name="Import 1 file").click()
    eventually(page, lambda: Pool(store, project.id).counts().total, 18)
    expect(page.get_by_text("18 imported, 1 recording cut into windows, 0 duplicates")).to_be_visible()
    [recording] = list_recordings(store, project.id)
    assert (recording.name, recording.n_windows, recording.seconds) == ("long.flac", 18, 90.0)
