"""Watch a folder, a card on Data: new files are imported automatically. It shows imported and rejected files."""

from __future__ import annotations

import streamlit as st

from app.views.text import count, markup, plain
from app.web import resources, theme
from app.web.screens.import_reading import choose_windows
from app.web.server_folders import find_on_server
from core.errors import WinnowError
from storage.database.store import now
from storage.importing import watches
from storage.importing.item_writer import LabelUse
from storage.importing.watches import WatchRow
from storage.importing.windows.kept import keep_windows, kept_windows, window_sentence
from storage.projects.projects import ProjectRow, get_project

LABEL_WORDS: dict[LabelUse, str] = {
    "ignore": "Ignore",
    "given": "Use as labels",
    "hidden": "Hide; use only for evaluation",
}
POLL_SECONDS = 2.0
QUIET_SECONDS = 30.0  # after this time without a scan, no worker serves the watch
SHOWN_REFUSALS = 20


def section(project: ProjectRow, may_name_folders: bool) -> None:
    """The card. `may_name_folders` states whether the user may enter folders of the server, as for imports."""
    watch = watches.get(resources.store(), project.id)
    if watch is None and not may_name_folders:
        return
    with theme.card("watch"):
        theme.heading("Watch a folder", "import new files automatically")
        if watch is not None and watch.active:
            st.fragment(_under_way, run_every=POLL_SECONDS)(project.id)
            if st.button("Stop watching", key="watch-stop"):
                watches.stop(resources.store(), project.id)
                st.rerun()
        else:
            if watch is not None:
                arrived(project.id, watch)
            if may_name_folders:
                choose(project, watch)


def choose(project: ProjectRow, before: WatchRow | None) -> None:
    """The form that starts a watch."""
    known, key = before.folder if before else "", f"watch-folder-{project.id}"
    folder = st.text_input(
        "Folder on the server",
        known,
        key=key,
        placeholder="/data/in",
        help="Absolute path on the machine that runs Winnow.",
    )
    columns = st.columns(2)
    with columns[0]:
        words, key = LABEL_WORDS.__getitem__, f"watch-labels-{project.id}"
        help_text = "How to use the names of subfolders as labels."
        labels = st.selectbox("Subfolder names", list(LABEL_WORDS), format_func=words, key=key, help=help_text)
    with columns[1]:
        size = st.number_input(
            "Candidate pool size", 100, 100_000, before.buffer_size if before else watches.BUFFER_SIZE,
            key=f"watch-buffer-{project.id}",
            help="Rounds pick from at most this many of the most informative items, so that the time of a round does "
            "not grow with the number of files.",
        )  # fmt: skip
    windows = choose_windows(project, f"watch-{project.id}")
    if st.button("Start watching", key="watch-start", disabled=not folder.strip()):
        try:
            path = find_on_server(folder, resources.import_roots())
            keep_windows(resources.store(), project.id, windows)
            watches.start(
                resources.store(), project.id, path, watches.WatchOptions(labels=labels, buffer_size=int(size))
            )
        except WinnowError as error:
            st.error(plain(error))
        else:
            st.rerun()


def _under_way(project_id: int) -> None:
    watch = watches.get(resources.store(), project_id)
    if watch is None or not watch.active:
        st.rerun()
        return
    arrived(project_id, watch)


def arrived(project_id: int, watch: WatchRow) -> None:
    """The folder, the counts of its files, and the rejected files."""
    store = resources.store()
    theme.muted(f"{watch.folder} · {_state(watch)}")
    if (windows := kept_windows(get_project(store, project_id))) is not None:
        theme.muted(window_sentence(windows))
    if watch.problem:
        st.warning(plain(watch.problem))
    counts = watches.counts(store, project_id)
    more = f"{count(counts['duplicate'], 'duplicate')}, {counts['unreadable']:,} unreadable"
    theme.figure(f"{counts['taken']:,}", "files imported", more)
    if counts["refused"]:
        theme.muted(f"{count(counts['refused'], 'file')} rejected:")
        refused = watches.newest(store, project_id, "refused", SHOWN_REFUSALS)
        lines = [f"<li><strong>{markup(name)}</strong> {markup(reason)}</li>" for name, reason, _ in refused]
        rest = counts["refused"] - len(refused)
        lines += [f'<li class="winnow-muted">and {rest:,} more</li>'] if rest > 0 else []
        st.html(f'<ul class="winnow-problems">{"".join(lines)}</ul>')


def _state(watch: WatchRow) -> str:
    if not watch.active:
        return "no longer watched"
    since = (now() - (watch.looked_at or watch.started_at)).total_seconds()
    if since > QUIET_SECONDS:
        return "waiting for a worker. Start one with: python -m app worker"
    return "watching. A file is imported when it has not changed for a few seconds"
