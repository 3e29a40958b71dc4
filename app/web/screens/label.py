"""Label: one card, one key. The widget does the work; this page knows where to go when there is nothing to label."""

from __future__ import annotations

import streamlit as st

from app.web import state
from app.web.widgets.label_card import label_card


def render() -> None:
    here = state.here()
    assert here.project is not None
    wanted = label_card(here, key=f"label-{here.project.id}-{here.annotator.id}")
    if wanted in st.session_state["pages"]:
        st.switch_page(st.session_state["pages"][wanted])
