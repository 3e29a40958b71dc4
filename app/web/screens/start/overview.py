"""Projects: the start page if there is more than one project."""

from __future__ import annotations

import streamlit as st

from app.views.cards.project_cards import ProjectCard, project_cards
from app.views.durations import ago
from app.views.text import count, markup, plain
from app.web import resources, state, theme
from app.web.screens.start import tour
from storage.projects.projects import ProjectRow

KINDS = {"audio": "Audio clips", "image": "Pictures"}
COLUMNS = 3
SHOWN = 30


def render(projects: list[ProjectRow]) -> None:
    offered = tour.offer(projects)
    with st.container(key="projects-head", horizontal=True, vertical_alignment="center"):
        theme.heading("Projects", count(len(projects), "project"))
        if st.button(
            "New project", icon=":material/add:", type="secondary" if offered else "primary", key="overview-new"
        ):
            start_new_project()
    cards = project_cards(resources.store(), projects)
    shown = cards if st.session_state.get("all-projects-shown") else cards[:SHOWN]
    for start in range(0, len(shown), COLUMNS):
        for column, card in zip(st.columns(COLUMNS), shown[start : start + COLUMNS], strict=False):
            with column, theme.card(f"project-{card.project.id}", height="stretch"):
                _card(card)
    if len(cards) > len(shown) and st.button(f"Show all {len(cards):,} projects", key="all-projects", type="tertiary"):
        st.session_state["all-projects-shown"] = True
        st.rerun()


def _card(card: ProjectCard) -> None:
    counts = card.counts
    pool = counts.total - counts.held_out
    tests = f", {count(counts.held_out, 'test item')}" if counts.held_out else ""
    share = 100 * card.share_labeled
    st.html(
        f'<h2 class="winnow-project-name">{markup(card.project.name)}</h2>'
        f'<p class="winnow-muted">{KINDS[card.project.kind]} · {count(pool, "item")}{tests}</p>'
        f'<p class="winnow-project-progress"><span>{counts.labeled:,} labeled</span>'
        f"<span>{_percent(share)}</span></p>"
        f'<div class="winnow-track" aria-hidden="true"><span style="width:{share:.1f}%"></span></div>'
        f'<p class="winnow-muted">{markup(card.rounds.capitalize())} · last activity {ago(card.last_activity)}</p>'
    )
    if st.button(
        "Open", key=f"open-project-{card.project.id}", width="stretch", help=f"Open {plain(card.project.name)}"
    ):
        open_project(card.project.id)


def open_project(project_id: int) -> None:
    """Open the project on Label and write its id to the address."""
    state.open_project(project_id)
    st.switch_page(st.session_state["pages"]["label"], query_params={state.PROJECT: str(project_id)})


def start_new_project() -> None:
    st.session_state["new-project"] = True
    st.switch_page(st.session_state["pages"]["data"])


def _percent(share: float) -> str:
    """A share in whole percent. A positive share is never shown as 0 %."""
    return "&lt; 1 %" if 0 < share < 0.5 else f"{share:.0f} %"
