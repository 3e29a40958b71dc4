"""Grid: all items of the project, filtered and sorted; one key labels the selection."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.views.item_names import ItemNames
from app.views.text import count, visible
from app.web import resources, state, theme
from app.web.widgets.grid_tiles import grid_tiles
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes


def render() -> None:
    session = state.session()
    assert session.project is not None
    chosen = state.grid_set()
    if chosen is not None:
        with st.container(key="grid-set", horizontal=True, vertical_alignment="center"):
            theme.heading(chosen[1], count(len(chosen[0]), "item"))
            st.button("Show all items", on_click=state.clear_grid_set, key="grid-all")
    wanted = grid_tiles(
        session,
        items=chosen[0] if chosen else None,
        like=_like_to_show(session.project.id),
        key=f"grid-{session.project.id}-{session.annotator.id}",
    )
    if wanted == "grid-all":
        state.clear_grid_set()
        st.rerun()
    if wanted is not None and wanted.startswith("label:"):
        state.open_item(int(wanted.removeprefix("label:")))
        st.switch_page(st.session_state["pages"]["label"])
    if wanted in st.session_state["pages"]:
        st.switch_page(st.session_state["pages"][wanted])


def _like_to_show(project_id: int) -> dict[str, Any] | None:
    """The id and the displayed name of the item whose similar items the grid should show, or None."""
    store, like = resources.store(), state.like_to_show()
    found = Pool(store, project_id).items_by_id([like]) if like is not None else []
    if not found:
        return None
    called = ItemNames(row.name for row in list_classes(store, project_id, include_inactive=True))
    return {"item_id": found[0].id, "name": visible(called.shown_name(found[0].id, found[0].name))}
