"""Two people, a disagreement, a decision, and the exported file: Review and Export in a real browser."""

from __future__ import annotations

import csv
import io
import itertools
import zipfile

from playwright.sync_api import expect

from storage.projects.annotators import annotator_named
from storage.projects.projects import get_project
from tests.app import sample_store
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import at_rest, eventually
from tests.browser.test_data import choose

_numbers = itertools.count(1)


def test_a_disagreement_is_decided_and_its_history_kept(open_browser, store):
    project = sample_store.audio_project(store, f"Two people {next(_numbers)}", 6, labels_per_item=2)
    user = open_browser(project)
    finish_round(store, project, [0, 1], confidence=0.96)
    pool, known = user.pool, user.classes
    items = [item.id for item in pool.items()]
    bea = annotator_named(store, "Bea <b>").id
    for item, (mine, hers) in zip(items, [(0, 4), (1, 1), (5, 5)], strict=False):
        pool.label(item, known[mine].id, annotator=user.person.id)
        pool.label(item, known[hers].id, annotator=bea)
    page = user.tab("review")
    case, agreed = page.locator(".st-key-card-case"), page.locator(".st-key-card-agreement")
    expect(case).to_contain_text("1 of 2 annotators disagree")
    expect(case).to_contain_text("Bea <b>: four")
    wide = "image => image.decode().then(() => image.naturalWidth)"
    eventually(page, lambda: case.locator("img").evaluate(wide), 900)
    # Krippendorff's alpha by hand: observed disagreement 2/6; expected (36 - 1 - 1 - 4 - 4) / (6 * 5); 1 - 10/26.
    expect(agreed).to_contain_text("3 items with at least two labels")
    expect(agreed.locator(".winnow-figure strong").first).to_have_text("0.62")
    expect(agreed).to_contain_text("67 %")
    case.get_by_text("History").click()
    expect(case).to_contain_text("Bea <b> labeled four")

    choose(page, case.get_by_label("Final label", exact=True).last, "four")
    case.get_by_role("button", name="Save decision", exact=True).click()
    expect(case).to_contain_text("1 of 1 the model predicts another class")
    expect(case).to_contain_text("Model: two, 96 %")
    assert pool.item(items[0]).class_id == known[4].id and pool.item(items[0]).decided
    said = [(event.kind, event.annotator_id, event.class_id) for event in pool.history(items[0])]
    assert said == [
        ("label", user.person.id, known[0].id),
        ("label", bea, known[4].id),
        ("decide", user.person.id, known[4].id),
    ]
    expect(page.locator(".st-key-card-people")).to_be_visible()
    assert user.outside == []


def test_an_export_is_counted_prepared_in_the_background_and_downloaded(open_browser, audio, store):
    user = open_browser(audio)
    finish_round(store, audio, [0, 1], confidence=0.96)
    items = [item.id for item in user.pool.items()]
    for place, event in enumerate(("four", "one", "five")):
        chosen = next(row for row in user.classes if row.name == event)
        user.pool.label(items[place], chosen.id, annotator=user.person.id)
    page = user.tab("export")
    counts = page.locator(".st-key-card-counts")
    expect(counts).to_contain_text("3 labeled by annotators")
    expect(counts.locator("strong").first).to_have_text("3")
    page.get_by_text("Include model predictions").click()
    expect(counts).to_contain_text("model predictions")
    expect(counts.locator("strong")).to_have_text(["24", "21"])
    page.get_by_role("button", name="Create export").click()
    card = page.locator(".st-key-card-jobs-export")
    link = card.get_by_role("link", name="Download")
    expect(link).to_be_visible()
    expect(card).to_contain_text("24 rows")
    at_rest(page)
    with page.expect_download() as download:
        link.click()
    with zipfile.ZipFile(download.value.path()) as packed:
        table = next(name for name in packed.namelist() if name.endswith("labels.csv"))
        rows = list(csv.DictReader(io.TextIOWrapper(packed.open(table), "utf-8-sig")))
    assert [(row["label"], row["source"]) for row in rows[:3]] == [(one, "label") for one in ("four", "one", "five")]
    assert [row["source"] for row in rows[3:]] == ["pseudo"] * 21
    assert [row["label"] for row in rows[3:6]] == ["three", "four", "five"]
    made = user.server.home / "exports"
    assert len(list(made.glob(f"spoken-digits-{audio.name.split()[-1]}-csv-*.zip"))) == 1
    card.get_by_role("button", name="Dismiss").click()
    expect(link).to_have_count(0)
    assert list(made.glob(f"spoken-digits-{audio.name.split()[-1]}-csv-*")) == []
    assert user.outside == []


def test_contested_items_are_announced_before_an_export_and_left_out_on_request(open_browser, store):
    project = sample_store.audio_project(store, f"Contested {next(_numbers)}", 6, labels_per_item=2)
    user = open_browser(project)
    items, bea = [item.id for item in user.pool.items()], annotator_named(store, "Bea").id
    for item, (mine, hers) in zip(items, [(0, 4), (1, 1)], strict=False):
        user.pool.label(item, user.classes[mine].id, annotator=user.person.id)
        user.pool.label(item, user.classes[hers].id, annotator=bea)
    page = user.tab("export")
    card, counts = page.locator(".st-key-card-export"), page.locator(".st-key-card-counts")
    expect(card).to_contain_text("Annotators chose different classes for 1 item, and nobody has decided.")
    expect(counts.locator("strong")).to_have_text(["2", "1"])
    expect(counts).to_contain_text("marked in the column contested")
    card.get_by_text("Leave out", exact=True).click()
    expect(counts.locator("strong")).to_have_text(["1", "1"])
    expect(counts).to_contain_text("contested items left out")
    page.get_by_role("button", name="Create export").click()
    expect(page.locator(".st-key-card-jobs-export")).to_contain_text("1 row.")


def test_blind_labeling_is_explained_and_can_be_switched_off(open_browser, store):
    project = sample_store.audio_project(store, f"Blind {next(_numbers)}", 6, labels_per_item=2)
    user = open_browser(project)
    finish_round(store, project, [0, 1], confidence=0.96)
    page = user.label_tab()
    expect(page.locator(".reasons")).to_contain_text("Hidden until you have labeled this item")
    page = user.tab("data")
    form = page.locator(".st-key-card-project")
    expect(form).to_contain_text("hides suggestions and the labels of others until you have labeled the item yourself")
    form.get_by_text("Blind labeling", exact=True).click()
    form.get_by_text("Update predictions between rounds", exact=True).click()
    form.get_by_role("button", name="Save", exact=True).click()
    eventually(page, lambda: get_project(store, project.id).settings.blind, False)
    assert not get_project(store, project.id).settings.live
    page = user.label_tab()
    expect(page.locator(".reasons")).to_contain_text("96 %")
