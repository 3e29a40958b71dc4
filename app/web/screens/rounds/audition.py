"""The audition card on Train: compares every available encoder, and none, on the current labels."""

from __future__ import annotations

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.jobs.requests import AuditionRequest
from app.rounds import learning_settings
from app.rounds.stored_audition import stored_audition
from app.views.cards.audition_table import about_audition, audition_rows
from app.views.text import count
from app.web import resources, theme
from app.web.screens import job_list
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog

TITLE = "Comparison"  # the titles of the jobs of this card begin with it


def audition_card(project: ProjectRow) -> None:
    """The newest table, the last choice of `auto`, and the button. Nothing is drawn if the project has no encoder."""
    store = resources.store()
    n_encoders = len(learning_settings.encoder_names(store, project))
    if not n_encoders:
        return
    found = stored_audition(project)
    labeled = Pool(store, project.id).counts().labeled
    with theme.card("audition"):
        text, side = st.columns([6, 1], vertical_alignment="center")
        with text:
            at = f"compared at {count(found['n_labels'], 'label')}" if found else "not compared yet"
            theme.heading("Encoders", at)
        with side:
            running = _running(project.id)
            if st.button("Compare encoders", key="audition-now", disabled=running or labeled < 2, width="stretch"):
                job_list.follow(
                    jobs.start(
                        resources.locations().home,
                        f"{TITLE} of {count(n_encoders, 'encoder')}",
                        AuditionRequest(project_id=project.id),
                        project.id,
                    )
                )
                st.rerun()
        if found:
            theme.table(["Encoder", "Accuracy", "Time", ""], audition_rows(found))
            theme.muted(about_audition(found))
        else:
            theme.muted(
                "Compares the installed encoders, and training without one, by cross-validation on the labels so far."
            )
        if note := _last_decision(project.id):
            theme.muted(note)
    job_list.job_list(project.id, TITLE, lambda view: "The table above is up to date.")


def _running(project_id: int) -> bool:
    seen: list[JobView] = jobs.list_jobs(resources.locations().home, project_id)
    return any(view.status == "running" and view.job.title.startswith(TITLE) for view in seen)


def _last_decision(project_id: int) -> str:
    """The note of the newest round that chose between an encoder and training from scratch."""
    for row in RoundLog(resources.store(), project_id).list():
        if row.status == "finished" and (approach := row.metrics.get("approach")):
            return f"Round {row.number}. {approach['note']}"
    return ""
