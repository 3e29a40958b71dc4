"""The notice above Label and Grid while files are imported, with the number of files so far."""

from __future__ import annotations

import streamlit as st

from app.jobs import jobs
from app.views.text import count
from app.web import resources, theme
from storage.labeling.pool import Pool

POLL_SECONDS = 2.0


def import_notice(project_id: int) -> None:
    """Draw the notice. Nothing is drawn if no import of the project is running."""
    if jobs.running_imports(resources.locations().home, project_id):
        with st.container(key="import-notice"):
            st.fragment(_follow, run_every=POLL_SECONDS)(project_id)


def _follow(project_id: int) -> None:
    running = jobs.running_imports(resources.locations().home, project_id)
    if not running:
        st.rerun()
    waiting = Pool(resources.store(), project_id).counts().waiting
    view = running[0]
    if view.total:
        st.progress(min(view.done / view.total, 1.0))
        files = f"Importing files: {view.done:,} of {view.total:,}."
    else:
        files = "Importing files."
    ready = f" {count(waiting, 'item')} can be labeled now." if waiting else ""
    theme.muted(f"{files}{ready} New items appear here as they arrive.")
