"""The page script: annotator, open project, header with tabs, then one screen.

Every screen is a module in `app/web/screens/` with one function `render()`. It reads `app.web.state.here()` for the
annotator and the project, reads the store, draws, and calls one verb of `storage`.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.navigation.page import Page

from app.views.text import plain
from app.web import people, resources, state, theme
from app.web.screens import data, export, grid, label, map, review, train
from app.web.widgets.session_badge import session_badge
from core.version import VERSION
from storage.projects.projects import ProjectRow, list_projects

SCREENS: tuple[tuple[str, str, Callable[[], None]], ...] = (
    ("Label", "label", label.render),
    ("Grid", "grid", grid.render),
    ("Train", "train", train.render),
    ("Map", "map", map.render),
    ("Data", "data", data.render),
    ("Export", "export", export.render),
    ("Review", "review", review.render),
)
WITHOUT_PROJECT = ("data",)


def main() -> None:
    st.set_page_config("Winnow", theme.ICON, layout="wide", initial_sidebar_state="collapsed")
    theme.apply()
    pages = {
        name: st.Page(_guarded(name, draw), title=title, url_path=name, default=name == "label")
        for title, name, draw in SCREENS
    }
    page = st.navigation(list(pages.values()), position="hidden")
    person = people.current()
    if person is None:
        people.ask()
        return
    people.act_as(person)
    projects = list_projects(resources.store())
    here = state.Here(person, people.ticket_of(person), state.pick_project(projects))
    state.arrive(here)
    st.session_state["pages"] = pages
    state.open_project(here.project.id if here.project else None)
    header(projects, pages, page)
    store_notices()
    page.run()


def store_notices() -> None:
    """Problems of the store, and that it is being checked: on every screen."""
    for sentence in resources.store_warnings():
        st.warning(plain(sentence))
    if resources.store_check().running:
        theme.muted("Checking the database in the background.")


def header(projects: list[ProjectRow], pages: dict[str, Page], current: Page) -> None:
    """Brand, project, tabs, saved state and annotator, on every screen."""
    here = state.here()
    with st.container(key="topbar", horizontal=True, vertical_alignment="center"):
        st.html('<div class="winnow-brand">Winnow</div>', width="content")
        if here.project is not None:
            _project_choice(projects, here.project)
        with st.container(key="tabs", horizontal=True):
            for name, page in pages.items():
                with st.container(key="tab-current" if page is current else f"tab-{name}", width="content"):
                    st.page_link(page, query_params={state.PROJECT: str(here.project.id)} if here.project else None)
        session_badge(here, key="session-badge")
        with st.popover(plain(people.initials(here.annotator.name)), key="person"):
            theme.muted(f"Labeling as {here.annotator.name}")
            st.button("Sign out" if resources.sign_in() else "Switch user", on_click=people.leave, key="leave")
            theme.muted(f"Winnow {VERSION}")


def _project_choice(projects: list[ProjectRow], current: ProjectRow) -> None:
    names = {row.id: row.name for row in projects}
    st.session_state["project-choice"] = current.id
    st.selectbox(
        "Project",
        list(names),
        format_func=lambda project_id: names.get(project_id, ""),
        key="project-choice",
        label_visibility="collapsed",
        on_change=lambda: state.open_project(st.session_state["project-choice"]),
    )


def _guarded(name: str, draw: Callable[[], None]) -> Callable[[], None]:
    """Draw a screen that needs a project only when there is one; otherwise offer to create or restore one."""

    def render() -> None:
        if state.here().project is None and name not in WITHOUT_PROJECT:
            theme.empty_state(
                "No project yet", "Create a project and import clips or pictures. It takes about a minute."
            )
            if st.button("Create a project", type="primary", key="first-project"):
                st.switch_page(st.session_state["pages"]["data"])
            return
        draw()

    return render


main()
