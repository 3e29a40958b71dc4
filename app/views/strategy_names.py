"""The display name of a strategy, shared by forms, results and reports."""

from __future__ import annotations

from core.acquisition import catalog


def strategy_title(name: str) -> str:
    """The title of a strategy in the catalog. A name that the catalog no longer has is returned unchanged."""
    return catalog.entry(name).title if name in catalog.names() else name
