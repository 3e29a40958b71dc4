"""Deliver: labeled sets with their provenance, as files."""

from __future__ import annotations

import re
import secrets

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.views.export_counts import ExportCounts, export_counts
from app.views.predictions import newest_predictions
from app.views.text import count
from app.web import resources, state, theme
from app.web.routes.exports import export_folder
from app.web.screens import summarize
from app.web.screens.job_list import job_list
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow

FORMATS = {
    "csv": "CSV: opens in any spreadsheet; formulas are neutralized",
    "jsonl": "JSON lines: exact, one object a line",
    "parquet": "Parquet: exact, for pandas, DuckDB and Spark",
    "folders": "Class folders with metadata.csv: loads with Hugging Face datasets",
    "label-studio": "Label Studio tasks (JSON)",
}


def render() -> None:
    project = state.project()
    counts = Pool(resources.store(), project.id).counts()
    left, right = st.columns([3, 2])
    with left, theme.card("export"):
        theme.heading("Export", f"{count(counts.labeled, 'label')} of {count(counts.total, 'item')}")
        if counts.labeled == 0:
            theme.muted("Nothing is labeled yet; an export now would hold guesses or held-out items at most.")
        found = options(project)
    with right:
        with theme.card("counts"):
            holds(found)
        with theme.card("carries"):
            theme.heading("What every row carries")
            theme.muted("The item's SHA-256 and original name, its label, who gave it and when, the round and strategy "
                        "that asked for it with its place and score, whether a guess was shown, and what others said. "
                        "manifest.json adds counts, classes, settings and the hash of every file.")  # fmt: skip
            theme.muted("An export is a snapshot: labels given meanwhile are in the next one. Importing it again gives "
                        "the same items and labels.")  # fmt: skip
    job_list(project.id, "Export", _sentence)
    summarize.section(project)


def options(project: ProjectRow) -> ExportCounts:
    """What the export shall hold; gives how many rows that are."""
    store = resources.store()
    chosen = st.radio("Format", list(FORMATS), format_func=FORMATS.__getitem__, key="export-format")
    guesses = newest_predictions(store, project.id)
    pseudo = None
    if guesses is not None and guesses.round.metrics.get("has_model"):
        if st.checkbox("Also the model's guesses", key="export-pseudo"):
            pseudo = st.slider("With a confidence of at least", 0.5, 1.0, 0.95, 0.01, key="export-above")
    else:
        theme.muted("PoolPredictions can be added after the first round with a model.")
    held_out = st.checkbox("Also held-out items with their truth", key="export-held-out")
    media = st.checkbox("The files too", key="export-media", value=chosen == "folders", disabled=chosen == "folders")
    found = export_counts(store, project.id, pseudo_above=pseudo, held_out=held_out)
    if st.button("Prepare the export", type="primary", key="export-now", disabled=found.total == 0):
        arguments = [f"--format={chosen}"]
        arguments += [f"--pseudo-above={pseudo}"] if pseudo is not None else []
        arguments += ["--held-out"] if held_out else []
        arguments += ["--media"] if media and chosen != "folders" else []
        prepare(project, chosen, arguments)
        st.rerun()
    return found


def prepare(project: ProjectRow, chosen: str, arguments: list[str]) -> None:
    """In the background; the project is named last and after `--`, whatever its name looks like."""
    target = export_folder() / f"{slug(project.name)}-{chosen}-{secrets.token_hex(4)}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    asked = ["export", *arguments, "--", project.name, str(target)]
    jobs.start(resources.locations().home, f"Export as {chosen}", asked, project.id, makes=target)


def holds(found: ExportCounts) -> None:
    theme.heading("This export holds")
    theme.figure(f"{found.total:,}", "row" if found.total == 1 else "rows", f"{found.labels:,} labeled by people")
    if found.guesses:
        theme.figure(f"{found.guesses:,}", "guesses of the model", "marked as such in the column source")
    if found.truths:
        theme.figure(f"{found.truths:,}", "held-out items", "split: test")


def slug(name: str) -> str:
    """A plain part of a file name; the project's real name is in the manifest."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "project"


def _sentence(view: JobView) -> str:
    done = view.result or {}
    name = str(done.get("target", "")).rsplit("/", 1)[-1]
    missing = f", {done['media_missing']:,} files missing" if done.get("media_missing") else ""
    return f"{done.get('rows', 0):,} rows{missing}. [Download {name}](/api/exports/{name})"
