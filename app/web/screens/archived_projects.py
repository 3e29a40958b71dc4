"""Archive the open project, and list and restore archived ones."""

from __future__ import annotations

import streamlit as st

from app.views.text import count, visible
from app.web import resources, state, theme
from storage.labeling.pool import Pool
from storage.projects import projects
from storage.projects.projects import ProjectRow


def archive_button(project: ProjectRow) -> None:
    """Archive the open project after a confirmation. The newest remaining project is then opened."""
    with st.popover("Archive project"):
        theme.muted("The project is removed from the project menu. Nothing is deleted, and you can restore it here.")
        if st.button("Archive", key="archive-project"):
            projects.archive_project(resources.store(), project.id)
            state.open_project(None)
            st.rerun()


def archived_projects() -> None:
    """A card with the archived projects, newest first. Nothing is drawn if there are none."""
    store = resources.store()
    archived = [row for row in projects.list_projects(store, include_archived=True) if row.archived_at is not None]
    if not archived:
        return
    with theme.card("archived"):
        theme.heading("Archived projects", count(len(archived), "project"))
        for row in sorted(archived, key=lambda row: row.archived_at or row.created_at, reverse=True):
            _archived(row)


def _archived(row: ProjectRow) -> None:
    counts = Pool(resources.store(), row.id).counts()
    text, button = st.columns([3, 1], vertical_alignment="center")
    with text:
        theme.muted(f"{visible(row.name)} · {counts.labeled:,} of {count(counts.total, 'item')} labeled")
    if button.button("Restore", key=f"restore-project-{row.id}", width="stretch"):
        projects.restore_project(resources.store(), row.id)
        st.session_state.pop("new-project", None)
        state.open_project(row.id)
        st.rerun()
