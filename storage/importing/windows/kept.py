"""How a project cuts recordings into windows: set by an import that cuts, used by its watched folder."""

from __future__ import annotations

from dataclasses import asdict

from core.config import from_dict
from storage.database.store import Store
from storage.media.windows import WindowOptions
from storage.projects.projects import ProjectRow, change_settings, get_project


def kept_windows(project: ProjectRow) -> WindowOptions | None:
    """The window options of the project; None while it keeps recordings whole, and for pictures."""
    if project.kind != "audio" or not project.settings.windows:
        return None
    return from_dict(WindowOptions, project.settings.windows)


def keep_windows(store: Store, project_id: int, windows: WindowOptions | None) -> None:
    """Cut recordings like this from now on; None: keep them whole."""
    if kept_windows(get_project(store, project_id)) != windows:
        change_settings(store, project_id, {"windows": {} if windows is None else asdict(windows)})


def window_sentence(windows: WindowOptions | None) -> str:
    """A sentence that says how recordings are imported, for display."""
    if windows is None:
        return "Recordings are kept whole."
    every = "" if windows.step == windows.seconds else f", one every {windows.step:g} s"
    return f"Sounds longer than {windows.seconds:g} s are cut into windows of {windows.seconds:g} s{every}."
