"""Train in a real browser: rounds are set up, followed, opened, replayed and compared."""

from __future__ import annotations

import dataclasses
import itertools
import re
from datetime import timedelta

from playwright.sync_api import Page, expect
from sqlalchemy import update

from core.types import Progress
from storage.database.schema import RoundProgress
from storage.database.store import Store, now
from storage.projects.projects import change_settings, create_project, get_project, update_project
from storage.rounds import comparisons
from storage.rounds.log import RoundLog
from tests.app import sample_store
from tests.app.finished_rounds import finish_round
from tests.browser.conftest import at_rest, eventually, serious
from tests.browser.test_every_screen import CUT, ZOOMED

NOTE = "Encoder chosen: 28 of 40 (70 %), 15 of 40 from scratch; both cross-validated."


def a_second_each(store: Store, round_id: int, done: int) -> None:
    """Change the times of the progress of a round so that each training step up to `done` takes one second."""
    with store.write() as connection:
        for step in (10, 20, 40, 60, 70):
            rows = update(RoundProgress).where(RoundProgress.round_id == round_id, RoundProgress.done == step)
            connection.execute(rows.values(at=now() - timedelta(seconds=done - step)))
        earlier = update(RoundProgress).where(RoundProgress.round_id == round_id, RoundProgress.stage == "views")
        connection.execute(earlier.values(at=now() - timedelta(seconds=done + 2)))


def seconds_left(page: Page) -> int:
    """The seconds left of the stage, as shown on the page; a large number if none is shown."""
    found = re.search(r"about (\d+) s left", page.locator(".winnow-time-left span").first.inner_text())
    return int(found[1]) if found else 10**6


def test_a_round_is_set_up_watched_and_cancelled_and_a_failure_is_shown(open_browser, audio, store):
    # Without motion, a list of options opens below a pressed mouse button, and releasing it at once picks an option.
    user = open_browser(audio, reduced_motion="no-preference")
    page = user.tab("train")
    start = page.get_by_role("button", name="Start round")
    expect(start).to_be_enabled()

    # Settings are stored one by one: what someone else changed meanwhile stays.
    batch = page.get_by_label("Batch", exact=True)
    batch.fill("5")
    batch.press("Enter")
    page.get_by_text("Start the next round automatically").click()
    expect(page.get_by_role("switch")).not_to_be_checked()

    def stored_settings() -> tuple[int, bool]:
        kept = get_project(store, audio.id).settings
        return kept.batch_size, kept.automatic_rounds

    eventually(page, stored_settings, (5, False))
    at_rest(page)
    settings = get_project(store, audio.id).settings
    update_project(store, audio.id, settings=dataclasses.replace(settings, seed=7, preset="smoke"))
    page.get_by_label("Strategy", exact=True).click()
    page.get_by_role("option", name="BADGE").click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("7")
    kept = get_project(store, audio.id).settings
    assert (kept.strategy, kept.seed, kept.preset, kept.batch_size) == ("badge", 7, "smoke", 5)

    # A round in the store is what is shown: waiting, then its stages, then that it is stopping.
    start.click()
    expect(page.locator(".winnow-time-left")).to_contain_text("No worker is running. Start one with:")
    expect(page.locator("[aria-current='step']")).to_have_text("Snapshot")  # from the first second
    log = RoundLog(store, audio.id)
    row = log.latest()
    assert row is not None and row.config.selection.batch_size == 5 and row.config.selection.strategy == "badge"
    log.start(row.id)
    log.progress(row.id, Progress("views", 12, 24))
    expect(page.get_by_text("12 of 24 items augmented · 0 labels")).to_be_visible()
    for step in (10, 20, 40):
        log.progress(row.id, Progress("train", step, 80, metrics={"loss": 2.0 - step / 40}))
    expect(page.locator(".winnow-time-left")).to_have_text("Train: estimating the time left")
    a_second_each(store, row.id, 40)
    expect(page.locator("[aria-current='step']")).to_have_text("Train")
    expect(page.get_by_text("40 of 80 training steps · 0 labels")).to_be_visible()
    expect(page.locator(".winnow-time-left")).to_have_text(re.compile("^Train: .*Whole round: .* left$"))
    expect(page.locator(".winnow-measures tr")).to_have_text(re.compile("Loss.*1.000"))
    expect(page.locator(".winnow-stage-done")).to_have_text(["✓ Snapshot", "✓ Prepare", "✓ Check labels"])
    expect(page.locator(".st-key-loss-line path.js-line")).to_have_count(1)
    for done in (40, 60, 70):  # the estimate is within a quarter of the time that the steps left will take
        log.progress(row.id, Progress("train", done, 80, metrics={"loss": 2.0 - done / 40}))
        a_second_each(store, row.id, done)
        expect(page.get_by_text(f"{done} of 80 training steps · 0 labels")).to_be_visible()
        eventually(page, lambda left=80 - done: abs(seconds_left(page) - left) <= left / 4, True)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Stopping")).to_be_disabled()
    assert log.get(row.id).cancel_requested
    log.fail(row.id, "The loss became <b>infinite</b> at step 41. Lower the learning rate.")
    expect(page.get_by_role("alert")).to_contain_text("Round 1 failed. The loss became <b>infinite</b> at step 41")
    expect(start).to_be_enabled()

    empty = create_project(store, "Nothing to learn from", "audio", ["a", "b"])
    page.goto(f"{user.server.url}/train?project={empty.id}")
    expect(start).to_be_disabled()
    assert user.outside == []


