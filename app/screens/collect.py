"""Collect: for now it says what there is."""

from __future__ import annotations

from app import theme


def render() -> None:
    theme.empty_state("Collect", "This screen is not built yet; the command line (python -m app --help) does its work.")
