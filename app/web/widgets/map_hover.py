"""A small picture next to the pointer on the map: the thumbnail or spectrogram of the point under the pointer."""

from __future__ import annotations

from app.web.widgets.bundle import widget


def map_hover(*, plot_key: str, project_id: int, key: str) -> None:
    """Mount the widget for the plot with the key `plot_key`, whose points have item ids as `customdata`."""
    widget("map_hover")(key=key, data={"plot": plot_key, "project": project_id}, width="stretch", height="content")
