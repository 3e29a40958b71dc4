"""Learn: for now it says what there is."""

from __future__ import annotations

from app import resources, state, theme
from app.text import count
from storage.rounds import RoundLog


def render() -> None:
    rows = RoundLog(resources.store(), state.project().id).list()
    theme.heading("Rounds", count(len(rows), "round"))
    for row in rows:
        theme.muted(f"Round {row.number} · {row.strategy} · {row.status}")
    if not rows:
        theme.empty_state("No round yet", "Rounds are started with `python -m app round` for now; this screen follows.")
