"""The tour: four steps through a sample project. It is offered once to each person who has not labeled anything."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.views.text import markup
from app.web import resources, state
from storage.labeling.pool import Pool
from storage.projects import hints
from storage.projects.projects import ProjectRow
from storage.projects.sample_projects import HANDWRITTEN, SPOKEN

HINT = "tour"
STEP, PROJECT = "tour-step", "tour-project"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the tour: the screen that shows it, its title and its text."""

    screen: str
    title: str
    text: str


STEPS = (
    Step(
        "label",
        "Label a few items",
        "Each class has a key. Press it, or click the class. U undoes the last label, ? lists all keys. "
        "Label about ten items.",
    ),
    Step(
        "train",
        "Train a round",
        "A round trains a model on your labels and picks the items whose labels help it most. Press Start round. "
        "You can keep labeling while it runs.",
    ),
    Step(
        "map",
        "Look at the map",
        "After the first round, similar items are close together here. Rings mark the next picks. Draw an area to "
        "label its items together.",
    ),
    Step(
        "export",
        "Export",
        "Download your labels as CSV, JSON Lines, Parquet or class folders, with the round and the annotator of each "
        "label. Then create a project of your own.",
    ),
)


def sample_of(projects: list[ProjectRow]) -> ProjectRow | None:
    by_name = {row.name: row for row in projects}
    return by_name.get(SPOKEN) or by_name.get(HANDWRITTEN)


def offer(projects: list[ProjectRow]) -> bool:
    """A card on the start page that lets new users start or skip the tour. Returns whether it is shown."""
    sample, person = sample_of(projects), state.session().annotator.id
    if sample is None or not _is_newcomer(projects, person):
        return False
    with st.container(key="tour-offer"):
        st.html(
            '<h2 class="winnow-heading">New here?</h2><p class="winnow-muted">Four steps with the sample project '
            f"{markup(sample.name)} show how labeling, training and exporting work together. Your own projects are not "
            "affected.</p>"
        )
        with st.container(horizontal=True, gap="small"):
            if st.button("Start the tour", type="primary", key="tour-start"):
                hints.mark_seen(resources.store(), person, HINT)
                st.session_state[PROJECT] = sample.id
                _go_to(0)
            st.button("Skip", key="tour-skip", on_click=_skip)
    return True


def banner(screen: str) -> None:
    """Draw the current step above the screens of the sample project while the tour is active."""
    step, session = st.session_state.get(STEP), state.session()
    if step is None or session.project is None or session.project.id != st.session_state.get(PROJECT):
        return
    current = STEPS[step]
    with st.container(key="tour"):
        elsewhere = "" if screen == current.screen else f" Open {current.screen.capitalize()} to continue."
        st.html(
            f'<p class="winnow-tour" role="status"><strong>Step {step + 1} of {len(STEPS)}: {current.title}.</strong> '
            f"{current.text}{elsewhere}</p>"
        )
        with st.container(horizontal=True, gap="small"):
            if step + 1 < len(STEPS):
                if st.button(f"Next: {STEPS[step + 1].title}", key="tour-next"):
                    _go_to(step + 1)
                st.button("End the tour", key="tour-end", type="tertiary", on_click=_end)
            else:
                st.button("Done", key="tour-end", on_click=_end)


def _is_newcomer(projects: list[ProjectRow], person: int) -> bool:
    store = resources.store()
    if hints.has_seen(store, person, HINT):
        return False
    return not any(Pool(store, row.id).recent(person, 1) for row in projects)


def _go_to(step: int) -> None:
    st.session_state[STEP] = step
    project_id = st.session_state[PROJECT]
    state.open_project(project_id)
    page = st.session_state["pages"][STEPS[step].screen]
    st.switch_page(page, query_params={state.PROJECT: str(project_id)})


def _skip() -> None:
    hints.mark_seen(resources.store(), state.session().annotator.id, HINT)


def _end() -> None:
    st.session_state.pop(STEP, None)
