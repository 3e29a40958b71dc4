"""The page script: it determines the annotator and the open project, then draws the header with tabs and one screen.

Every screen is a module in `app/web/screens/` with a function `render()`. It gets the annotator and the project from
`app.web.state.session()`, reads the store, draws, and calls one function of `storage`.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st
from streamlit.navigation.page import Page

from app.views.text import plain, visible
from app.web import people, resources, state, theme
from app.web.screens import data, export, grid, label, map, review, train
from app.web.screens.start import overview, tour
from app.web.screens.start.import_notice import import_notice
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
OVERVIEW = "projects"  # the start page when there are several projects
SHORT_NAME = 18  # characters of a project name that the header always shows
IMPORTING = ("label", "grid")  # screens that show the progress of a running import


def main() -> None:
    """Draw one run of the page."""
    st.set_page_config("Winnow", theme.ICON, layout="wide", initial_sidebar_state="collapsed")
    theme.apply()
    pages = {
        name: st.Page(_guarded(name, draw), title=title, url_path=name, default=name == "label")
        for title, name, draw in SCREENS
    }
    start = st.Page(_overview, title="Projects", url_path=OVERVIEW)
    page = st.navigation([*pages.values(), start], position="hidden")
    person = people.current()
    if person is None:
        people.ask()
        return
    people.act_as(person)
    projects = list_projects(resources.store())
    if page is pages["label"] and len(projects) > 1 and not state.names_project(projects):
        st.switch_page(start)
    project = None if page is start else state.pick_project(projects)
    session = state.Session(person, people.ticket_of(person), project)
    state.set_session(session)
    st.session_state["pages"] = pages | {OVERVIEW: start}
    state.open_project(session.project.id if session.project else None)
    header(projects, pages, page)
    store_notices()
    page.run()


def _overview() -> None:
    """Draw the overview of all projects or, if there are none, the same empty state as other screens."""
    projects = list_projects(resources.store())
    if projects:
        overview.render(projects)
    else:
        _no_project()


def store_notices() -> None:
    """Show the store's warnings on every screen, and a notice while the store is being checked."""
    for sentence in resources.store_warnings():
        st.warning(plain(sentence))
    if resources.store_check().running:
        theme.muted("Checking the database in the background.")


def header(projects: list[ProjectRow], pages: dict[str, Page], current: Page) -> None:
    """Draw the header of every screen: brand, project, tabs, save state and annotator."""
    session = state.session()
    with st.container(key="topbar", horizontal=True, vertical_alignment="center"):
        st.html('<div class="winnow-brand">Winnow</div>', width="content")
        if projects:
            _project_menu(projects, session.project)
        with st.container(key="tabs", horizontal=True):
            for name, page in pages.items() if session.project is not None or not projects else ():
                with st.container(key="tab-current" if page is current else f"tab-{name}", width="content"):
                    st.page_link(
                        page, query_params={state.PROJECT: str(session.project.id)} if session.project else None
                    )
        session_badge(session, key="session-badge")
        with st.popover(plain(people.initials(session.annotator.name)), key="person"):
            theme.muted(f"Labeling as {session.annotator.name}")
            st.button("Sign out" if resources.sign_in() else "Switch user", on_click=people.leave, key="leave")
            theme.muted(f"Winnow {VERSION}")


def _project_menu(projects: list[ProjectRow], current: ProjectRow | None) -> None:
    """The menu with all projects by their full names, "New project" and "All projects"."""
    name = visible(current.name) if current is not None else "Projects"
    whole = plain(name) if len(name) > SHORT_NAME else None
    key = f"projects-of-{current.id if current is not None else 'all'}"  # a new key closes the menu after a switch
    with st.container(key="project-menu", width="content"), st.popover(plain(name, 60), key=key, help=whole):
        with st.container(key="project-list"):
            for row in projects:
                chosen = current is not None and row.id == current.id
                mark = ":material/check:" if chosen else None
                if st.button(plain(row.name), key=f"go-to-project-{row.id}", icon=mark, type="tertiary"):
                    _switch_to(row.id, stay=current is not None)
        if st.button("New project", icon=":material/add:", key="menu-new-project", width="stretch"):
            overview.start_new_project()
        if len(projects) > 1 and st.button("All projects", key="menu-all-projects", width="stretch"):
            st.switch_page(st.session_state["pages"][OVERVIEW])


def _switch_to(project_id: int, *, stay: bool) -> None:
    """Open another project. With `stay`, the current screen is kept."""
    if not stay:
        overview.open_project(project_id)
    state.open_project(project_id)
    st.rerun()


def _guarded(name: str, draw: Callable[[], None]) -> Callable[[], None]:
    """Wrap a screen that needs a project. Without one, it offers to create or restore a project instead."""

    def render() -> None:
        project = state.session().project
        if project is None and name not in WITHOUT_PROJECT:
            _no_project()
            return
        tour.banner(name)
        if project is not None and name in IMPORTING:
            import_notice(project.id)
        draw()

    return render


def _no_project() -> None:
    theme.empty_state("No project yet", "Create a project and import clips or pictures. It takes about a minute.")
    if st.button("Create a project", type="primary", key="first-project"):
        st.switch_page(st.session_state["pages"]["data"])


main()
