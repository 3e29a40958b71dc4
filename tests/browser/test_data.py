"""Data in a real browser: a new project, files previewed before they are imported, changes of classes."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Locator, Page, expect

from app.jobs import jobs
from storage.labeling.groups import groups_on_both_sides
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project, get_project
from tests.app import sample_store
from tests.browser.conftest import AnnotatorBrowser, at_rest, choose, eventually
from tests.storage import made_media

HOSTILE = "<img src=x onerror=alert(1)> ![x](http://203.0.113.7/a.png)"
N_MANY = 2_400
_numbers = itertools.count(1)


def wav(name: str, number: int) -> dict[str, object]:
    return {"name": name, "mimeType": "audio/wav", "buffer": sample_store.clip(number)}


def upload(page: Page, files: Any) -> None:
    """Upload files to the drop zone of the project on screen, as soon as it accepts files."""
    at_rest(page)
    page.wait_for_selector(".drop[data-ready='yes']")
    page.locator("input.files").first.set_input_files(files)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More clips than an import stores at one time."""
    folder = tmp_path_factory.mktemp("many")
    head = io.BytesIO()
    soundfile.write(head, np.zeros(800, np.int16), 8_000, format="WAV")
    whole = head.getvalue()
    for k in range(N_MANY):
        (folder / f"{k:04d}.wav").write_bytes(whole[:-4] + k.to_bytes(4, "little"))
    return folder


def test_a_project_is_created_and_its_files_are_previewed_before_anything_is_written(open_browser, store, audio):
    """Names of files, classes and projects are shown literally, and nothing is fetched."""
    user, title = open_browser(audio), f"Garden {next(_numbers)} {HOSTILE}"
    page = user.tab("data")
    page.get_by_role("button", name="New project").click()
    card = page.locator(".st-key-card-new-project")
    card.get_by_label("Name", exact=True).fill(audio.name)
    card.get_by_label("Classes", exact=True).fill(f"robin\nwren\nrobin\n\n {HOSTILE} ")
    card.get_by_role("button", name="Create project").click()
    expect(card.get_by_role("alert")).to_contain_text(audio.name)  # there is one of that name
    at_rest(page)
    card.get_by_label("Name", exact=True).fill(title)
    card.get_by_role("button", name="Create project").click()
    expect(page.get_by_text(f"Add files to {title}")).to_be_visible()
    made = get_project(store, title)
    assert [row.name for row in list_classes(store, made.id)] == ["robin", "wren", HOSTILE]

    upload(
        page,
        [
            wav("one.wav", 1),
            wav("<img src=x onerror=alert(1)>.wav", 2),
            wav("page.wav", 3) | {"buffer": b"<html><script>alert(1)</script></html>"},
        ],
    )
    expect(page.get_by_text("3 files uploaded. Nothing is imported yet.")).to_be_visible()
    page.get_by_role("button", name="Preview import").click()
    expect(page.get_by_text("1 file will be skipped:")).to_be_visible()
    expect(page.locator(".winnow-problems li")).to_contain_text(["page.wav"])
    assert Pool(store, made.id).counts().total == 0
    page.get_by_role("button", name="Import 2 files").click()
    done = page.locator(".st-key-card-jobs-import")
    expect(done).to_contain_text("2 imported, 0 duplicates, 0 already in the project, 1 rejected")
    expect(done).to_contain_text(f"Import into {title}")
    names = sorted(item.name for item in Pool(store, made.id).items())
    assert names == ["<img src=x onerror=alert(1)>.wav", "one.wav"]
    expect(page.locator(".st-key-card-import .winnow-heading")).to_contain_text("2 items, 0 test items")
    eventually(page, lambda: list((user.server.home / "uploads").iterdir()), [])  # removed after the end is reported
    at_rest(page)
    done.get_by_role("button", name="Dismiss").click()
    expect(done).to_have_count(0)
    assert user.outside == []


def test_an_import_shows_its_progress_and_can_be_cancelled(open_browser, store, many):
    user = open_browser(create_project(store, f"Stopped {next(_numbers)}", "audio", ["a", "b"]))
    page = user.tab("data")
    page.get_by_text("On the server", exact=True).click()
    field = page.get_by_label("Folder, zip or manifest on the server", exact=True)
    field.fill("/nowhere/at all")
    field.press("Enter")
    expect(page.get_by_text("was not found", exact=False)).to_be_visible()
    field.fill(str(many))
    field.press("Enter")
    page.get_by_role("button", name="Preview import").click()
    start = page.get_by_role("button", name=f"Import {N_MANY:,} files")
    expect(start).to_be_enabled()
    card, home = page.locator(".st-key-card-jobs-import"), user.server.home
    with store.write():  # another process writes, so that the import does not finish before it is stopped
        start.click()
        expect(card.get_by_role("progressbar")).to_be_visible()
        card.get_by_role("button", name="Cancel").click()
        [job] = [view.job for view in jobs.list_jobs(home, user.project.id) if view.job.title.startswith("Import")]
        eventually(page, (home / "jobs" / job.id / "cancel").exists, True)
    expect(card.get_by_role("button", name="Dismiss")).to_be_visible()
    expect(card.locator(".winnow-heading")).to_contain_text("cancelled")
    assert user.pool.counts().total < N_MANY
    assert len(list(many.iterdir())) == N_MANY


