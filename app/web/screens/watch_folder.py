"""Watch a folder, a part of Collect: new files stream into the pool; what arrived, and what was refused and why."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.views.text import count, markup, plain
from app.web import resources, theme
from core.errors import WinnowError
from storage.database.store import now
from storage.importing import watches
from storage.importing.item_writer import LabelUse
from storage.importing.watches import WatchRow
from storage.projects.projects import ProjectRow

LABEL_WORDS: dict[LabelUse, str] = {
    "ignore": "mean nothing",
    "given": "are labels",
    "hidden": "are hidden truth, to measure against",
}
POLL_SECONDS = 2.0
QUIET_SECONDS = 30.0  # without a look: nobody serves the watch
SHOWN_REFUSALS = 20


def section(project: ProjectRow, may_name_folders: bool) -> None:
    """`may_name_folders`: whoever may name a path may read it, so starting follows the rule of the folder import."""
    watch = watches.get(resources.store(), project.id)
    if watch is None and not may_name_folders:
        return
    with theme.card("watch"):
        theme.heading("Watch a folder", "files that come in later join the pool by themselves")
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
    known, key = before.folder if before else "", f"watch-folder-{project.id}"
    folder = st.text_input("Folder on the server", known, key=key, placeholder="/data/in")
    columns = st.columns(2)
    with columns[0]:
        words, key = LABEL_WORDS.__getitem__, f"watch-labels-{project.id}"
        labels = st.selectbox("Its class folders", list(LABEL_WORDS), format_func=words, key=key)
    with columns[1]:
        size = st.number_input(
            "Rounds choose among", 100, 100_000, before.buffer_size if before else watches.BUFFER_SIZE,
            key=f"watch-buffer-{project.id}",
            help="The most telling items of all that arrived, kept by a buffer of this size. A round then costs the "
            "same, however large the pool grows.",
        )  # fmt: skip
    if st.button("Start watching", key="watch-start", disabled=not folder.strip()):
        path = Path(folder.strip()).expanduser()
        try:
            if not path.is_absolute():
                raise WinnowError("Give the whole path of the folder.")
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
    """Which folder, what came of its files, and what was refused."""
    store = resources.store()
    theme.muted(f"{watch.folder} · {_state(watch)}")
    if watch.problem:
        st.warning(plain(watch.problem))
    counts = watches.counts(store, project_id)
    more = f"{count(counts['duplicate'], 'duplicate')}, {counts['unreadable']:,} unreadable"
    theme.figure(f"{counts['taken']:,}", "files taken in", more)
    if counts["refused"]:
        theme.muted(f"{count(counts['refused'], 'file')} refused:")
        told = watches.newest(store, project_id, "refused", SHOWN_REFUSALS)
        lines = [f"<li><strong>{markup(name)}</strong> {markup(reason)}</li>" for name, reason, _ in told]
        rest = counts["refused"] - len(told)
        lines += [f'<li class="winnow-muted">and {rest:,} more</li>'] if rest > 0 else []
        st.html(f'<ul class="winnow-problems">{"".join(lines)}</ul>')


def _state(watch: WatchRow) -> str:
    if not watch.active:
        return "no longer watched"
    since = (now() - (watch.looked_at or watch.started_at)).total_seconds()
    if since > QUIET_SECONDS:
        return "waits for a worker; start one: python -m app worker"
    return "watched; a file is taken in when it has not changed for a few seconds"
