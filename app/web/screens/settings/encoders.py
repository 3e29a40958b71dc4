"""Encoders, a card on Data: this store's encoders for the project's media type, and embeddings from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.jobs.requests import EmbeddingsRequest
from app.views.text import count, markup, plain
from app.web import resources, state, theme
from app.web.routes.uploads import upload_path
from app.web.screens.job_list import follow, job_list
from app.web.widgets.uploads import uploads
from core.encoders.built_in import BUILT_IN
from core.encoders.folders import Encoder, installed
from storage.projects.projects import ProjectRow

TITLE = "Embeddings"  # the titles of the jobs of this card begin with it
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
MISSING_SHOWN = 5


def section(project: ProjectRow) -> None:
    """The card, with the jobs that read embeddings below it."""
    with theme.card("encoders"):
        rows = encoder_rows(project)
        known = count(len(rows), "pretrained network") if rows else "no pretrained network"
        theme.heading("Encoders", f"{known} for {'audio clips' if project.kind == 'audio' else 'pictures'}")
        if rows:
            lines = ["".join(f"<td>{markup(cell)}</td>" for cell in row) for row in rows]
            body = "".join(f"<tr>{line}</tr>" for line in lines)
            head = "".join(f"<th scope='col'>{name}</th>" for name in ("Name", "Features", "License", ""))
            st.html(
                f'<div class="winnow-table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            )
        theme.muted(
            "Add one on the command line: python -m app encoders add FOLDER. Train can compare them on your labels."
        )
        with st.expander("Embeddings from elsewhere", key=f"embeddings-{project.id}"):
            _embeddings(project)
    job_list(project.id, TITLE, result_text)


def encoder_rows(project: ProjectRow) -> list[tuple[str, str, str, str]]:
    """(name, numbers per item, license, note) of the encoders for this media type, the built-in ones first."""
    there = dict(installed(resources.store().home))
    built_in = [name for name, (kind, _) in BUILT_IN.items() if kind == project.kind]
    rows = []
    for name in [*built_in, *(name for name in there if name not in BUILT_IN)]:
        found = there.get(name)
        if isinstance(found, Encoder):
            about = found.description
            note = "embeddings from elsewhere" if found.is_table else "built in" if name in built_in else ""
            if about.kind == project.kind:
                rows.append((name, f"{about.output.width:,}", about.license, note))
        elif found is None:
            rows.append((name, "", "", "built in, created on first use"))
        else:
            rows.append((name, "", "", str(found)))
    return rows


def _embeddings(project: ProjectRow) -> None:
    """The form with the file and the name. It starts the job."""
    theme.muted(
        "Parquet with the columns key (SHA-256 or file name) and embedding (a list of numbers), or NPY with a text "
        "file that has one key per line. The embeddings become a new encoder."
    )
    name = st.text_input("Name", key=f"embeddings-name-{project.id}", placeholder="my-embeddings").strip().lower()
    key = f"embeddings-upload-{project.id}-{st.session_state.get('embeddings-taken', 0)}"
    upload = uploads(state.session(), key=key)
    source = upload_path(upload) if upload and upload_path(upload).exists() else None
    if name and not NAME.fullmatch(name):
        theme.note("Use a to z, 0 to 9, dots, hyphens and underscores in the name.")
    ready = source is not None and bool(NAME.fullmatch(name))
    if st.button("Import embeddings", key=f"embeddings-read-{project.id}", disabled=not ready) and source is not None:
        start(project, name, source)
        st.session_state["embeddings-taken"] = st.session_state.get("embeddings-taken", 0) + 1
        st.rerun()


def start(project: ProjectRow, name: str, source: Path) -> None:
    """Start the job. The upload is removed when it succeeds."""
    request = EmbeddingsRequest(project_id=project.id, source=str(source), name=name)
    follow(jobs.start(resources.locations().home, f"{TITLE} {name}", request, project.id, uses=source))


def result_text(view: JobView) -> str:
    """The coverage of the embeddings and the first items without a row, as text."""
    done = view.result or {}
    if "items" not in done:
        return ""
    text = (
        f"{done['items']:,} of {done['of']:,} items have embeddings of {done['dimension']:,} numbers. Encoder: "
        f"{plain(done['name'])}."
    )
    if done["n_missing"]:
        shown = ", ".join(plain(one) for one in done["missing"][:MISSING_SHOWN])
        text += f" {done['n_missing']:,} have none and are left out, such as {shown}."
    if done["unused"]:
        text += f" {count(done['unused'], 'row of the file belongs', 'rows of the file belong')} to no item."
    return text
