"""Summarize, a part of Deliver: a few of the labeled items with weights, and what they are worth."""

from __future__ import annotations

import secrets

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.views.charts import PLOT_OPTIONS
from app.views.predictions import newest_predictions
from app.views.summary_figure import MODELS, summary_figure
from app.views.text import count, plain
from app.web import resources, theme
from app.web.routes.exports import export_folder
from app.web.screens.job_list import job_list
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow

FORMATS = {"csv": "CSV", "jsonl": "JSON lines", "parquet": "Parquet", "folders": "Class folders"}
TITLE = "Summary"  # with which the titles of its jobs begin


def section(project: ProjectRow) -> None:
    """The card, and below it what came of earlier ones."""
    counts = Pool(resources.store(), project.id).counts()
    with theme.card("summarize"):
        theme.heading("Summarize", "the few labeled items that teach a model almost as much as all of them")
        if counts.labeled < 2:
            theme.muted("Label items of at least two classes first.")
        else:
            wishes(project, counts.labeled)
    job_list(project.id, TITLE, tell)


def wishes(project: ProjectRow, n_labeled: int) -> None:
    """How large, for what, and in which format; starts the job."""
    columns = st.columns([1, 1, 1, 1], vertical_alignment="bottom")
    with columns[0]:
        unit = st.segmented_control("Size in", ["items", "%"], default="items", key="summary-unit") or "items"
    size: float
    with columns[1]:
        if unit == "items":
            largest = max(1, n_labeled)
            size = st.number_input("How many", 1, largest, min(largest, max(2, n_labeled // 10)), key="summary-items")
        else:
            size = st.number_input("How many percent", 0.1, 100.0, 10.0, key="summary-percent")
    with columns[2]:
        chosen = st.selectbox("Format", list(FORMATS), format_func=FORMATS.__getitem__, key="summary-format")
    weighted = st.checkbox("Items carry weights", True, key="summary-weighted")
    opinion = newest_predictions(resources.store(), project.id)
    has_model = opinion is not None and bool(opinion.round.metrics.get("has_model"))
    joint = st.checkbox("Also for the trained network", False, key="summary-joint", disabled=not has_model)
    theme.muted("Chosen for softmax regression on the kernel features" + ("" if has_model else "; together with the "
                "network after the first round with a model") + ". Held-out items only measure it; without any, a "
                "fifth of the labeled items is set aside for that.")  # fmt: skip
    with columns[3]:
        if st.button("Summarize", key="summary-now"):
            arguments = [f"--items={size}" if unit == "items" else f"--percent={size}", f"--format={chosen}"]
            arguments += [] if weighted else ["--no-weighted"]
            arguments += ["--joint"] if joint else []
            start(project, f"{TITLE} of {size:g}{' items' if unit == 'items' else ' %'}", arguments)
            st.rerun()


def start(project: ProjectRow, title: str, arguments: list[str]) -> None:
    """In the background; the project is named last and after `--`, whatever its name looks like."""
    target = export_folder() / f"summary-{project.id}-{secrets.token_hex(4)}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    asked = ["summarize", *arguments, "--", project.name, str(target)]
    jobs.start(resources.locations().home, title, asked, project.id, makes=target)


def tell(view: JobView) -> str:
    """Draws what the summary is worth; gives the sentences below it."""
    done = view.result or {}
    if "accuracy" not in done:
        return "It left no result; start it again."
    figure = summary_figure(done["accuracy"], dark=st.context.theme.type == "dark")
    st.plotly_chart(figure, key=f"summary-{view.job.id}", config=PLOT_OPTIONS)
    measured = f"measured on {plain(done['measured_on'])}"
    lines = [f"{count(done['items'], 'item')} of {done['n_labeled']:,} labeled; {measured}."]
    for worth in done["accuracy"]:
        uniform = f"{100 * worth['uniform_mean']:.1f} ± {100 * worth['uniform_deviation']:.1f} %"
        lines.append(
            f"{MODELS[worth['model']].capitalize()}: **{100 * worth['summary']:.1f} %** with the summary, {uniform} "
            f"with as many at random ({len(worth['uniform'])} draws), {100 * worth['everything']:.1f} % with all."
        )
    lines += [f"{plain(note)}." for note in (*done["notes"], *done["solver_notes"])]
    name = str(done.get("target", "")).rsplit("/", 1)[-1]
    return "\n\n".join([*lines, f"[Download {name}](/api/exports/{name})"])
