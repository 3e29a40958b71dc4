"""The jobs of a project with their progress and results."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import Job, JobView
from app.views.text import plain, visible
from app.web import resources, theme

POLL_SECONDS = 1.0
WORDS = {"finished": "done", "failed": "failed", "cancelled": "cancelled", "lost": "interrupted; start it again"}


def follow(job: Job) -> None:
    """Make the screen that started `job` redraw when it has ended, even if it ends before the first poll."""
    st.session_state["running-jobs"] = st.session_state.get("running-jobs", set()) | {job.id}


def job_list(
    project_id: int | None,
    title: str,
    sentence: Callable[[JobView], str],
    state: Callable[[JobView], str] = lambda view: "",
) -> None:
    """A card with the jobs whose title begins with `title`, if there are any. `sentence` describes the result of a job;
    `state` may return another word for how a job ended than "done"."""
    seen = [view for view in jobs.list_jobs(resources.locations().home, project_id) if view.job.title.startswith(title)]
    if seen:
        with theme.card(f"jobs-{title.split()[0].lower()}"):
            running = any(view.status == "running" for view in seen)
            st.fragment(_rows, run_every=POLL_SECONDS if running else None)(project_id, title, sentence, state)


def _rows(
    project_id: int | None, title: str, sentence: Callable[[JobView], str], state: Callable[[JobView], str]
) -> None:
    home = resources.locations().home
    seen = [view for view in jobs.list_jobs(home, project_id) if view.job.title.startswith(title)]
    running = {view.job.id for view in seen if view.status == "running"}
    known = st.session_state.get("running-jobs", set())
    st.session_state["running-jobs"] = running | {one for one in known if one in {view.job.id for view in seen}}
    if known - running and known & {view.job.id for view in seen}:
        st.session_state["running-jobs"] = running
        st.rerun()
    for view in seen[:6]:
        _row(view, sentence, state(view))


def _row(view: JobView, sentence: Callable[[JobView], str], ended: str) -> None:
    home, job = resources.locations().home, view.job
    text, side = st.columns([6, 1], vertical_alignment="center")
    with text:
        theme.heading(visible(job.title), "running" if view.status == "running" else ended or WORDS[view.status])
        if view.status == "running":
            st.progress(view.done / view.total if view.total else 0.0)
            theme.muted(f"{view.done:,} of {view.total:,} · {view.note}" if view.total else view.note or "Starting")
        elif view.status == "cancelled":
            theme.muted(view.error)
        else:
            if view.error:
                st.error(plain(view.error))
            if view.result is not None:
                st.markdown(sentence(view))
    with side:
        if view.status == "running":
            if st.button("Cancel", key=f"cancel-{job.id}"):
                jobs.cancel(home, job.id)
        elif st.button("Dismiss", key=f"dismiss-{job.id}", type="tertiary"):
            jobs.dismiss(home, job.id)
            st.rerun()
