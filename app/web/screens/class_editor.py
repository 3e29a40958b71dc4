"""Classes: add, rename, merge, retire, keys and colors. Merging and retiring can be undone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from core.errors import WinnowError
from storage.projects import classes
from storage.projects.class_rows import ClassRow
from storage.projects.projects import ProjectRow


def class_editor(project: ProjectRow, per_class: Mapping[int, int]) -> None:
    """The card with all classes: add a class, or choose one to edit."""
    store = resources.store()
    known = classes.list_classes(store, project.id, include_inactive=True)
    active = [row for row in known if row.active]
    theme.heading("Classes", count(len(active), "class", "classes"))
    st.html(_chips(active, per_class))
    with st.form(f"add-class-{project.id}", border=False, clear_on_submit=True):
        places = st.columns([3, 1], vertical_alignment="bottom")
        name = places[0].text_input("New class", placeholder="Name", help="Name of a class that annotators can choose.")
        if places[1].form_submit_button("Add", width="stretch") and name.strip():
            _do(classes.add_class, store, project.id, name.strip(), by=state.session().annotator.id)
    if not active:
        return
    chosen = _choice(project.id, {row.id: row for row in known})
    if chosen is not None:
        change(project.id, chosen, active, per_class.get(chosen.id, 0))


def _choice(project_id: int, by_id: Mapping[int, ClassRow]) -> ClassRow | None:
    """The class to edit. It stays selected when it is renamed, although Streamlit then treats the options as new."""
    ids, titles = list(by_id), [_title(row, by_id) for row in by_id.values()]
    key = f"class-chosen-{project_id}"
    before = st.session_state.get(key, -1)
    chosen = st.selectbox(
        "Edit a class",
        ids,
        index=ids.index(before) if before in by_id else None,
        placeholder="Choose a class",
        format_func=lambda one: titles[ids.index(one)],
        key=f"class-{project_id}-{zlib.crc32(repr(titles).encode())}",
        help="Rename, merge or retire a class, or change its key and color.",
    )
    st.session_state[key] = -1 if chosen is None else chosen
    return by_id.get(chosen) if chosen is not None else None


def _chips(active: list[ClassRow], per_class: Mapping[int, int]) -> str:
    parts = [
        f'<span class="winnow-chip">{f"<kbd>{markup(row.key)}</kbd>" if row.key else ""}'
        f'<span aria-hidden="true" style="color:{markup(row.color or "#888888")}">●</span>'
        f"{markup(row.name)} <small>{per_class.get(row.id, 0):,}</small></span>"
        for row in active[:200]
    ]
    return f'<div class="winnow-chips">{"".join(parts)}</div>'


def _title(row: ClassRow, by_id: Mapping[int, ClassRow]) -> str:
    if row.effective_id is not None and row.effective_id in by_id:
        return f"{visible(row.name)} (merged into {visible(by_id[row.effective_id].name)})"
    return visible(row.name) + (" (retired)" if row.retired_at is not None else "")


def change(project_id: int, row: ClassRow, active: list[ClassRow], n_labels: int) -> None:
    """The fields of one class: name, key, color, merge and retire."""
    store, by = resources.store(), state.session().annotator.id
    if row.effective_id is not None:
        if st.button("Undo merge", key=f"unmerge-{row.id}"):
            _do(classes.unmerge_class, store, project_id, row.id, by=by)
        return
    if row.retired_at is not None:
        if st.button("Restore class", key=f"restore-{row.id}"):
            _do(classes.restore_class, store, project_id, row.id, by=by)
        return
    places = st.columns([3, 1, 1], vertical_alignment="bottom")
    name = places[0].text_input(
        "Name", row.name, key=f"name-{row.id}-{row.name}", help="Existing labels keep the class."
    )
    key = places[1].text_input(
        "Key", row.key or "", max_chars=1, key=f"key-{row.id}-{row.key}", help="The key that assigns this class."
    )
    color = places[2].color_picker(
        "Color", row.color or "#888888", key=f"color-{row.id}", help="The color of this class."
    )
    buttons = st.columns(2)
    if buttons[0].button("Save", key=f"save-{row.id}", width="stretch"):
        _do(_save, project_id, row, name.strip(), key.strip(), color)
    gone = "Annotators can no longer choose it. Existing labels are kept, and you can restore it."
    if buttons[1].button("Retire", key=f"retire-{row.id}", width="stretch", help=gone):
        _do(classes.retire_class, store, project_id, row.id, by=by)
    others = {other.id: other.name for other in active if other.id != row.id}
    if not others:
        return
    places = st.columns([3, 1], vertical_alignment="bottom")
    target = places[0].selectbox(
        "Merge into",
        list(others),
        index=None,
        placeholder="Choose a class",
        help="Its labels then count as labels of the chosen class.",
        format_func=lambda one: visible(others[one]),
        key=f"merge-{row.id}",
    )
    if places[1].button("Merge", key=f"merge-now-{row.id}", width="stretch", disabled=target is None):
        _do(classes.merge_classes, store, project_id, row.id, target, by=by)
    if target is not None:
        theme.muted(f"{count(n_labels, 'label')} will count as {visible(others[target])}. You can undo this.")


def _save(project_id: int, row: ClassRow, name: str, key: str, color: str) -> None:
    """Store only the fields that changed. If the name is refused, key and color are not changed."""
    store = resources.store()
    if name != row.name:
        classes.rename_class(store, project_id, row.id, name, by=state.session().annotator.id)
    if (key, color) != (row.key or "", row.color):
        classes.style_class(store, project_id, row.id, key=key, color=color)


def _do(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call one function of the store. If it raises an error, show the message."""
    try:
        function(*arguments, **named)
    except WinnowError as error:
        st.error(plain(error))
        return
    st.rerun()
