"""Grid: all items of the project, filtered and sorted; one key labels the selection."""

from __future__ import annotations

import streamlit as st

from app.views.text import count, visible
from app.web import resources, state, theme
from app.web.widgets.grid_tiles import grid_tiles
from storage.labeling.pool import Pool


def render() -> None:
    session = state.session()
    assert session.project is not None
    chosen = state.grid_set()
    if chosen is not None:
        with st.container(key="grid-set", horizontal=True, vertical_alignment="center"):
            theme.heading(chosen[1], count(len(chosen[0]), "item"))
            st.button("Show all items", on_click=state.clear_grid_set, key="grid-all")
    like = state.like_to_show()
    named = Pool(resources.store(), session.project.id).items_by_id([like]) if like is not None else []
    similar = {"item_id": named[0].id, "name": visible(named[0].name)} if named else None
    wanted = grid_tiles(
        session,
        items=chosen[0] if chosen else None,
        like=similar,
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
