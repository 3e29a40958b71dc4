"""Grid: many items at once."""

from __future__ import annotations

from app import theme


def render() -> None:
    theme.empty_state("Grid", "Coming.")
