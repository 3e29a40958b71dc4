"""The small picture beside the pointer on the map: thumbnail or spectrogram of the point below it."""

from __future__ import annotations

from app.web.widgets.bundle import widget


def map_hover(*, plot_key: str, project_id: int, key: str) -> None:
    """Mount once beside the plot that has the key `plot_key`; its points carry item ids as `customdata`."""
    widget("map_hover")(key=key, data={"plot": plot_key, "project": project_id}, width="stretch", height="content")
