"""The whole loop in a real browser, with a real worker: from an empty folder to a labeled set on disk."""

from __future__ import annotations

import csv
import dataclasses
import io
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from app.web.server_command import ROOT
from storage.database.schema import Item
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import get_project, update_project
from storage.rounds.log import RoundLog
from tests.browser.conftest import (
    SLOW,
    Server,
    at_rest,
    current_item,
    own_server,
    running_worker,
    saved,
    wait_for_card,
)
from tests.browser.test_data import choose, upload

SAMPLES = ROOT / "sample_data" / "spoken_digits"
TIMEOUT_SECONDS = 240_000  # ms; a smoke round takes seconds on a free machine


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    yield from own_server(tmp_path)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with Store.open(home=server.home) as opened:
        yield opened


@pytest.fixture
def worker(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    with running_worker(server) as process:
        yield process


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """60 clips to label and 20 test clips, in class folders, and one file that is not a clip."""
    rows = list(csv.DictReader((SAMPLES / "manifest.csv").read_text().splitlines()))
    target = tmp_path / "digits.zip"
    with zipfile.ZipFile(target, "w") as packed:
        for split, per_class in (("train", 6), ("test", 2)):
            for label in sorted({row["label"] for row in rows}):
                same = [row for row in rows if row["split"] == split and row["label"] == label][:per_class]
                for row in same:
                    packed.write(SAMPLES / row["path"], f"{split}/{label}/{row['path'].replace('/', '-')}")
        packed.writestr("train/0/broken.wav", b"this is no sound")
    return target


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.3)


def label_the_truth(page: Page, store: Store, project_id: int, n: int) -> list[int]:
    """Press the key of each card's true class; return the items in order."""
    keys = {row.id: row.key for row in list_classes(store, project_id)}
    seen = []
    for _ in range(n):
        item_id = current_item(page)
        with store.read() as connection:
            truth = connection.execute(select(Item.truth_class_id).where(Item.id == item_id)).scalar_one()
        seen.append(item_id)
        page.keyboard.press(str(keys[truth]))
        page.wait_for_function(
            """(id) => {
              const roots = [...document.querySelectorAll('.stBidiComponent *')].filter((e) => e.shadowRoot);
              const screen = roots.map((e) => e.shadowRoot.querySelector('.screen')).find(Boolean);
              return screen && screen.dataset.itemId !== String(id);
            }""",
            arg=item_id,
            timeout=SLOW,
        )
    saved(page)
    return seen


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_from_an_empty_folder_to_a_labeled_set(open_browser, audio, store, server, worker, archive):
    user = open_browser(audio)
    page = user.tab("data")
    page.set_default_timeout(90_000)

    # A new project; files are uploaded, previewed and imported.
    page.get_by_role("button", name="New project").click()
    page.get_by_placeholder("Garden birds").fill("Digits from a zip")
    page.get_by_placeholder("One per line").fill("\n".join(str(digit) for digit in range(10)))
    page.get_by_role("button", name="Create project").click()
    expect(page.get_by_text("Add files to Digits from a zip")).to_be_visible()
    project = get_project(store, "Digits from a zip")
    upload(page, str(archive))
    expect(page.get_by_text("Nothing is imported yet")).to_be_visible()
    look = page.get_by_role("button", name="Preview import")
    expect(look).to_be_visible()
    meaning = page.get_by_role("combobox", name="Existing labels")
    choose(page, meaning, "Hide; use only for evaluation")
    look.click()
    expect(page.get_by_text("80", exact=True)).to_be_visible(timeout=TIMEOUT_SECONDS)
    expect(page.get_by_text("1 file will be skipped")).to_be_visible()
    assert Pool(store, project.id).counts().total == 0
    page.get_by_role("button", name="Import 80 files").click()
    until(lambda: Pool(store, project.id).counts().total == 80, TIMEOUT_SECONDS / 1000, "the import did not end")
    assert Pool(store, project.id).counts().held_out == 20
    settings = get_project(store, project.id).settings
    update_project(store, project.id, settings=dataclasses.replace(settings, preset="smoke"))

    # Ten labels by keyboard; the round starts automatically and is followed.
    page.goto(f"{server.url}/?project={project.id}")
    wait_for_card(page)
    first = label_the_truth(page, store, project.id, 10)
    assert Pool(store, project.id).counts().labeled == len(set(first)) == 10
    log = RoundLog(store, project.id)
    until(lambda: log.latest() is not None, TIMEOUT_SECONDS / 1000, "no round was asked for")
    page.goto(f"{server.url}/train?project={project.id}")
    until(lambda: log.latest("finished") is not None, TIMEOUT_SECONDS / 1000, "the round did not end")
    expect(page.get_by_text("Test accuracy").first).to_be_visible(timeout=TIMEOUT_SECONDS)
    round_one = log.latest("finished")
    assert round_one is not None and round_one.number == 1
    picks = [pick.item_id for pick in log.picks(round_one.id)]
    assert len(picks) == 10 and not set(picks) & set(first)

    # The map shows the picks; the batch is served in their order.
    page.goto(f"{server.url}/map?project={project.id}")
    expect(page.get_by_text("current picks, in order")).to_be_visible(timeout=60_000)
    expect(page.locator(".textpoint text")).to_have_count(10, timeout=60_000)
    page.goto(f"{server.url}/?project={project.id}")
    wait_for_card(page)
    assert label_the_truth(page, store, project.id, 10) == picks
    until(
        lambda: (log.latest("finished") or round_one).number == 2,
        TIMEOUT_SECONDS / 1000,
        "the second round did not end",
    )

    # The export holds what was labeled, with its provenance.
    page.goto(f"{server.url}/export?project={project.id}")
    page.get_by_text("CSV: opens in any spreadsheet").click()
    page.get_by_role("button", name="Create export").click()
    link = page.get_by_role("link", name="Download")
    expect(link).to_be_visible(timeout=TIMEOUT_SECONDS)
    at_rest(page)
    with page.expect_download() as download:
        link.click()
    with zipfile.ZipFile(download.value.path()) as packed:
        table = next(name for name in packed.namelist() if name.endswith("labels.csv"))
        rows = list(csv.DictReader(io.TextIOWrapper(packed.open(table), "utf-8-sig")))
    assert len(rows) == 20
    assert all(Path(row["name"]).parent.name == row["label"] for row in rows)
    assert {row["annotator"] for row in rows} == {user.person.name}
    chosen = sorted(int(row["pick_order"]) for row in rows if row["round"] == "1")
    assert chosen == list(range(1, 11))
    assert user.outside == []
