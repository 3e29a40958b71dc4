"""Collect: a new project in under a minute, more files for one that exists, and its classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from app.web.access import is_loopback
from app.web.routes.uploads import upload_folder, upload_path
from app.web.screens import watch_folder
from app.web.screens.class_editor import class_editor
from app.web.screens.job_list import follow, job_list
from app.web.widgets.uploads import uploads
from core.config import from_dict
from core.errors import WinnowError
from storage.labeling.pool import Pool
from storage.projects import projects

LABEL_WORDS = {
    "given": "are labels",
    "hidden": "are hidden truth, to measure against",
    "ignore": "mean nothing",
}
RULE_WORDS = {"add": "are added", "match": "are matched up to case and spaces", "ask": "stop the import"}
GUESS_WORDS = {"show": "is shown", "hide": "is hidden", "random": "is hidden on a share of items"}
KINDS = {"audio": "Audio clips", "image": "Pictures"}
SHOWN_PROBLEMS = 50


def render() -> None:
    project = state.here().project
    if project is None or st.session_state.get("new-project"):
        with theme.card("new-project"):
            new_project(project is not None)
        return
    counts = Pool(resources.store(), project.id).counts()
    left, right = st.columns([3, 2])
    with left:
        with theme.card("import"):
            about = f"{count(counts.total, 'item')}, {counts.held_out:,} held out, {counts.unreadable:,} unreadable"
            theme.heading(f"Add files to {visible(project.name)}", about)
            add_files(project)
        job_list(project.id, "Import", _import_sentence)
        watch_folder.section(project, server_folders_allowed())
    with right:
        if st.button("New project", icon=":material/add:", key="new-project-button", width="stretch"):
            st.session_state["new-project"] = True
            st.rerun()
        with theme.card("classes"):
            class_editor(project, counts.per_class)
        with theme.card("project"):
            project_settings(project)


def new_project(can_go_back: bool) -> None:
    theme.heading("New project", "name it, say what it holds; files come next")
    with st.form("new-project-form", border=False):
        name = st.text_input("Name", placeholder="Garden birds")
        kind = st.radio("It holds", list(KINDS), format_func=KINDS.__getitem__, horizontal=True)
        listed = st.text_area(
            "Classes", placeholder="One on each line; more can be added any time", height=140, help="Paste a list."
        )
        guidelines = st.text_area("Guidelines", placeholder="What annotators should know (optional)", height=90)
        made = st.form_submit_button("Create the project", type="primary")
    if made:
        names = list(dict.fromkeys(line.strip() for line in listed.splitlines() if line.strip()))
        try:
            row = projects.create_project(resources.store(), name.strip(), kind, names, guidelines=guidelines)
        except WinnowError as error:
            st.error(plain(error))
            return
        st.session_state.pop("new-project", None)
        state.open_project(row.id)
        st.rerun()
    if can_go_back and st.button("Back", type="tertiary", key="new-project-back"):
        st.session_state.pop("new-project", None)
        st.rerun()


def add_files(project: projects.ProjectRow) -> None:
    """Choose a source, say what its labels mean, look through it, then import: nothing is written before."""
    source = _source(project)
    options = st.columns(2)
    with options[0]:
        labels = st.selectbox(
            "Class folders or a manifest's labels",
            list(LABEL_WORDS),
            format_func=LABEL_WORDS.__getitem__,
            key=f"labels-{project.id}",
        )
    with options[1]:
        rule = st.selectbox(
            "Classes the project does not have",
            list(RULE_WORDS),
            format_func=RULE_WORDS.__getitem__,
            key=f"rule-{project.id}",
        )
    if source is None:
        theme.muted("Audio: WAV, FLAC, OGG, MP3. Pictures: PNG, JPEG, WebP, BMP, GIF. Or a zip, or a manifest with "
                    "path, label and split; split=test holds items out.")  # fmt: skip
        return
    arguments = ["import", f"--project={project.name}", f"--labels={labels}", f"--classes={rule}"]
    if st.session_state.get(f"link-{project.id}") and not _uploaded(source):
        arguments.append("--link")
    looked = _looked(project, [*arguments, str(source)])
    if looked is not None and looked.status == "running":
        _wait_for(looked.job.id)
    elif looked is not None and looked.status == "finished" and looked.result is not None:
        _preview(project, looked.result, arguments, source)
    else:
        if looked is not None and looked.status != "cancelled":
            st.error(plain(looked.error or "It could not be looked through; try again."))
        if st.button("Look through it", type="primary", key="look-through"):
            asked = [*arguments, "--preview", "--", str(source)]
            job = jobs.start(resources.locations().home, "Look through", asked, project.id)
            st.session_state[f"looking-{project.id}"] = (job.id, (*arguments, str(source)))
            st.rerun()


def _source(project: projects.ProjectRow) -> Path | None:
    """An upload that is complete, or a folder, archive or manifest on the server."""
    ways = ["Upload", "On the server"] if server_folders_allowed() else ["Upload"]
    way = st.segmented_control("Files from", ways, default="Upload", key=f"way-{project.id}") or "Upload"
    if way == "Upload":
        upload = uploads(state.here(), key=f"upload-{project.id}-{st.session_state.get('uploads-taken', 0)}")
        return upload_path(upload) if upload and upload_path(upload).exists() else None
    text = st.text_input("Folder, zip or manifest on the server", key=f"path-{project.id}", placeholder="/data/birds")
    st.checkbox("Leave the files where they are instead of copying them", key=f"link-{project.id}")
    if not text.strip():
        return None
    path = Path(text.strip()).expanduser()
    if not path.is_absolute() or not path.exists():
        st.error(f"{plain(str(path), 200)} is not there. Give the whole path of a folder, a zip or a manifest.")
        return None
    return path


def _uploaded(source: Path) -> bool:
    """It is ours to remove after the import."""
    return source.parent == upload_folder()


def server_folders_allowed() -> bool:
    """Whoever may name a path may read it, so this is for those who sit at the machine."""
    return is_loopback(resources.locations().host)


def _looked(project: projects.ProjectRow, arguments: list[str]) -> JobView | None:
    """The finished look at exactly this source with exactly these options."""
    job_id, asked = st.session_state.get(f"looking-{project.id}", ("", ()))
    if asked != tuple(arguments):
        return None
    return jobs.look(resources.locations().home, job_id)


@st.fragment(run_every=0.7)
def _wait_for(job_id: str) -> None:
    view = jobs.look(resources.locations().home, job_id)
    if view is None or view.status != "running":
        st.rerun()
        return
    st.progress(view.done / view.total if view.total else 0.0)
    theme.muted(f"Looked at {count(view.done, 'file')}" if view.done else "Looking")
    if st.button("Cancel", key=f"stop-{job_id}"):
        jobs.cancel(resources.locations().home, job_id)


def _preview(project: projects.ProjectRow, seen: dict[str, Any], arguments: list[str], source: Path) -> None:
    """What the import would take and what it would leave out, and why."""
    good = seen["n_entries"] - seen["n_problems"]
    theme.figure(f"{good:,}", "files can be imported", f"{seen['n_test']:,} of them held out")
    if seen["labels"]:
        few = ", ".join(f"{name} {n:,}" for name, n in list(seen["labels"].items())[:12])
        theme.muted(f"Labels: {few}{' …' if len(seen['labels']) > 12 else ''}")
    if seen["n_problems"]:
        st.warning(f"{count(seen['n_problems'], 'file')} will be left out:")
        told = [(markup(one["name"]), markup(one["problem"])) for one in seen["problems"][:SHOWN_PROBLEMS]]
        lines = [f"<li><strong>{name}</strong> {problem}</li>" for name, problem in told]
        more = seen["n_problems"] - SHOWN_PROBLEMS
        rest = f'<li class="winnow-muted">and {more:,} more</li>' if more > 0 else ""
        st.html(f'<ul class="winnow-problems">{"".join(lines)}{rest}</ul>')
    if st.button(f"Import {count(good, 'file')}", type="primary", key="import-now", disabled=good == 0):
        more = ["--skip-problems"] if seen["n_problems"] else []
        uploaded = source if _uploaded(source) else None
        asked = [*arguments, *more, "--", str(source)]
        home = resources.locations().home
        follow(jobs.start(home, f"Import into {project.name}", asked, project.id, uses=uploaded))
        st.session_state.pop(f"looking-{project.id}", None)
        st.session_state["uploads-taken"] = st.session_state.get("uploads-taken", 0) + 1
        st.rerun()


def _import_sentence(view: JobView) -> str:
    done = view.result or {}
    parts = [f"**{done.get('imported', 0):,}** imported", f"{done.get('n_duplicates', 0):,} duplicates"]
    parts += [f"{done.get('already', 0):,} already there", f"{done.get('n_refused', 0):,} refused"]
    if done.get("n_unreadable"):
        parts.append(f"{done['n_unreadable']:,} unreadable")
    refused = [f"{plain(name, 80)}: {plain(why)}" for name, why in done.get("refused", [])[:5]]
    return ", ".join(parts) + "." + "".join(f"\n- {one}" for one in refused)


def project_settings(project: projects.ProjectRow) -> None:
    theme.heading("Project")
    with st.form(f"project-form-{project.id}", border=False):
        name = st.text_input("Name", project.name)
        guidelines = st.text_area("Guidelines", project.guidelines, height=90)
        per_item = st.number_input("Labels for each item", 1, 20, project.settings.labels_per_item)
        suggestions = st.selectbox(
            "The model's guess while labeling",
            list(GUESS_WORDS),
            index=list(GUESS_WORDS).index(project.settings.suggestions),
            format_func=GUESS_WORDS.__getitem__,
        )
        share = st.slider("Share of items without the guess", 0.0, 1.0, project.settings.hidden_share, 0.05)
        saved = st.form_submit_button("Save")
    if saved:
        chosen = {"labels_per_item": int(per_item), "suggestions": suggestions, "hidden_share": float(share)}
        try:
            settings = from_dict(projects.ProjectSettings, dataclasses.asdict(project.settings) | chosen)
            projects.update_project(
                resources.store(), project.id, name=name.strip(), guidelines=guidelines, settings=settings
            )
            st.toast("Saved.")
            st.rerun()
        except WinnowError as error:
            st.error(plain(error))
    with st.popover("Archive this project"):
        theme.muted("It disappears from the list; nothing is deleted, and the command line shows it with --archived.")
        if st.button("Archive", key="archive-project"):
            projects.archive_project(resources.store(), project.id)
            state.open_project(None)
            st.rerun()
