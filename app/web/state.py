"""Session state: the annotator and the open project. Everything else is in the store.

A session ends when its tab is closed or the server stops. It is rebuilt from the address (`?project=`) and the session
cookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from storage.projects.annotators import AnnotatorRow
from storage.projects.projects import ProjectRow

PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Session:
    """The annotator and the open project during one script run."""

    annotator: AnnotatorRow
    ticket: str
    project: ProjectRow | None


def set_session(session: Session) -> None:
    """Set the session of this script run. The page script calls this before a screen is drawn."""
    st.session_state["session"] = session


def session() -> Session:
    """The session of this script run."""
    found: Session = st.session_state["session"]
    return found


def project() -> ProjectRow:
    """The open project. Only screens that need a project may call this; they do not run without one."""
    found = session().project
    assert found is not None
    return found


def pick_project(projects: Sequence[ProjectRow]) -> ProjectRow | None:
    """The project in the address, otherwise that of the session, otherwise the newest. An invalid id is ignored."""
    by_id = {row.id: row for row in projects}
    for wanted in (st.query_params.get(PROJECT), st.session_state.get(PROJECT)):
        if wanted is not None and (row := by_id.get(_identity(str(wanted)))) is not None:
            return row
    return max(projects, key=lambda row: row.id, default=None)


def names_project(projects: Sequence[ProjectRow]) -> bool:
    """Whether the address or the session refers to one of the projects."""
    known = {row.id for row in projects}
    wanted = (st.query_params.get(PROJECT), st.session_state.get(PROJECT))
    return any(_identity(str(one)) in known for one in wanted if one is not None)


def open_project(project_id: int | None) -> None:
    """Open a project in this session and write its id to the address, so that a reload keeps it. None closes it."""
    if project_id is None:
        st.session_state.pop(PROJECT, None)
        st.query_params.pop(PROJECT, None)
    else:
        st.session_state[PROJECT] = project_id
        if st.query_params.get(PROJECT) != str(project_id):
            st.query_params[PROJECT] = str(project_id)


def _identity(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else -1


def send_to_grid(item_ids: Sequence[int], title: str) -> None:
    """Make the grid show exactly these items. `title` describes them ("Area on the map")."""
    st.session_state["grid_set"] = (project().id, tuple(int(item) for item in item_ids), title)


def grid_set() -> tuple[tuple[int, ...], str] | None:
    """The items and the title that were sent to the grid for the open project, or None."""
    found = st.session_state.get("grid_set")
    return (found[1], found[2]) if found is not None and found[0] == project().id else None


def clear_grid_set() -> None:
    st.session_state.pop("grid_set", None)


def send_like(item_id: int) -> None:
    """Make the grid show the items of the open project that are most similar to this one."""
    clear_grid_set()
    st.session_state["grid_like"] = (project().id, item_id)


def like_to_show() -> int | None:
    """The item whose similar items the grid should show, or None. It is returned only once."""
    found = st.session_state.pop("grid_like", None)
    return found[1] if found is not None and found[0] == project().id else None


def open_item(item_id: int) -> None:
    """Make the labeling card show this item of the open project next."""
    st.session_state["open_item"] = (project().id, item_id)


def item_to_open() -> int | None:
    """The item that the labeling card should show next, or None. It is returned only once."""
    found = st.session_state.pop("open_item", None)
    return found[1] if found is not None and found[0] == project().id else None
