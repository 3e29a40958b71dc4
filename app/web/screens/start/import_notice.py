"""The notice above Label and Grid while files are imported: how many there are so far."""

from __future__ import annotations

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.views.text import count
from app.web import resources, theme
from storage.labeling.pool import Pool

POLL_SECONDS = 2.0


def import_notice(project_id: int) -> None:
    """Nothing when no import of the project runs."""
    if _running(project_id):
        with st.container(key="import-notice"):
            st.fragment(_follow, run_every=POLL_SECONDS)(project_id)


def _running(project_id: int) -> list[JobView]:
    home = resources.locations().home
    return [one for one in jobs.list_jobs(home, project_id) if one.status == "running" and _is_import(one)]


def _is_import(view: JobView) -> bool:
    return view.job.title.startswith("Import")


def _follow(project_id: int) -> None:
    running = _running(project_id)
    if not running:
        st.rerun()
    waiting = Pool(resources.store(), project_id).counts().waiting
    view = running[0]
    if view.total:
        st.progress(min(view.done / view.total, 1.0))
        files = f"Importing files: {view.done:,} of {view.total:,}."
    else:
        files = "Importing files."
    theme.muted(f"{files} {count(waiting, 'item')} can be labeled now. New ones appear here as they arrive.")
