"""Fields for how a source is read: folders, splits and table columns, with the findings of the last preview."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from app.views.text import plain, visible
from app.web import resources, theme
from app.web.server_folders import find_on_server
from core.errors import InvalidInput, WinnowError
from storage.importing.preview import ValidationUse
from storage.importing.reading import NO_TABLE, FolderUse, ReadingOptions, SplitUse
from storage.importing.run import ImportOptions
from storage.importing.windows.kept import kept_windows
from storage.media.windows import LONGEST, SHORTEST, WindowOptions
from storage.projects.projects import ProjectRow

FOLDER_WORDS: dict[FolderUse, str] = {"auto": "Automatic", "classes": "Class names", "ignore": "No labels"}
SPLIT_WORDS: dict[SplitUse, str] = {"auto": "Automatic", "take": "Splits", "ignore": "Ordinary folders"}
VALIDATION_WORDS: dict[ValidationUse, str] = {"hold-out": "Hold out", "pool": "Put into the pool"}
AUTOMATIC = "Automatic"
COLUMNS = {
    "path": "The table's column with the path.",
    "label": "The table's column with the label.",
    "split": "The table's column with the split.",
    "group": "The table's column with the group, such as a speaker or a patient. Random splits keep groups together.",
}
SHOWN_WARNINGS = 10
WINDOWS_HELP = (
    "Sounds that are longer than a window are cut into windows, which are labeled one by one. The file is stored once."
)


def with_reading(
    options: ImportOptions, project_id: int, found: Mapping[str, Any] | None, base: Path | None
) -> ImportOptions:
    """Draw the fields and return `options` with the user's choices.

    `found` are the findings of the last preview of this source. `base` is the folder on the server that a media folder
    is relative to, or None for an upload or an archive.
    """
    asked = [question["option"] for question in (found or {}).get("questions", ())]
    with st.expander("How files are read", expanded=bool(asked)):
        first, second, third = st.columns(3)
        with first:
            folders = _choice("Folder names", FOLDER_WORDS, f"folders-{project_id}", "Whether folder names are labels.")
        with second:
            help_text = "Whether folders called train, val or test are splits."
            splits = _choice("Split folders", SPLIT_WORDS, f"splits-{project_id}", help_text)
        with third:
            help_text = "What to do with items that the source calls validation data."
            validation = _choice("Validation items", VALIDATION_WORDS, f"validation-{project_id}", help_text)
        reading = _table(ReadingOptions(folders=folders, splits=splits), project_id, found or {}, base)
        reading = _columns(reading, project_id, found or {})
    return dataclasses.replace(options, reading=reading, validation=validation)


def with_windows(options: ImportOptions, project: ProjectRow) -> ImportOptions:
    """`options` with windows if the user chooses to cut recordings. Only audio projects have this field."""
    return dataclasses.replace(options, windows=choose_windows(project, f"{project.id}"))


def choose_windows(project: ProjectRow, place: str) -> WindowOptions | None:
    """Fields for whether and how recordings are cut into windows. The initial values are those of the project's last
    import. `place` is part of the widget keys."""
    if project.kind != "audio":
        return None
    before = kept_windows(project)
    cut = st.checkbox("Cut recordings into windows", before is not None, key=f"windows-{place}", help=WINDOWS_HELP)
    if not cut:
        return None
    first_seconds = before.seconds if before else 5.0
    first, second = st.columns(2)
    with first:
        seconds = st.number_input(
            "Window (s)",
            SHORTEST,
            LONGEST,
            first_seconds,
            0.5,
            key=f"window-seconds-{place}",
            help="Length of a window.",
        )
    with second:
        hop = st.number_input(
            "Hop (s)",
            0.05,
            3600.0,
            before.step if before and before.seconds == seconds else float(seconds),
            0.5,
            key=f"window-hop-{place}-{seconds}",
            help="Seconds from the start of one window to the next. If shorter than a window, windows overlap.",
        )
    theme.muted("A window may contain several classes. Label the most prominent one, or give the project classes such "
                "as mixed and none of these.")  # fmt: skip
    return WindowOptions(seconds=float(seconds), hop=float(hop))


def _choice(title: str, words: Mapping[Any, str], key: str, help_text: str) -> Any:
    return st.selectbox(title, list(words), format_func=words.__getitem__, key=key, help=help_text)


def _table(reading: ReadingOptions, project_id: int, found: Mapping[str, Any], base: Path | None) -> ReadingOptions:
    """The table with the labels, and the folder that its paths start from."""
    if not found.get("choices") and not found.get("tables"):
        return reading
    first, second = st.columns(2)
    taken = ", ".join(found["tables"]) or "none"
    names = {"": f"{AUTOMATIC} ({taken})", NO_TABLE: "No table"} | {name: name for name in found["choices"]}
    key = f"table-{project_id}"
    if st.session_state.get(key, "") not in names:
        del st.session_state[key]
    with first:
        table = _choice("Table with labels", names, key, "The table that names the files and their labels.")
    with second:
        text = st.text_input(
            "Media folder",
            key=f"media-root-{project_id}",
            placeholder=found.get("media_root") or "Found automatically",
            help="The folder that the paths in the table start from.",
        )
    try:
        root = media_root(text, base)
    except WinnowError as error:
        st.error(plain(error))
        root = ""
    return dataclasses.replace(reading, table=table, media_root=root)


def media_root(text: str, base: Path | None) -> str:
    """Check the media folder and return it in the form that imports expect. On the server, it must be in a folder that
    may be imported from. In an upload or an archive, it must be a relative path inside it."""
    text = text.strip()
    if not text:
        return ""
    if base is not None:
        return str(find_on_server(str(base / text), resources.import_roots()))
    if text.startswith(("/", "~")) or ".." in text.replace("\\", "/").split("/"):
        raise InvalidInput(f"The media folder {text[:200]} is not inside the source. Enter a relative path.")
    return text


def _columns(reading: ReadingOptions, project_id: int, found: Mapping[str, Any]) -> ReadingOptions:
    """Fields for the columns of the table that the last preview found, with the first rows of the table. The columns of
    a newly chosen table can be chosen after its preview."""
    if not found.get("tables") or reading.table not in ("", *found["tables"]):
        return reading
    if found.get("first_rows"):
        theme.muted(f"First rows of {visible(found['tables'][0])}")
        st.dataframe(found["first_rows"], hide_index=True)
    chosen: dict[str, Any] = {}
    for place, (what, help_text) in zip((*st.columns(2), *st.columns(2)), COLUMNS.items(), strict=True):
        taken = found["columns"].get(what)
        names = {"": f"{AUTOMATIC} ({taken})" if taken else AUTOMATIC} | {name: name for name in found["column_names"]}
        with place:
            key = f"{what}-column-{project_id}-{found['tables'][0]}"
            if st.session_state.get(key, "") not in names:
                del st.session_state[key]
            chosen[f"{what}_column"] = _choice(f"{what.capitalize()} column", names, key, help_text)
    return dataclasses.replace(reading, **chosen)


def show_findings(seen: Mapping[str, Any]) -> bool:
    """Show the findings of the preview. Returns whether a question must be answered before the import."""
    found = seen["found"]
    if found["labels_from"]:
        theme.muted(f"Labels from: {visible(found['labels_from'])}")
    if seen["splits"]:
        theme.muted("Splits: " + ", ".join(f"{visible(name)} {n:,}" for name, n in seen["splits"].items()))
    if found["label_names"]:
        few = [f"{visible(value)} = {visible(name)}" for value, name in list(found["label_names"].items())[:10]]
        theme.muted("Class names: " + ", ".join(few))
    for warning in found["warnings"][:SHOWN_WARNINGS]:
        st.warning(plain(warning))
    for question in found["questions"]:
        st.error(plain(question["text"]))
    return bool(found["questions"])