def editor(user: AnnotatorBrowser) -> tuple[Page, Locator, Locator]:
    page = user.tab("data")
    card = page.locator(".st-key-card-classes")
    return page, card, card.locator(".winnow-chip")


def test_classes_are_added_renamed_merged_retired_and_restored(open_browser, audio, store):
    """With a name that is markup and an address."""
    user = open_browser(audio)
    user.pool.label(user.pool.items()[0].id, user.classes[1].id, annotator=user.person.id)
    page, card, chips = editor(user)
    card.get_by_label("New class", exact=True).fill(HOSTILE)
    card.get_by_role("button", name="Add").click()
    expect(chips).to_have_count(11)
    expect(chips.last).to_contain_text(HOSTILE)

    choose(page, card.get_by_label("Edit a class", exact=True), "one")
    name = card.get_by_label("Name", exact=True)
    name.fill("zero")
    name.press("Enter")
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_role("alert")).to_be_visible()  # the name is taken, and it says so
    assert [row.name for row in user.classes][:2] == ["zero", "one"]
    at_rest(page)
    name.fill("uno")
    name.press("Enter")
    card.get_by_role("button", name="Save").click()
    expect(chips.nth(1)).to_contain_text("uno")
    choose(page, card.get_by_label("Merge into", exact=True), "zero")
    expect(card).to_contain_text("1 label will count as zero")
    card.get_by_role("button", name="Merge", exact=True).click()
    expect(chips).to_have_count(10)
    expect(chips.first).to_contain_text("zero 1")
    counts = user.pool.counts().per_class
    assert counts[user.classes[0].id] == 1
    card.get_by_role("button", name="Undo merge").click()
    expect(chips.nth(1)).to_contain_text("uno 1")
    card.get_by_role("button", name="Retire").click()
    expect(chips).to_have_count(10)
    assert "uno" not in [row.name for row in user.classes]
    card.get_by_role("button", name="Restore class").click()
    expect(chips).to_have_count(11)
    assert [row.name for row in user.classes][1] == "uno"
    assert user.outside == []


def test_keys_and_colors_of_classes_are_the_projects_own(open_browser, images):
    user = open_browser(images)
    page, card, chips = editor(user)
    choose(page, card.get_by_label("Edit a class", exact=True), "two")
    key = card.get_by_label("Key", exact=True)
    key.fill(user.classes[0].key or "")
    key.press("Enter")
    card.get_by_role("button", name="Save").click()
    expect(card.get_by_role("alert")).to_be_visible()  # another class has it
    at_rest(page)
    key.fill("w")
    key.press("Enter")
    expect(card.get_by_role("alert")).to_have_count(0)
    at_rest(page)
    card.get_by_test_id("stColorPickerBlock").click()
    page.get_by_label("hex", exact=True).or_(page.locator("input[value^='#']")).last.fill("#123456")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    card.get_by_role("button", name="Save").click()
    expect(chips.nth(2).locator("kbd")).to_have_text("w")
    expect(chips.nth(2).locator("[style]")).to_have_attribute("style", "color:#123456")
    assert (user.classes[2].key, user.classes[2].color) == ("w", "#123456")


def test_settings_that_share_an_item_between_people_are_kept(open_browser, store):
    project = create_project(store, f"Shared {next(_numbers)}", "image", ["a"])
    page = open_browser(project).tab("data")
    card = page.locator(".st-key-card-project")
    field = card.get_by_label("Annotators per item", exact=True)
    field.fill("3")
    field.press("Tab")
    choose(page, card.get_by_label("Model suggestions", exact=True), "Hide on some items (bias check)")
    card.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved.", exact=True)).to_be_visible()
    kept = get_project(store, project.id).settings
    assert (kept.labels_per_item, kept.suggestions) == (3, "random")


def on_server(page: Page, path: Path) -> None:
    page.get_by_text("On the server", exact=True).click()
    field = page.get_by_label("Folder, zip or manifest on the server", exact=True)
    field.fill(str(path))
    field.press("Enter")
    page.get_by_text("How files are read").click()
    page.get_by_role("button", name="Preview import").click()


