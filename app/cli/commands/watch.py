"""`python -m app watch`: serve a watched folder from the command line, and print its state."""

from __future__ import annotations

import time
from typing import Any

from app.cli.output import print_note, progress_bar, show
from core.errors import NotFound
from core.types import Progress
from storage.database.store import Store
from storage.importing import watches
from storage.importing.windows.kept import window_sentence
from storage.media.windows import WindowOptions
from storage.projects.projects import get_project


def follow(store: Store, project_id: int, as_json: bool) -> int:
    """Scan the folder until the watch ends or Ctrl-C. If another process serves the watch, only print its state."""
    from app.worker.folder_watcher import SCAN_SECONDS, FolderWatcher

    watcher = FolderWatcher(store)
    try:
        with progress_bar("Watching") as report:
            while (row := watches.get(store, project_id)) is not None and row.active:
                done = watcher.scan(row)
                taken = watches.counts(store, project_id)["taken"]
                total = taken + row.remaining if row.remaining is not None else 0
                moving = f"{done.moving} still being written" if done is not None and done.moving else ""
                report(Progress("", taken, total, row.problem or moving))
                if done is None or not done.busy:
                    time.sleep(SCAN_SECONDS)
    except KeyboardInterrupt:
        print_note(
            "Stopped here. A worker continues to watch the folder. To end that: python -m app watch PROJECT --stop"
        )
    return show_watch(store, project_id, as_json)


def show_watch(store: Store, project_id: int, as_json: bool) -> int:
    """Print the state of the project's watch. Raises NotFound if it has none. Returns the exit code."""
    row = watches.get(store, project_id)
    if row is None:
        raise NotFound("This project does not watch a folder. Start with: python -m app watch PROJECT FOLDER")
    counts = watches.counts(store, project_id)
    refused = [[name, reason] for name, reason, _ in watches.newest(store, project_id, "refused", 200)]
    watch: dict[str, Any] = {
        "folder": row.folder, "status": row.status, "problem": row.problem, "buffer_size": row.buffer_size,
        "windows": get_project(store, project_id).settings.windows, "files_refused": refused,
    } | {str(outcome): n for outcome, n in counts.items()}  # fmt: skip
    show(watch, as_json, lambda: words(watch))
    return 0


def words(watch: dict[str, Any]) -> str:
    """The state of a watch as lines of text."""
    lines = [
        f"{watch['folder']} is {'watched' if watch['status'] == 'active' else 'no longer watched'}: {watch['taken']:,} "
        f"imported, {watch['duplicate']:,} duplicates, {watch['unreadable']:,} unreadable, "
        f"{watch['refused']:,} rejected."
    ]
    if watch["windows"]:
        lines.append(window_sentence(WindowOptions(**watch["windows"])))
    lines += [f"Problem: {watch['problem']}"] if watch["problem"] else []
    return "\n".join([*lines, *(f"  {name!r} rejected: {reason}" for name, reason in watch["files_refused"][:20])])
