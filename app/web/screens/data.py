"""Data: create a project, import files, edit classes and settings, archive and restore projects."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import streamlit as st

from app.jobs import jobs
from app.jobs.jobs import JobView
from app.jobs.requests import ImportRequest, PreviewRequest
from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from app.web.routes.uploads import upload_folder, upload_path
from app.web.screens import watch_folder
from app.web.screens.archived_projects import archive_button, archived_projects
from app.web.screens.class_editor import class_editor
from app.web.screens.import_reading import show_findings, with_reading, with_windows
from app.web.screens.job_list import follow, job_list
from app.web.screens.settings import encoders, members, model_inputs
from app.web.server_folders import find_on_server
from app.web.widgets.uploads import uploads
from core.config import from_dict
from core.errors import WinnowError
from core.limits import limits_from
from storage.importing.item_writer import LabelUse
from storage.importing.preview import ClassRule
from storage.importing.run import ImportOptions
from storage.labeling.pool import Pool
from storage.projects import projects
from storage.projects.recordings import WINDOW_CLASSES, WINDOW_GUIDELINES

LABEL_WORDS: dict[LabelUse, str] = {
    "given": "Use as labels",
    "hidden": "Hide; use only for evaluation",
    "ignore": "Ignore",
}
RULE_WORDS: dict[ClassRule, str] = {
    "add": "Add them",
    "match": "Match ignoring case and spaces",
    "ask": "Reject the import",
}
SUGGESTION_WORDS = {"show": "Always show", "hide": "Never show", "random": "Hide on some items (bias check)"}
KINDS = {"audio": "Audio clips", "image": "Pictures"}
GUIDELINES_HELP = "Instructions that annotators can open while they label."
BLIND_TEXT = (
    "With several annotators per item, blind labeling hides suggestions and the labels of others until you have "
    "labeled the item yourself."
)
SHOWN_PROBLEMS = 50
HELD_OUT = {"n_test": "test item", "n_validation": "validation item"}


def render() -> None:
    project = state.session().project
    if project is None or st.session_state.get("new-project"):
        with theme.card("new-project"):
            new_project(project is not None)
        archived_projects()
        return
    counts = Pool(resources.store(), project.id).counts()
    left, right = st.columns([3, 2])
    with left:
        with theme.card("import"):
            about = f"{count(counts.total, 'item')}, {count(counts.held_out, 'test item')}"
            about += f", {counts.unreadable:,} unreadable" if counts.unreadable else ""
            theme.heading(f"Add files to {visible(project.name)}", about)
            add_files(project)
        job_list(project.id, "Import", _import_sentence)
        with theme.card("model-inputs"):
            model_inputs.section(project)
        encoders.section(project)
        watch_folder.section(project, server_folders_allowed())
    with right:
        if st.button("New project", icon=":material/add:", key="new-project-button", width="stretch"):
            st.session_state["new-project"] = True
            st.rerun()
        with theme.card("classes"):
            class_editor(project, counts.per_class)
        with theme.card("project"):
            project_settings(project)
        members.section(project)
        archived_projects()


def new_project(can_go_back: bool) -> None:
    """The form that creates a project."""
    theme.heading("New project", "import files in the next step")
    with st.form("new-project-form", border=False):
        name = st.text_input("Name", placeholder="Garden birds", help="Shown in the project menu and in exports.")
        kind = st.radio(
            "Media type",
            list(KINDS),
            format_func=KINDS.__getitem__,
            horizontal=True,
            help="A project contains either audio clips or pictures.",
        )
        listed = st.text_area(
            "Classes", placeholder="One per line; you can add more later", height=140, help="One class name per line."
        )
        guidelines = st.text_area("Guidelines", placeholder="Optional", height=90, help=GUIDELINES_HELP)
        windowed = st.checkbox(
            f"Add the classes {' and '.join(WINDOW_CLASSES)}",
            help="For long recordings that are cut into windows: a window may contain several classes, or none.",
        )
        made = st.form_submit_button("Create project", type="primary")
    if made:
        names = list(dict.fromkeys(line.strip() for line in listed.splitlines() if line.strip()))
        if windowed:
            names = list(dict.fromkeys([*names, *WINDOW_CLASSES]))
            guidelines = guidelines.strip() or WINDOW_GUIDELINES
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
    """Choose a source and options, preview the import, then import. Nothing is written before the import."""
    source = _source(project)
    labels, rule = _label_fields(project.id)
    if source is None:
        theme.muted("Audio: WAV, FLAC, OGG, MP3, AIFF. Pictures: PNG, JPEG, WebP, BMP, GIF, TIFF, AVIF. You can also "
                    "import a zip archive, or a manifest with path, label and split. Rows with split=test become test "
                    "items.")  # fmt: skip
        return
    source_found = st.session_state.get(f"found-{project.id}", ("", None))
    found = source_found[1] if source_found[0] == str(source) else None
    request = _preview_request(project, source, labels, rule, found)
    previewed = _preview_job(project, request)
    if previewed is not None and previewed.status == "running":
        _wait_for(previewed.job.id)
    elif previewed is not None and previewed.status == "finished" and previewed.result is not None:
        if found != previewed.result["found"]:  # the columns of the table can be chosen now
            st.session_state[f"found-{project.id}"] = (request.source, previewed.result["found"])
            st.rerun()
        _preview(project, previewed.result, request)
    else:
        if previewed is not None and previewed.status != "cancelled":
            st.error(plain(previewed.error or "The preview failed. Try again."))
        if st.button("Preview import", type="primary", key="preview-import"):
            job = jobs.start(resources.locations().home, "Preview", request, project.id)
            st.session_state[f"looking-{project.id}"] = (job.id, request)
            st.rerun()


def _label_fields(project_id: int) -> tuple[LabelUse, ClassRule]:
    """Fields for how existing labels are used, and for labels of unknown classes."""
    options = st.columns(2)
    with options[0]:
        labels = st.selectbox(
            "Existing labels",
            list(LABEL_WORDS),
            format_func=LABEL_WORDS.__getitem__,
            key=f"labels-{project_id}",
            help="How to use labels from class folders or from a manifest.",
        )
    with options[1]:
        rule = st.selectbox(
            "Unknown classes",
            list(RULE_WORDS),
            format_func=RULE_WORDS.__getitem__,
            key=f"rule-{project_id}",
            help="What to do with labels whose class is not in the project.",
        )
    return labels, rule


def _preview_request(
    project: projects.ProjectRow, source: Path, labels: LabelUse, rule: ClassRule, found: dict[str, Any] | None
) -> PreviewRequest:
    """The preview of a source with the chosen options. The fields for windows and for reading are drawn here."""
    uploaded = _uploaded(source)
    link = bool(st.session_state.get(f"link-{project.id}")) and not uploaded
    options = ImportOptions(labels=labels, storage="link" if link else "copy", classes=rule, limits=limits_from())
    base = None if uploaded or source.suffix == ".zip" else source if source.is_dir() else source.parent
    options = with_reading(with_windows(options, project), project.id, found, base)
    return PreviewRequest(source=str(source), project=project.name, options=options)


def _source(project: projects.ProjectRow) -> Path | None:
    """The chosen source: a completed upload, or a folder, archive or manifest on the server. None if there is none."""
    source_kind = _source_kind(project.id)
    if source_kind == "Upload":
        upload = uploads(state.session(), key=f"upload-{project.id}-{st.session_state.get('uploads-taken', 0)}")
        return upload_path(upload) if upload and upload_path(upload).exists() else None
    text = st.text_input(
        "Folder, zip or manifest on the server",
        key=f"path-{project.id}",
        placeholder="/data/birds",
        help="Absolute path on the machine that runs Winnow.",
    )
    st.checkbox(
        "Link files instead of copying them", key=f"link-{project.id}", help="The files must stay where they are."
    )
    if not text.strip():
        return None
    try:
        path = find_on_server(text, resources.import_roots())
    except WinnowError as error:
        st.error(plain(error))
        return None
    return path


def _source_kind(project_id: int) -> str:
    """The chosen kind of source: "Upload" or, if that is allowed, "On the server"."""
    kinds = ["Upload", "On the server"] if server_folders_allowed() else ["Upload"]
    help_text = "Upload files from this computer, or read them from a folder on the server."
    return (
        st.segmented_control("Source", kinds, default="Upload", key=f"source-kind-{project_id}", help=help_text)
        or "Upload"
    )


def _uploaded(source: Path) -> bool:
    """Whether the source is an upload, which is removed after the import."""
    return source.parent == upload_folder()


def server_folders_allowed() -> bool:
    """Whether this user may enter folders of the server (`app.web.server_folders`)."""
    return bool(resources.import_roots())


def _preview_job(project: projects.ProjectRow, request: PreviewRequest) -> JobView | None:
    """The preview job for exactly this source and these options, or None."""
    job_id, requested = st.session_state.get(f"looking-{project.id}", ("", None))
    if requested != request:
        return None
    return jobs.find_job(resources.locations().home, job_id)


@st.fragment(run_every=0.7)
def _wait_for(job_id: str) -> None:
    view = jobs.find_job(resources.locations().home, job_id)
    if view is None or view.status != "running":
        st.rerun()
        return
    st.progress(view.done / view.total if view.total else 0.0)
    theme.muted(f"{count(view.done, 'file')} read" if view.done else "Reading files")
    if st.button("Cancel", key=f"stop-{job_id}"):
        jobs.cancel(resources.locations().home, job_id)


def _preview(project: projects.ProjectRow, seen: dict[str, Any], request: PreviewRequest) -> None:
    """Show which files would be imported, which would be skipped, and why, with the button that imports them."""
    good = seen["n_entries"] - seen["n_problems"]
    held_out = [count(seen[name], words) for name, words in HELD_OUT.items() if seen[name]]
    about = f"including {' and '.join(held_out)}" if held_out else ""
    theme.figure(f"{good:,}", f"{'file' if good == 1 else 'files'} can be imported", about)
    if seen["cut"]:
        theme.muted(seen["cut"])
    if seen["labels"]:
        few = ", ".join(f"{name} {n:,}" for name, n in list(seen["labels"].items())[:12])
        theme.muted(f"Labels: {few}{' …' if len(seen['labels']) > 12 else ''}")
    asked = show_findings(seen)
    if seen["n_problems"]:
        st.warning(f"{count(seen['n_problems'], 'file')} will be skipped:")
        problems = [(markup(one["name"]), markup(one["problem"])) for one in seen["problems"][:SHOWN_PROBLEMS]]
        lines = [f"<li><strong>{name}</strong> {problem}</li>" for name, problem in problems]
        more = seen["n_problems"] - SHOWN_PROBLEMS
        rest = f'<li class="winnow-muted">and {more:,} more</li>' if more > 0 else ""
        st.html(f'<ul class="winnow-problems">{"".join(lines)}{rest}</ul>')
    if st.button(f"Import {count(good, 'file')}", type="primary", key="import-now", disabled=asked or good == 0):
        options = dataclasses.replace(request.options, skip_problems=bool(seen["n_problems"]))
        wanted = ImportRequest(source=request.source, project=request.project, options=options)
        source = Path(request.source)
        uploaded = source if _uploaded(source) else None
        home = resources.locations().home
        follow(jobs.start(home, f"Import into {project.name}", wanted, project.id, uses=uploaded))
        st.session_state.pop(f"looking-{project.id}", None)
        st.session_state["uploads-taken"] = st.session_state.get("uploads-taken", 0) + 1
        st.rerun()


def _import_sentence(view: JobView) -> str:
    done = view.result or {}
    parts = [f"**{done.get('imported', 0):,}** imported"]
    if done.get("recordings"):
        parts.append(f"{count(done['recordings'], 'recording')} cut into windows")
    parts.append(count(done.get("n_duplicates", 0), "duplicate"))
    parts += [f"{done.get('already', 0):,} already in the project", f"{done.get('n_refused', 0):,} rejected"]
    if done.get("n_unreadable"):
        parts.append(f"{done['n_unreadable']:,} unreadable")
    refused = [f"{plain(name, 80)}: {plain(why)}" for name, why in done.get("refused", [])[:5]]
    return ", ".join(parts) + "." + "".join(f"\n- {one}" for one in refused)


def project_settings(project: projects.ProjectRow) -> None:
    """The form with the project's settings and guidelines. It stores only changed values."""
    theme.heading("Project")
    with st.form(f"project-form-{project.id}", border=False):
        name = st.text_input("Name", project.name, help="Shown in the project menu and in exports.")
        guidelines = st.text_area("Guidelines", project.guidelines, height=90, help=GUIDELINES_HELP)
        chosen = _annotator_fields(project.settings) | _suggestion_fields(project.settings)
        saved = st.form_submit_button("Save")
    if saved:
        try:
            settings = from_dict(projects.ProjectSettings, dataclasses.asdict(project.settings) | chosen)
            projects.update_project(
                resources.store(), project.id, name=name.strip(), guidelines=guidelines, settings=settings
            )
            st.toast("Saved.")
            st.rerun()
        except WinnowError as error:
            st.error(plain(error))
    archive_button(project)


