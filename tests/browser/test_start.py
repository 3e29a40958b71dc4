"""The first minutes: the overview of all projects, the tour, the message on Label during an import, and zoom."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from app.jobs.folder import JobFolder
from app.jobs.jobs import Job
from app.processes.messages import Message
from core.types import Progress
from storage.database.store import Store
from storage.projects.annotators import annotator_named
from storage.projects.projects import create_project, get_project
from storage.projects.sample_projects import HANDWRITTEN, SPOKEN
from tests.app import sample_store
from tests.browser.conftest import OVERFLOW, Server, at_rest, eventually, own_server, serious, sign_in
from tests.browser.screens import READY
from tests.browser.test_every_screen import DESK, LONG, OUT_OF_REACH, PHONE, ZOOMED


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from own_server(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def kept(start: Server) -> Iterator[Store]:
    """A store with the two sample projects by name, small ones, and one with a long name."""
    with Store.open(home=start.home) as store:
        sample_store.audio_project(store, SPOKEN, 12)
        sample_store.audio_project(store, LONG, 8)
        create_project(store, HANDWRITTEN, "image", ["0", "1"])
        yield store


@contextmanager
def importing(home: Path, project_id: int, done: int, total: int) -> Iterator[None]:
    """A running import in the form of its files: a folder whose lock is held, and its newest message."""
    folder = JobFolder(home / "jobs" / f"import-{project_id}")
    folder.path.mkdir(parents=True)
    job = Job(id=f"import-{project_id}", title="Import into a project", project_id=project_id, started_at=1.0)
    folder.write_job(dataclasses.asdict(job))
    lock = folder.open_lock()
    folder.send(Message("progress", dataclasses.asdict(Progress("import", done, total))))
    try:
        yield
    finally:
        os.close(lock)


@pytest.fixture
def page_of(lend_context: Callable[..., BrowserContext], start: Server, kept: Store) -> Callable[[str], Page]:
    """`page_of(name)`: a new page in the browser of that person."""

    def open_page(name: str) -> Page:
        context = lend_context(start)
        sign_in(context, start, annotator_named(kept, name))
        return context.new_page()

    return open_page


def test_several_projects_have_an_overview_with_full_names_counts_and_progress(page_of, start, kept):
    page = page_of("Ana")
    page.goto(start.url)
    page.wait_for_url("**/projects")
    names = page.locator(".winnow-project-name")
    expect(names).to_have_count(3)
    assert set(names.all_text_contents()) == {SPOKEN, LONG, HANDWRITTEN}
    card = page.locator(f".st-key-card-project-{get_project(kept, SPOKEN).id}")
    expect(card).to_contain_text("Audio clips · 12 items")
    expect(card).to_contain_text("0 labeled")
    expect(card).to_contain_text("No round yet · last activity")
    first = page.locator("[class*='st-key-card-project-']").first.bounding_box()
    new = page.get_by_role("button", name="New project").bounding_box()
    assert new["y"] + new["height"] <= first["y"]  # in the first row
    eventually(page, lambda: page.evaluate(OVERFLOW), 0)
    eventually(page, lambda: serious(page), [])
    at_rest(page)
    card.get_by_role("button", name="Open").click()
    page.wait_for_selector(READY["Label"])
    assert f"project={get_project(kept, SPOKEN).id}" in page.url

    # The project menu: full names, a new project, and the way back.
    page.locator(".st-key-project-menu button").click()
    expect(page.get_by_role("button", name=LONG)).to_be_visible()
    expect(page.locator(".st-key-menu-new-project button")).to_contain_text("New project")
    page.get_by_role("button", name="All projects").click()
    expect(names).to_have_count(3)
    at_rest(page)
    page.locator(".st-key-overview-new button").click()
    expect(page.get_by_role("button", name="Create project")).to_be_visible()


def test_a_new_user_is_offered_a_tour_of_four_steps_once(page_of, start, kept):
    page = page_of("Newcomer")
    page.goto(start.url)
    page.get_by_role("button", name="Start the tour").click()
    for step, ready in enumerate((READY["Label"], READY["Train"], ".winnow-empty", READY["Export"]), 1):
        expect(page.locator(".winnow-tour")).to_contain_text(f"Step {step} of 4:")
        page.wait_for_selector(ready)
        at_rest(page)
        assert f"project={get_project(kept, SPOKEN).id}" in page.url
        if step < 4:
            page.get_by_role("button", name="Next: ").click()
    eventually(page, lambda: serious(page), [])
    page.get_by_role("button", name="Done").click()
    expect(page.locator(".winnow-tour")).to_have_count(0)
    page.goto(f"{start.url}/projects")
    expect(page.locator(".winnow-project-name")).to_have_count(3)
    at_rest(page)
    expect(page.get_by_role("button", name="Start the tour")).to_have_count(0)


def test_the_tour_can_be_skipped_and_is_not_offered_again(page_of, start, kept):
    page = page_of("Hurried")
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.goto(start.url)
    page.get_by_role("button", name="Skip").wait_for()
    eventually(page, lambda: page.evaluate(OVERFLOW), 0)
    eventually(page, lambda: serious(page), [])
    page.get_by_role("button", name="Skip").click()
    expect(page.locator(".st-key-tour-offer")).to_have_count(0)
    page.reload()
    expect(page.locator(".winnow-project-name")).to_have_count(3)
    at_rest(page)
    expect(page.locator(".st-key-tour-offer")).to_have_count(0)


def test_the_overview_fits_at_every_zoom(page_of, start):
    """The other screens are in `test_every_screen.py`."""
    page = page_of("Ana")
    page.emulate_media(color_scheme="dark")
    page.goto(f"{start.url}/projects")
    expect(page.locator(".winnow-project-name")).to_have_count(3)
    for size in (DESK, *ZOOMED, PHONE):
        page.set_viewport_size(size)
        at_rest(page)
        eventually(page, lambda: (page.evaluate(OVERFLOW), page.evaluate(OUT_OF_REACH)), (0, []))
        eventually(page, lambda: serious(page), [])


def test_every_screen_of_an_empty_project_links_to_the_next_step(page_of, start, kept):
    """Without items to Data, without labels to Label, without a round to Train."""
    page = page_of("Ana")
    empty, unlabeled = get_project(kept, HANDWRITTEN).id, get_project(kept, LONG).id
    for screen, project, words, lead in (
        ("train", empty, "Import files", "data"),
        ("train", unlabeled, "Label the first items", ""),
        ("map", unlabeled, "Go to Train", "train"),
        ("export", unlabeled, "Label the first items", ""),
        ("review", unlabeled, "Continue labeling", ""),
    ):
        if f"project={project}" in page.url:
            page.locator(".st-key-tabs a", has_text=screen.capitalize()).click()
        else:
            page.goto(f"{start.url}/{screen}?project={project}")
        button = page.get_by_role("button", name=words, exact=True)
        button.wait_for()
        at_rest(page)
        button.click()
        page.wait_for_url(
            lambda url, lead=lead, project=project: url.split("?")[0].endswith(f"/{lead}") and str(project) in url
        )


def test_label_says_what_is_coming_while_files_are_imported(page_of, start, kept):
    project, empty = get_project(kept, SPOKEN), get_project(kept, HANDWRITTEN)
    page = page_of("Ana")
    with importing(start.home, empty.id, done=0, total=5_000):
        page.goto(f"{start.url}/?project={empty.id}")
        expect(page.locator(".st-key-import-notice")).to_contain_text(
            "0 of 5,000. New items appear here as they arrive."
        )
        expect(page.locator(".empty h2")).to_have_text("Pictures are being imported")
        expect(page.locator(".batch")).to_have_text("")
    with importing(start.home, project.id, done=1_200, total=5_000):
        page.goto(f"{start.url}/?project={project.id}")
        notice = page.locator(".st-key-import-notice")
        expect(notice).to_contain_text("Importing files: 1,200 of 5,000. 12 items can be labeled now")
        eventually(page, lambda: serious(page), [])
    expect(notice).to_have_count(0)