def test_finished_rounds_show_their_effect_and_can_be_opened_replayed_and_compared(open_browser, audio, store):
    user = open_browser(audio)
    first = finish_round(store, audio, [3, 9], accuracy=0.7)
    for item, answer in zip(RoundLog(store, audio.id).picks(first.id), (3, 0), strict=True):
        user.pool.label(item.item_id, user.classes[answer].id, annotator=user.person.id)
    finish_round(store, audio, [4, 5], accuracy=0.72)
    page = user.tab("train")
    expect(page.get_by_text("72.0 %, 100 items, 95 % interval")).to_be_visible()
    bought = page.locator(".st-key-card-bought")
    expect(bought).to_contain_text("+2.0")
    expect(bought).to_contain_text("1 of 2")
    expect(page.get_by_text("Most often: nine predicted as zero (3)")).to_be_visible()
    ticks = page.locator(".st-key-curve .xtick text")
    expect(ticks).to_have_text(["0", "2"])
    row = page.locator(f".st-key-round-row-{first.id}")
    expect(row.locator(".winnow-round")).to_contain_text("1 Bilevel coreset 0 70.0 % 1 of 2", use_inner_text=True)
    at_rest(page)

    row.get_by_role("button", name="Open").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Bilevel coreset · finished · 0 labels · seed 0")).to_be_visible()
    name = user.pool.item(RoundLog(store, audio.id).picks(first.id)[0].item_id).name
    expect(dialog.locator("canvas td", has_text=name).first).to_be_attached()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)

    # Compare is a card: it stays open while other work runs, and shows what each strategy would pick.
    row.get_by_role("button", name="Compare").click()
    card = page.locator(".st-key-card-comparison")
    card.get_by_role("button", name="Compare").click()
    expect(card.get_by_text("A worker is computing the picks.")).to_be_visible()
    asked = comparisons.get(store, first.id)
    assert asked is not None and asked.strategies == ("badge", "uniform")
    items = [item.id for item in user.pool.items()]
    picks = {"badge": [items[3], items[10]], "uniform": [items[11], items[12]]}
    answer = dataclasses.replace(asked, status="finished", picks=picks, overlap={"badge": 1, "uniform": 0})
    assert comparisons.store_result(store, answer)
    rows = card.locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("the round itself")
    expect(rows.nth(1)).to_have_text(re.compile(r"BADGE\s*1 of 2\s*2 of 10: .*0\.\d\d"))
    expect(card.locator("ol.winnow-picks")).to_have_count(3)
    expect(card.locator("ol.winnow-picks").nth(1).locator(".winnow-shared")).to_have_count(1)
    loaded = "all => all.map((one) => one.complete && one.naturalWidth > 0)"
    eventually(page, lambda: card.locator("ol.winnow-picks img").evaluate_all(loaded), [True] * 6)
    expect(card.locator(".st-key-comparison-maps .js-plotly-plot")).to_be_visible()
    eventually(page, lambda: serious(page), [])
    at_rest(page)
    page.set_viewport_size(ZOOMED[0])
    eventually(page, lambda: page.evaluate(CUT), [])
    row.get_by_role("button", name="Replay").click()
    expect(page.locator(".winnow-time-left")).to_contain_text("No worker is running. Start one with:")
    replay = RoundLog(store, audio.id).latest()
    assert replay is not None and replay.replay_of == first.id
    expect(card.locator("tbody tr")).to_have_count(3)  # still open beside the running round
    eventually(page, lambda: page.evaluate(CUT), [])
    card.get_by_role("button", name="Close").click()
    expect(card).to_have_count(0)


