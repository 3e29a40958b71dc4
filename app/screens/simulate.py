"""Simulate, on the Learn screen of a project with hidden truth: what strategies would have bought, before a label is
spent. An oracle labels; what is shown are accuracies, never the answers.

Those at work are polled; curves and tables of the one that is open are drawn when its records change.
"""

from __future__ import annotations

import dataclasses
import os

import streamlit as st

from app import charts, estimates, resources, rounds, simulations, study_report, theme
from app.cautions import cautions
from app.simulations import Asked, Simulation
from app.text import count, plain
from core.acquisition import catalog
from core.errors import WinnowError
from storage.projects import ProjectRow

POLL_SECONDS = 1.0
SHOWN = 8
OPEN = "simulation-open"
PRESETS = {"auto": "Best for this machine", "laptop": "Laptop", "paper": "Paper, needs a GPU", "smoke": "Smoke"}
NUMBERS = {"start": ("First labels", 1), "batch": ("Per round", 1), "rounds": ("Rounds", 0), "seeds": ("Seeds", 1)}
WORDS = {"cancelled": "cancelled", "lost": "was cut off", "failed": "failed", "finished": "done"}


def cautions_card(project: ProjectRow) -> None:
    """What deserves care before the model is trusted; nothing when there is nothing to say."""
    found = _cautions(project.id, project.revision)
    if found:
        with theme.card("cautions"):
            theme.heading("Before you trust it")
            for sentence in found:
                theme.note(sentence)


@st.cache_data(max_entries=16, ttl=30, show_spinner=False)
def _cautions(project_id: int, revision: int) -> list[str]:
    return cautions(resources.store(), project_id)


def simulate_card(project: ProjectRow) -> None:
    """Nothing where no truth is known: there an oracle would have no answers."""
    known = simulations.known_truth(resources.store(), project.id)
    if not known.enough:
        return
    found = simulations.listed(resources.locations().home, project.id)
    with theme.card("simulate"):
        theme.heading("Simulate", f"{count(known.pool, 'item')} with hidden truth, {known.test:,} to judge by")
        theme.muted("See what strategies would have bought here, before a label is spent: an oracle answers in your "
                    "place. The answers stay hidden; accuracies are all that is shown.")  # fmt: skip
        asked = _fields(project, known, found[0].asked if found else Asked())
        if asked is not None:
            st.session_state[OPEN] = simulations.begin(resources.locations().home, project, asked)
            st.rerun()
        if any(one.running for one in found):
            st.fragment(_running, run_every=POLL_SECONDS)(project)
        for one in [one for one in found if not one.running][:SHOWN]:
            with st.container(key=f"simulation-{one.id}"):
                _row(project, one)
        opened = next((one for one in found if one.id == st.session_state.get(OPEN)), None)
        if opened is not None:
            _results(opened)


def _fields(project: ProjectRow, known: simulations.Known, last: Asked) -> Asked | None:
    """What to simulate, at first what was asked last; given when the button was pressed."""
    first, *numbers, training = st.columns([5, 1, 1, 1, 1, 2], vertical_alignment="bottom")
    with first:
        strategies = st.multiselect(
            "Strategies to compare", catalog.names(), default=_offered(last), key=f"sim-strategies-{project.id}",
            format_func=lambda name: catalog.entry(name).title,
        )  # fmt: skip
    wanted = {}
    for column, (name, (words, least)) in zip(numbers, NUMBERS.items(), strict=True):
        with column:
            usual = max(least, getattr(last, name))
            value = st.number_input(words, least, 10_000, usual, key=f"sim-{name}-{project.id}")
            wanted[name] = int(value)
    with training:
        presets = list(PRESETS)
        chosen = st.selectbox(
            "Simulated training", presets, presets.index(last.preset), format_func=PRESETS.__getitem__,
            key=f"sim-preset-{project.id}",
        )  # fmt: skip
    if not strategies:
        theme.muted("Choose at least one strategy.")
        return None
    asked = Asked(strategies=tuple(strategies), preset=chosen, **wanted)  # type: ignore[arg-type]
    fits = asked.most_labels <= known.pool
    told, button = st.columns([8, 2], vertical_alignment="center")
    with told:
        if fits:
            theme.muted(_cost(project, asked))
        else:
            theme.note(f"{asked.most_labels:,} labels are more than the {known.pool:,} items with a known answer.")
    with button:
        pressed = st.button("Start simulating", key="start-simulation", width="stretch", disabled=not fits)
    return asked if pressed else None


