"""The display name of a strategy, the same on forms, results and reports."""

from __future__ import annotations

from core.acquisition import catalog


def strategy_title(name: str) -> str:
    """The title in the catalog. A stored name that the catalog no longer has is shown as it is."""
    return catalog.entry(name).title if name in catalog.names() else name