def test_encoders_are_listed_on_data_and_compared_on_train(open_browser, images, store):
    """The stored table of a comparison; `tests/app/test_encoder_rounds.py` runs one."""
    row = {"seconds": 4.2, "problem": "", "n": 40}
    rows = [
        {"name": "efficientnet-lite0", "title": "EfficientNet-lite0", "identity": "a" * 64, "right": 28, "low": 0.55,
         "high": 0.82, **row},
        {"name": "none", "title": "no encoder", "identity": "", "right": 15, "low": 0.24, "high": 0.53, **row},
    ]  # fmt: skip
    found = {"key": "k", "n_labels": 40, "best": "efficientnet-lite0", "identity": "a" * 64, "rows": rows}
    change_settings(store, images.id, {"extra": {"audition": found}})
    finish_round(store, images, [0, 1], approach={"note": NOTE})
    user = open_browser(images)
    page = user.tab("train")
    card = page.locator(".st-key-card-audition")
    expect(card).to_contain_text("Encoders compared at 40 labels")
    expect(card).to_contain_text(NOTE)  # shown without the escapes of Markdown
    expect(card.locator("tbody tr")).to_have_text(
        [
            re.compile(r"EfficientNet-lite0\s*70 % \(55 to 82\).*Automatic compares this one"),
            re.compile("no encoder.*38 %"),
        ]
    )
    expect(card.get_by_role("button", name="Compare")).to_be_visible()
    at_rest(page)
    eventually(page, lambda: serious(page), [])
    data = user.tab("data")
    expect(data.locator(".st-key-card-encoders")).to_contain_text("efficientnet-lite0")
    data.get_by_text("Embeddings from elsewhere").click()
    expect(data.get_by_role("button", name="Import embeddings")).to_be_disabled()
    at_rest(data)
    eventually(data, lambda: serious(data), [])


_numbers = itertools.count()  # a new name when the test is tried again
BARS = """() => {
  const [bars] = document.querySelector('.st-key-class-counts .js-plotly-plot')._fullData;
  return Object.fromEntries([...bars.x].map((name, k) => [name, bars.y[k]]));
}"""


def agree(page: Page, number: int, labels: dict[str, int]) -> list[str]:
    """The warnings, once the page shows the round with this number and these labels. Each of them names the round of
    the confusions, and states the same number of labels of every class as the bars."""
    expect(page.locator(".st-key-card-confusions h2")).to_have_text(f"Confusions test items, round {number}")
    eventually(page, lambda: page.evaluate(BARS), labels)
    missing = [name for name, n in labels.items() if n == 0]
    none = page.locator(".st-key-card-per-class").get_by_text("No label yet for")
    expect(none).to_have_text([f"No label yet for {', '.join(missing)}."] if missing else [])
    at_rest(page)
    found = page.locator(".st-key-card-warnings .winnow-note").all_inner_texts()
    assert all(re.findall(r"Round (\d+)", sentence) == [str(number)] for sentence in found)
    for name, n in re.findall(r"(\w+) \((\d+) now\)", " ".join(found)):
        assert labels[name] == int(n)
    for sentence in found:
        for name in re.findall(r"had no label for (\w+)\.", sentence):
            assert labels[name] == 0
    return found


def test_warnings_name_the_round_of_the_charts_and_fit_the_labels_given_since(open_browser, store):
    """A model has an output for a class without labels too, so the confusions may show one."""
    project = create_project(store, f"Clothes {next(_numbers)}", "image", ["shoes", "bags", "outwear"])
    pictures = [(f"{k}.png", sample_store.picture(k)) for k in range(18)]
    items = sample_store.add_items(store, project, pictures)
    user = open_browser(project)

    def label(position: int, *rows: int) -> None:
        for row in rows:
            user.pool.label(items[row], user.classes[position].id, annotator=user.person.id)

    label(0, 0, 3, 6, 9, 12)
    label(1, 1)
    finish_round(store, project, [2, 4], accuracy=0.6, confusion=[[41, 0, 59], [0, 50, 0], [0, 0, 0]])
    page = user.tab("train")
    expect(page.get_by_text("Most often: shoes predicted as outwear (59)")).to_be_visible()
    none, few = agree(page, 1, {"shoes": 5, "bags": 1, "outwear": 0})
    assert none.startswith("Round 1 had no label for outwear. Do not trust its predictions for a class without labels.")
    assert few == "Round 1: only one or two labels for bags, up to 5 for other classes. Label more of them."

    # Labels that arrive change the current counts, not those of the round.
    label(2, 2)
    label(1, 4)
    page.get_by_role("button", name="Start round").click()
    expect(page.locator(".winnow-time-left")).to_be_visible()
    none, few = agree(page, 1, {"shoes": 5, "bags": 2, "outwear": 1})
    assert none.startswith("Round 1 had no label for outwear (1 now).")
    assert few.startswith("Round 1: only one or two labels for bags (2 now), up to 5 for other classes.")

    # The next round ends while the page is open: charts and warnings change together.
    finish_round(store, project, [5, 7], accuracy=0.8, confusion=[[96, 0, 4], [0, 50, 0], [0, 0, 9]])
    expect(page.get_by_text("Most often: shoes predicted as outwear (4)")).to_be_visible()
    [few] = agree(page, 2, {"shoes": 5, "bags": 2, "outwear": 1})
    assert few == "Round 2: only one or two labels for outwear, up to 5 for other classes. Label more of them."