def _offered(last: Asked) -> list[str]:
    return [name for name in last.strategies if name in catalog.names()]


def _cost(project: ProjectRow, asked: Asked) -> str:
    settings = dataclasses.replace(project.settings, preset=asked.preset, batch_size=asked.batch)
    config = rounds.round_config(settings, project.kind)
    each = estimates.estimate(resources.store(), project.id, config).total
    seconds = each * asked.n_trainings / max(1, os.cpu_count() or 1)
    labels = f"{asked.start:,} to {asked.most_labels:,} labels" if asked.rounds else f"{asked.start:,} labels"
    return f"{count(asked.n_trainings, 'training')}, {labels}; roughly {_duration(seconds)}. It runs beside the rounds."


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def _running(project: ProjectRow) -> None:
    """Those at work. When one ends, or the open one has news, the whole screen is drawn again; what rests is drawn
    outside, so that no click on it falls between two polls."""
    found = [one for one in simulations.listed(resources.locations().home, project.id) if one.running]
    news = [(one.id, len(one.records) if one.id == st.session_state.get(OPEN) else 0) for one in found]
    known = st.session_state.get("simulation-news")
    st.session_state["simulation-news"] = news
    if known is not None and known != news:
        st.rerun()
    for one in found:
        with st.container(key=f"simulation-{one.id}"):
            _row(project, one)


def _row(project: ProjectRow, one: Simulation) -> None:
    home, asked = resources.locations().home, one.asked
    status = "running" if one.running else "done" if one.complete else WORDS.get(one.job.status if one.job else "lost")
    told, verbs = st.columns([7, 3], vertical_alignment="center")
    with told:
        titles = ", ".join(catalog.entry(name).title if name in catalog.names() else name for name in asked.strategies)
        theme.heading(titles, f"{asked.start:,} to {asked.most_labels:,} labels · {count(asked.seeds, 'seed')} · "
                              f"{PRESETS.get(asked.preset, asked.preset)} · {status}")  # fmt: skip
        if one.running and one.job is not None:
            done, total = one.job.done, one.job.total or asked.n_records
            st.progress(min(done / total, 1.0))
            theme.muted(f"{done:,} of {total:,} · {one.job.note}" if one.job.total else one.job.note or "Starting")
        elif one.job is not None and one.job.status == "failed":
            st.error(plain(one.job.error))
    with verbs, st.container(horizontal=True, gap="small", horizontal_alignment="right"):
        _verbs(project, one, has_results=bool(one.records))
        if one.running and st.button("Cancel", key=f"sim-cancel-{one.id}"):
            simulations.cancel(home, one)


def _verbs(project: ProjectRow, one: Simulation, *, has_results: bool) -> None:
    home, is_open = resources.locations().home, st.session_state.get(OPEN) == one.id
    if has_results and st.button("Hide results" if is_open else "Results", key=f"sim-open-{one.id}", type="tertiary"):
        st.session_state[OPEN] = None if is_open else one.id
        st.rerun()
    if one.running:
        return
    if not one.complete and st.button("Go on", key=f"sim-go-on-{one.id}", type="tertiary"):
        try:
            simulations.go_on(home, project, one.id)
        except WinnowError as error:
            st.toast(plain(error))
        st.rerun()
    if st.button("Remove", key=f"sim-remove-{one.id}", type="tertiary"):
        simulations.remove(home, one)
        st.rerun()


def _results(one: Simulation) -> None:
    """Learning curves with their bands, the tables, and the file."""
    if not one.records:
        return
    summary = study_report.summarize(one.records)
    dark = st.context.theme.type == "dark"
    with st.container(key="simulation-results"):
        seeds = min(summary["n_seeds"].values())
        theme.heading("Simulated accuracy", f"{count(seeds, 'seed')}, band of one standard deviation, held-out items")
        figure = study_report.curves(summary, dark=dark)
        figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", height=360)
        st.plotly_chart(figure, key=f"sim-curves-{one.id}", config=charts.PLOT_OPTIONS)
        left, right = st.columns([3, 2])
        left.markdown(study_report.table(summary))
        right.markdown(study_report.reach_table(summary))
        st.download_button(
            "Download results.json", (one.folder / "results.json").read_bytes(), "results.json", "application/json",
            key=f"sim-download-{one.id}",
        )  # fmt: skip