def test_a_kaggle_folder_is_mapped_before_it_is_imported(open_browser, store, tmp_path):
    """The preview says what will be label, split and class, and other columns, tables and folders can be chosen."""
    rows = ["Image_ID,Label,breed,Split", "img0,cat,Manx,train", "img1,dog,Pug,train", "img2,cat,Korat,val"]
    files = {f"images/img{n}.png": made_media.picture(seed=n) for n in range(3)}
    files |= {"train.csv": "\n".join(rows).encode(), "notes.csv": b"word,meaning\nManx,a cat\n"}
    root = made_media.write_files(tmp_path / "kaggle", files)
    project = create_project(store, f"Kaggle {next(_numbers)}", "image")
    page = open_browser(project).tab("data")
    on_server(page, root)
    card = page.locator(".st-key-card-import")
    expect(card).to_contain_text("Labels: cat 2, dog 1", timeout=30_000)
    expect(card).to_contain_text("Labels from: train.csv")
    expect(card).to_contain_text("Splits: train 2, val 1")
    expect(card).to_contain_text("including 1 validation item")
    assert Pool(store, project.id).counts().total == 0 and list_classes(store, project.id) == []
    expect(card).to_contain_text("First rows of train.csv")
    expect(page.get_by_label("Media folder", exact=True)).to_have_attribute("placeholder", "images")
    expect(card.locator("[data-testid=stDataFrame] canvas").first).to_be_visible()  # it moves what is below it
    choose(page, page.get_by_role("combobox", name="Label column"), "breed")
    page.get_by_role("button", name="Preview import").click()
    expect(card).to_contain_text("Labels: Manx 1, Pug 1, Korat 1", timeout=30_000)
    choose(page, page.get_by_role("combobox", name="Table with labels"), "No table")
    page.get_by_role("button", name="Preview import").click()
    expect(card).to_contain_text("usually not the name of a class", timeout=30_000)
    expect(page.get_by_role("button", name="Import 3 files")).to_be_disabled()
    choose(page, page.get_by_role("combobox", name="Table with labels"), "train.csv")
    page.get_by_label("Media folder", exact=True).fill("images")
    page.get_by_label("Media folder", exact=True).press("Enter")
    at_rest(page)
    page.get_by_role("button", name="Preview import").click()
    page.get_by_role("button", name="Import 3 files").click(timeout=30_000)
    eventually(page, lambda: Pool(store, project.id).counts().total, 3)
    counts = Pool(store, project.id).counts()
    assert (counts.held_out, counts.labeled) == (1, 2)
    assert [row.name for row in list_classes(store, project.id)] == ["cat", "dog"]


def test_the_column_of_the_groups_can_be_chosen(open_browser, store, tmp_path):
    """No column is called group. Items of one owner are on both sides of the split, which is reported."""
    rows = ["file,label,split,owner", "img0.png,cat,train,Ann", "img1.png,dog,train,Ben", "img2.png,cat,test,Ann"]
    files = {f"img{n}.png": made_media.picture(seed=n) for n in range(3)} | {"rows.csv": "\n".join(rows).encode()}
    root = made_media.write_files(tmp_path / "owners", files)
    project = create_project(store, f"Owners {next(_numbers)}", "image")
    page = open_browser(project).tab("data")
    on_server(page, root)
    expect(page.get_by_role("button", name="Import 3 files")).to_be_visible(timeout=30_000)
    at_rest(page)
    choose(page, page.get_by_role("combobox", name="Group column"), "owner")
    expect(page.get_by_role("button", name="Import 3 files")).to_have_count(0)
    at_rest(page)
    page.get_by_role("button", name="Preview import").click()
    page.get_by_role("button", name="Import 3 files").click(timeout=30_000)
    eventually(page, lambda: groups_on_both_sides(store, project.id), ["Ann"])


def test_the_preview_asks_whether_a_lone_folder_is_a_class(open_browser, store, tmp_path):
    """The import is possible once the question is answered, and the files have no label."""
    files = {f"audio/{number}.wav": sample_store.clip(900 + number) for number in range(2)}
    root = made_media.write_files(tmp_path / "in", files)
    project = create_project(store, f"Asked {next(_numbers)}", "audio")
    page = open_browser(project).tab("data")
    on_server(page, root)
    expect(page.get_by_text("usually not the name of a class")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Import 2 files")).to_be_disabled()
    choose(page, page.locator(".st-key-card-import").get_by_role("combobox", name="Folder names"), "No labels")
    page.get_by_role("button", name="Preview import").click()
    page.get_by_role("button", name="Import 2 files").click(timeout=30_000)
    eventually(page, lambda: Pool(store, project.id).counts().total, 2)
    assert list_classes(store, project.id) == []
