"""Summarize, a part of Export: a small weighted subset of the labeled items, with its measured accuracy."""

from __future__ import annotations

import secrets

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.jobs.requests import SummaryOptions, SummaryRequest
from app.views.cards.summary_verdict import few_labels, verdict
from app.views.figures.charts import PLOT_OPTIONS
from app.views.figures.summary import MODELS, summary_figure
from app.views.predictions import newest_predictions
from app.views.text import count, plain
from app.web import resources, theme
from app.web.routes.exports import export_folder
from app.web.screens.job_list import job_list
from storage.exporting.rows import ExportOptions, Format
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow

FORMATS: dict[Format, str] = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet", "folders": "Class folders"}
TITLE = "Summary"  # the titles of the jobs of this card begin with it


def section(project: ProjectRow) -> None:
    """The card, with earlier summaries below it."""
    counts = Pool(resources.store(), project.id).counts()
    with theme.card("summarize"):
        theme.heading("Summarize", "a small subset of the labeled items that trains a model almost as well")
        if counts.labeled < 2:
            theme.muted("Label items of at least two classes first.")
        else:
            if warning := few_labels(counts.labeled):
                theme.note(warning)
            summary_form(project, counts.labeled)
    job_list(project.id, TITLE, result_text, state_words)


def summary_form(project: ProjectRow, n_labeled: int) -> None:
    """The form with size, format and options. It starts the job."""
    columns = st.columns([1, 1, 1, 1], vertical_alignment="bottom")
    with columns[0]:
        help_text = "Set the size as a number of items or as a percentage of the labeled items."
        units = ["items", "%"]
        unit = st.segmented_control("Unit", units, default="items", key="summary-unit", help=help_text) or "items"
    size: float
    with columns[1]:
        if unit == "items":
            largest = max(1, n_labeled)
            usual = min(largest, max(2, n_labeled // 10))
            size = st.number_input("Size", 1, largest, usual, key="summary-items", help="Items in the summary.")
        else:
            help_text = "Size as a percentage of the labeled items."
            size = st.number_input("Size in percent", 0.1, 100.0, 10.0, key="summary-percent", help=help_text)
    with columns[2]:
        help_text, words = "File format of the summary.", FORMATS.__getitem__
        chosen = st.selectbox("Format", list(FORMATS), format_func=words, key="summary-format", help=help_text)
    help_text = "Each item gets a weight for training. Without weights, all items count the same."
    weighted = st.checkbox("Weighted items", True, key="summary-weighted", help=help_text)
    found = newest_predictions(resources.store(), project.id)
    has_model = found is not None and bool(found.round.metrics.get("has_model"))
    settings = found.round.metrics.get("settings", {}) if found is not None else {}
    features = "encoder" if settings.get("encoder", {}).get("identity") else "kernel"
    help_text = f"Selects items for the network of the newest round as well as for the {features} features."
    joint = st.checkbox(
        "Include the trained network", False, key="summary-joint", disabled=not has_model, help=help_text
    )
    theme.muted(f"Items are selected for softmax regression on the {features} features. Accuracy is measured on test "
                "items; without test items, a fifth of the labeled items is set aside.")  # fmt: skip
    with columns[3]:
        if st.button("Summarize", key="summary-now"):
            summary = SummaryOptions(
                items=int(size) if unit == "items" else None,
                percent=None if unit == "items" else float(size),
                weighted=weighted,
                joint=joint,
            )
            title = f"{TITLE} of {size:g}{' items' if unit == 'items' else ' %'}"
            start(project, title, summary, ExportOptions(format=chosen))
            st.rerun()


def start(project: ProjectRow, title: str, summary: SummaryOptions, options: ExportOptions) -> None:
    """Start the summary as a background job."""
    target = export_folder() / f"summary-{project.id}-{secrets.token_hex(4)}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    request = SummaryRequest(project_id=project.id, target=str(target), summary=summary, options=options)
    jobs.start(resources.locations().home, title, request, project.id, makes=target)


def state_words(view: JobView) -> str:
    """The state of a finished summary. A summary that is worse than a random subset is not "done"."""
    if view.status != "finished" or not (view.result or {}).get("accuracy"):
        return ""
    return {"better": "done", "no better": "no better than random", "worse": "worse than random"}[
        verdict(view.result or {})[0]
    ]


def result_text(view: JobView) -> str:
    """Draw the accuracy of a summary. Returns the text below it."""
    done = view.result or {}
    if "accuracy" not in done:
        return "The job has no result. Start it again."
    kind, sentence = verdict(done)
    (st.success if kind == "better" else st.warning)(plain(sentence))
    figure = summary_figure(done["accuracy"], dark=st.context.theme.type == "dark")
    st.plotly_chart(figure, key=f"summary-{view.job.id}", config=PLOT_OPTIONS)
    measured = f"measured on {plain(done['measured_on'])}"
    lines = [f"{count(done['items'], 'item')} of {done['n_labeled']:,} labeled; {measured}."]
    for worth in done["accuracy"]:
        uniform = f"{100 * worth['uniform_mean']:.1f} ± {100 * worth['uniform_deviation']:.1f} %"
        lines.append(
            f"{MODELS[worth['model']].capitalize()}: **{100 * worth['summary']:.1f} %** with the summary, {uniform} "
            f"with a random subset of the same size ({len(worth['uniform'])} draws), "
            f"{100 * worth['everything']:.1f} % with all items."
        )
    lines += [f"{plain(note)}." for note in (*done["notes"], *done["solver_notes"])]
    name = str(done.get("target", "")).rsplit("/", 1)[-1]
    return "\n\n".join([*lines, f"[Download {name}{' anyway' if kind == 'worse' else ''}](/api/exports/{name})"])
