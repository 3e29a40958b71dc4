"""Export: labeled items with their provenance, as files."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.jobs.jobs import JobView
from app.views.predictions import newest_predictions
from app.views.text import count
from app.web import resources, state, theme
from app.web.routes.exports import MODEL_TITLE, start_export, start_model_export
from app.web.screens import summarize
from app.web.screens.job_list import job_list
from storage.exporting.counts import ExportCounts, export_counts
from storage.exporting.rows import ExportOptions, Format
from storage.exporting.votes import Contested
from storage.labeling.pool import Pool
from storage.projects.projects import ProjectRow
from storage.rounds.log import RoundLog
from storage.rounds.names import round_names, title_of

FORMATS: dict[Format, str] = {
    "csv": "CSV: opens in any spreadsheet; formulas are escaped",
    "jsonl": "JSON Lines: exact values, one object per line",
    "parquet": "Parquet: exact values, for pandas, DuckDB and Spark",
    "folders": "Class folders: load with Hugging Face datasets, Keras or torchvision",
    "hugging-face": "Hugging Face dataset (Parquet with the files inside)",
    "label-studio": "Label Studio tasks (JSON)",
}
AUDIO_FORMATS: dict[Format, str] = {
    "audacity": "Audacity label tracks: one for each recording, and the table as CSV",
    "raven": "Raven selection tables: one for each recording, and the table as CSV",
}

CONTESTED_WORDS: dict[Contested, str] = {
    "keep": "Keep all; the column contested marks them",
    "majority": "Keep those with a majority; leave out ties",
    "omit": "Leave out",
}


def render() -> None:
    project = state.project()
    counts = Pool(resources.store(), project.id).counts()
    left, right = st.columns([3, 2])
    with left, theme.card("export"):
        theme.heading("Export", f"{counts.labeled:,} of {count(counts.total, 'item')} labeled")
        if counts.labeled == 0:
            theme.muted("Nothing is labeled yet, so an export can contain only model predictions and test items.")
            theme.next_step("Label the first items", "label", "export-to-label")
        found = options(project)
    with right:
        with theme.card("counts"):
            holds(found)
        with theme.card("carries"):
            theme.heading("Contents of each row")
            theme.muted("SHA-256 and original name of the item, its label with annotator and time, the round and "
                        "strategy that picked it with rank and score, whether a suggestion was shown, the labels of "
                        "others, and the votes for each class. manifest.json adds counts, classes, settings and file "
                        "hashes.")  # fmt: skip
            theme.muted("An export is a snapshot. Labels added while it runs are in the next one. You can import an "
                        "export again and get the same items and labels.")  # fmt: skip
    job_list(project.id, "Export", _sentence)
    model_section(project)
    summarize.section(project)


def options(project: ProjectRow) -> ExportCounts:
    """The options of the export; returns its row counts."""
    store = resources.store()
    words = FORMATS | AUDIO_FORMATS if project.kind == "audio" else FORMATS
    chosen = st.radio(
        "Format", list(words), format_func=words.__getitem__, key="export-format", help="File format of the export."
    )
    pseudo = _least_confidence(project)
    test_help = "Test items are used only for evaluation; their split column is test."
    held_out = st.checkbox("Include test items and their labels", key="export-held-out", help=test_help)
    always = chosen in ("folders", "hugging-face")
    media_help = "Copies the audio or picture files; class folders and Hugging Face datasets always contain them."
    media = st.checkbox("Include media files", key="export-media", value=always, disabled=always, help=media_help)
    wanted = ExportOptions(pseudo_above=pseudo, held_out=held_out, contested=_contested(project))
    found = export_counts(store, project.id, wanted)
    if st.button("Create export", type="primary", key="export-now", disabled=found.total == 0):
        media_too = media and not always
        start_export(project, replace(wanted, format=chosen, media=media_too))
        st.rerun()
    return found


def _contested(project: ProjectRow) -> Contested:
    """A field for the treatment of items whose labels differ. It is shown only if there are such items."""
    n = export_counts(resources.store(), project.id, ExportOptions()).contested
    if n == 0:
        return "keep"
    st.warning(
        f"Annotators chose different classes for {count(n, 'item')}, and nobody has decided. Decide in Review, or "
        "choose what happens to contested items."
    )
    help_text = "Items with different labels and no decision in Review."
    chosen = st.radio(
        "Contested items",
        list(CONTESTED_WORDS),
        format_func=CONTESTED_WORDS.__getitem__,
        key="export-contested",
        help=help_text,
    )
    return chosen or "keep"


def _least_confidence(project: ProjectRow) -> float | None:
    """The lowest confidence of predictions to include; None to include no predictions."""
    found = newest_predictions(resources.store(), project.id)
    if found is None or not found.round.metrics.get("has_model"):
        theme.muted("Model predictions can be included after the first round that trains a model.")
        return None
    wanted = st.checkbox(
        "Include model predictions", key="export-pseudo", help="Adds unlabeled items with the class that is predicted."
    )
    if not wanted:
        return None
    help_text = "Predictions below this confidence are left out."
    return st.slider("Minimum confidence", 0.5, 1.0, 0.95, 0.01, key="export-above", help=help_text)


def holds(found: ExportCounts) -> None:
    """The numbers of rows that the export contains, by their source."""
    theme.heading("This export contains")
    theme.figure(f"{found.total:,}", "row" if found.total == 1 else "rows", f"{found.labels:,} labeled by annotators")
    if found.pseudo_labels:
        theme.figure(f"{found.pseudo_labels:,}", "model predictions", "marked in the column source")
    if found.test_items:
        theme.figure(f"{found.test_items:,}", "test items", "split: test")
    if found.contested > found.contested_left_out:
        theme.figure(f"{found.contested - found.contested_left_out:,}", "contested", "marked in the column contested")
    if found.contested_left_out:
        theme.figure(f"{found.contested_left_out:,}", "contested items left out")


def model_section(project: ProjectRow) -> None:
    """The model of a round as files, and below it earlier exports of models."""
    store = resources.store()
    names = round_names(store, project.id)
    rounds = {row.number: row for row in RoundLog(store, project.id).list() if row.metrics.get("has_model")}
    with theme.card("model"):
        theme.heading("Model", "the network of a round, for use without Winnow")
        if not rounds:
            theme.muted("A model can be exported after the first round that trains one.")
        else:
            chosen, button = st.columns([3, 1], vertical_alignment="bottom")
            number = chosen.selectbox(
                "Round",
                list(rounds),
                format_func=lambda one: f"Round {title_of(rounds[one], names)}",
                key="model-round",
                help="The round whose model is exported.",
            )
            if button.button("Export model", key="model-now", width="stretch"):
                start_model_export(project, int(number))
                st.rerun()
            theme.muted("ONNX and safetensors with preprocessing, classes, calibration, settings, data hashes, test "
                        "accuracy, a model card and predict.py, which needs neither Winnow nor torch.")  # fmt: skip
    job_list(project.id, MODEL_TITLE, _model_sentence)


def _model_sentence(view: JobView) -> str:
    done = view.result or {}
    name, accuracy = str(done.get("target", "")).rsplit("/", 1)[-1], done.get("test_accuracy")
    measured = "No test items, so accuracy is not measured."
    if accuracy:
        low, high = (100 * bound for bound in accuracy["interval"])
        measured = (
            f"Test accuracy {100 * accuracy['value']:.1f} %, {count(accuracy['n'], 'item')}, 95 % interval {low:.1f} "
            f"to {high:.1f} %."
        )
    return f"{measured} [Download {name}](/api/exports/{name})"


def _sentence(view: JobView) -> str:
    done = view.result or {}
    name = str(done.get("target", "")).rsplit("/", 1)[-1]
    missing = f", {count(done['media_missing'], 'file')} missing" if done.get("media_missing") else ""
    missing += f", {done['contested']:,} contested" if done.get("contested") else ""
    return f"{count(done.get('rows', 0), 'row')}{missing}. [Download {name}](/api/exports/{name})"