def _annotator_fields(settings: projects.ProjectSettings) -> dict[str, Any]:
    """Fields for the annotators of an item. Returns the chosen settings."""
    per_item = st.number_input(
        "Annotators per item", 1, 20, settings.labels_per_item, help="How many people label each item."
    )
    blind = st.checkbox("Blind labeling", settings.blind, help="Has no effect with one annotator per item.")
    theme.muted(BLIND_TEXT)
    return {"labels_per_item": int(per_item), "blind": blind}


def _suggestion_fields(settings: projects.ProjectSettings) -> dict[str, Any]:
    """Fields for the suggestions of the model. Returns the chosen settings."""
    suggestions = st.selectbox(
        "Model suggestions",
        list(SUGGESTION_WORDS),
        index=list(SUGGESTION_WORDS).index(settings.suggestions),
        format_func=SUGGESTION_WORDS.__getitem__,
        help="Whether annotators see the class that the model predicts.",
    )
    share = st.slider(
        "Share of items without a suggestion",
        0.0,
        1.0,
        settings.hidden_share,
        0.05,
        help="Used when suggestions are hidden on some items.",
    )
    live = st.checkbox(
        "Update predictions between rounds",
        settings.live,
        help="Suggestions, the grid and the map follow each label within about a second.",
    )
    return {"suggestions": suggestions, "hidden_share": float(share), "live": live}
