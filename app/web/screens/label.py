"""Label: one item at a time, one key per class. The widget does the work; this page switches screens on request."""

from __future__ import annotations

import streamlit as st

from app.web import state
from app.web.widgets.label_card import label_card


def render() -> None:
    session = state.session()
    assert session.project is not None
    item = state.item_to_open()
    wanted = label_card(session, open_item=item, key=f"label-{session.project.id}-{session.annotator.id}")
    if wanted is not None and wanted.startswith("like:"):
        state.send_like(int(wanted.removeprefix("like:")))
        st.switch_page(st.session_state["pages"]["grid"])
    if wanted in st.session_state["pages"]:
        st.switch_page(st.session_state["pages"][wanted])
