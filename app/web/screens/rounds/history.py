"""The rounds of a project as a table: open a round, name it, replay it, compare it with other strategies or rounds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import streamlit as st

from app.rounds import requests as round_requests
from app.views.cards.pick_table import pick_table
from app.views.learning_progress import accuracy_on_picks, accuracy_words
from app.views.strategy_names import strategy_title
from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from app.web.screens.rounds.comparison import open_comparison
from core.config import RoundConfig
from core.errors import Conflict, InvalidInput, NotFound
from core.rounds import stage_names
from storage.rounds.diff import RoundDiff, compare_rounds
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.names import MOST_CHARACTERS, round_names, set_round_name, title_of

SHOWN = 12
WIDTHS = (5, 2)
HEADINGS = ("Round", "Strategy", "Labels", "Test accuracy", "Wrong predictions", "Time")


def round_history(project_id: int) -> None:
    """The card with the newest rounds, or all of them on request."""
    rows = RoundLog(resources.store(), project_id).list()
    if not rows:
        return
    shown = st.session_state.get("rounds-shown", SHOWN)
    names = round_names(resources.store(), project_id)
    with theme.card("rounds"):
        theme.heading("Rounds", f"{len(rows):,} in total" if len(rows) > SHOWN else "")
        with st.container(key="rounds-head"):
            st.columns(WIDTHS)[0].html(_line(HEADINGS))
        for row in rows[:shown]:
            with st.container(key=f"round-row-{row.id}"):
                _row(project_id, row, names)
        if len(rows) > shown and st.button("Show all rounds", type="tertiary", key="all-rounds"):
            st.session_state["rounds-shown"] = len(rows)
            st.rerun()


def version_card(project_id: int) -> None:
    """A card that compares two rounds on the same items. Nothing is drawn before the second round with a model."""
    store = resources.store()
    rows = {row.number: row for row in RoundLog(store, project_id).list() if row.metrics.get("has_model")}
    if len(rows) < 2:
        return
    names, numbers = round_names(store, project_id), list(rows)
    with theme.card("versions"):
        theme.heading("Compare two rounds", "on the same test items")
        fields = st.columns(2)
        chosen = [
            field.selectbox(
                label,
                numbers,
                index=index,
                format_func=lambda number: f"Round {title_of(rows[number], names)}",
                key=f"version-{label.lower()}",
                help=help_text,
            )
            for field, label, index, help_text in (
                (fields[0], "From", 1, "The round to compare with."),
                (fields[1], "To", 0, "The round that is compared."),
            )
        ]
        try:
            found = compare_rounds(store, project_id, rows[chosen[0]], rows[chosen[1]])
        except (InvalidInput, NotFound) as problem:
            theme.muted(str(problem))
            return
        _version_figures(found)
        _version_tables(found)


def _version_figures(found: RoundDiff) -> None:
    left, right = st.columns(2)
    with left:
        if (accuracy := found.accuracy) is None:
            theme.muted("These rounds have no test items in common, so accuracy is not compared.")
        else:
            low, high = (100 * bound for bound in accuracy.interval)
            shares = f"{100 * accuracy.first / accuracy.n:.1f} → {100 * accuracy.second / accuracy.n:.1f} %"
            theme.figure(f"{100 * accuracy.difference:+.1f}", f"points on {accuracy.n:,} test items", shares)
            theme.muted(
                f"95 % interval of the difference {low:+.1f} to {high:+.1f} points (paired, Bonett-Price). "
                f"{count(accuracy.only_second, 'item')} better, {accuracy.only_first:,} worse; "
                f"p = {accuracy.p_value:.2g} (exact McNemar test)."
            )
    with right:
        theme.figure(
            f"{found.n_changed:,}", "predictions changed", f"of {found.n_compared:,} items without a label in both"
        )
        theme.muted(f"Labels: {found.n_labeled[0]:,} → {found.n_labeled[1]:,}")


def _version_tables(found: RoundDiff) -> None:
    left, right = st.columns(2)
    if found.per_class:
        lines = [
            {"class": visible(one.name), "test items": one.n, "correct before": one.first, "correct after": one.second}
            for one in found.per_class
        ]
        left.dataframe(lines, hide_index=True, key="version-classes")
    if found.changes:
        lines = [{"before": visible(a), "after": visible(b), "items": number} for a, b, number in found.changes]
        right.dataframe(lines, hide_index=True, key="version-changes")
    if found.settings:
        with st.expander("Changed settings"):
            lines = [
                {"setting": name, "before": str(before), "after": str(after)}
                for name, (before, after) in found.settings.items()
            ]
            st.dataframe(lines, hide_index=True, key="version-settings")


def _line(cells: Sequence[str]) -> str:
    parts = [
        f'<span data-name="{markup(name)}">{markup(text)}</span>' if text else '<span class="winnow-none"></span>'
        for name, text in zip(HEADINGS, cells, strict=True)
    ]
    return f'<div class="winnow-round">{"".join(parts)}</div>'


def _row(project_id: int, row: RoundRow, names: dict[int, str]) -> None:
    on_picks = accuracy_on_picks(resources.store(), row) if row.status == "finished" else None
    cells = (
        title_of(row, names),
        strategy_title(row.strategy) + (" (replay)" if row.replay_of else ""),
        f"{row.n_labeled:,}",
        accuracy_words(row) if row.status == "finished" else row.status,
        f"{on_picks.wrong} of {on_picks.labeled}" if on_picks else "",
        _seconds(row),
    )
    text, buttons = st.columns(WIDTHS, vertical_alignment="center")
    text.html(_line(cells))
    if row.unfinished:
        return
    with buttons, st.container(horizontal=True, gap="small", horizontal_alignment="right"):
        if st.button("Open", key=f"open-{row.id}", type="tertiary"):
            open_round(project_id, row.id)
        if row.status == "finished":
            if st.button(
                "Replay",
                key=f"replay-{row.id}",
                type="tertiary",
                help="Run again with the same items, labels and seed.",
            ):
                round_requests.request_replay(resources.store(), project_id, row.id, by=state.session().annotator.id)
                st.rerun()
            st.button(
                "Compare",
                key=f"compare-{row.id}",
                type="tertiary",
                help="Show what other strategies would have picked.",
                on_click=open_comparison,
                args=(row.id,),
            )


def _seconds(row: RoundRow) -> str:
    if row.started_at is None or row.finished_at is None:
        return ""
    seconds = (row.finished_at - row.started_at).total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@st.dialog("Round", width="large")
def open_round(project_id: int, round_id: int) -> None:
    """A dialog with the stored data of a round: notes, picks with reasons, times, settings, the log of a failure."""
    store = resources.store()
    row = RoundLog(store, project_id).get(round_id)
    facts = f"{strategy_title(row.strategy)} · {row.status} · {count(row.n_labeled, 'label')} · seed {row.config.seed}"
    theme.heading(f"Round {row.number}", facts)
    _name_field(project_id, row)
    if row.error:
        st.error(plain(row.error))
    for note in row.notes:
        theme.muted(str(note))
    if picks := pick_table(store, project_id, round_id, state.session().annotator.id):
        st.dataframe(picks, hide_index=True, key=f"picks-{round_id}")
    if seconds := row.metrics.get("seconds"):
        names = [name for name in stage_names.NAMES if name in seconds]
        theme.muted("Time: " + ", ".join(f"{stage_names.title_of(name)} {seconds[name]:.1f} s" for name in names))
    with st.expander("Settings"):
        st.code(_settings(row.config), language="json")
    if row.log:
        with st.expander("Log"):
            st.code(visible_log(row.log), language=None)


def _name_field(project_id: int, row: RoundRow) -> None:
    """A field for the name of the round. A change is stored immediately."""
    names = round_names(resources.store(), project_id)
    help_text = "Exports and commands can refer to the round by this name."
    given = st.text_input(
        "Name", names.get(row.id, ""), max_chars=MOST_CHARACTERS, key=f"round-name-{row.id}", help=help_text
    )
    if given != names.get(row.id, ""):
        try:
            set_round_name(resources.store(), project_id, row.id, given)
        except (InvalidInput, Conflict) as problem:
            st.error(plain(str(problem)))


def _settings(config: RoundConfig) -> str:
    return json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True)


def visible_log(text: str) -> str:
    return "\n".join(visible(line) for line in text.splitlines())
