"""The names and titles of a round's stages, in their order. Imports nothing, so that any process may read it.

Names are stored with rounds (progress, seconds for each stage) and never change. Titles are shown to people. The worker
adds two steps around the stages of `core.rounds.stages`: "snapshot" before them and "finish" after them.
"""

from __future__ import annotations

TITLES: dict[str, str] = {
    "snapshot": "Snapshot",
    "encode": "Encode",
    "decide": "Decide",
    "prepare": "Prepare",
    "check": "Check labels",
    "train": "Train",
    "predict": "Predict",
    "propagate": "Propagate",
    "features": "Features",
    "select": "Select",
    "map": "Map",
    "rival": "Second model",
    "finish": "Finish",
}
NAMES: tuple[str, ...] = tuple(TITLES)


def title_of(name: str) -> str:
    """The title of a stage; the capitalized name for one that this version does not have."""
    return TITLES.get(name, name.capitalize())
