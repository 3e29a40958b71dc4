"""Simulate, a card on Train for projects with hidden labels: compare strategies before labeling.

Hidden labels stand in for annotators. The screen shows accuracies but never the labels. Running simulations are polled.
The curves and tables of the open simulation are drawn when its records change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import streamlit as st

from app.rounds import requests as round_requests
from app.rounds.timing import estimates
from app.simulation import report
from app.simulation import requests as simulation_requests
from app.simulation.requests import Simulation, SimulationRequest
from app.views.durations import duration
from app.views.figures import charts
from app.views.strategy_names import strategy_title
from app.views.text import count, plain
from app.views.warnings import label_warnings
from app.web import resources, theme
from core.acquisition import catalog
from core.errors import WinnowError
from storage.database.store import Store
from storage.labeling.known_labels import KnownLabelCounts, count_known_labels
from storage.projects.projects import ProjectRow
from storage.rounds import workers

POLL_SECONDS = 1.0
SHOWN = 8
OPEN = "simulation-open"
PRESETS = {"auto": "Automatic", "encoder": "Encoder", "laptop": "Laptop", "paper": "Paper (GPU)", "smoke": "Smoke test"}
NUMBERS = {
    "start": ("First labels", 1, "Number of labels before the first round."),
    "batch": ("Per round", 1, "Number of labels that each round adds."),
    "rounds": ("Rounds", 0, "Number of rounds after the first model."),
    "seeds": ("Seeds", 1, "Number of repetitions with different first labels."),
}
WORDS = {"requested": "waiting", "finished": "done"}  # other states are shown under their own name


def warnings_card(project: ProjectRow) -> None:
    """A card with warnings about labels and predictions. Nothing is drawn if there are none."""
    found = _warnings(project.id, project.revision)
    if found:
        with theme.card("warnings"):
            theme.heading("Warnings")
            for sentence in found:
                theme.note(sentence)


@st.cache_data(max_entries=16, ttl=30, show_spinner=False)
def _warnings(project_id: int, revision: int) -> list[str]:
    return label_warnings(resources.store(), project_id)


def simulate_card(project: ProjectRow) -> None:
    """The card. Nothing is drawn if there are too few hidden labels for a simulation."""
    known = count_known_labels(resources.store(), project.id)
    if not known.enough:
        return
    found = simulation_requests.listed(resources.store(), project.id)
    with theme.card("simulate"):
        theme.heading("Simulate", f"{count(known.pool, 'item')} with hidden labels, {count(known.test, 'test item')}")
        theme.muted("Compare strategies before you label: hidden labels stand in for you. The labels stay hidden; only "
                    "accuracies are shown.")  # fmt: skip
        asked = _fields(project, known, found[0].asked if found else SimulationRequest())
        if asked is not None:
            st.session_state[OPEN] = simulation_requests.begin(resources.store(), project.id, asked)
            st.rerun()
        if any(one.running for one in found):
            st.fragment(_running, run_every=POLL_SECONDS)(project)
        for one in [one for one in found if not one.running][:SHOWN]:
            with st.container(key=f"simulation-{one.id}"):
                _row(one)
        opened = next((one for one in found if one.id == st.session_state.get(OPEN)), None)
        if opened is not None:
            _results(opened)


def _fields(project: ProjectRow, known: KnownLabelCounts, last: SimulationRequest) -> SimulationRequest | None:
    """The settings of a simulation, initially those of the last one. Returned when the button is pressed."""
    with st.container(key="simulation-fields"):
        first, *numbers, training = st.columns([5, 1, 1, 1, 1, 2], vertical_alignment="bottom")
    with first:
        strategies = st.multiselect(
            "Strategies to compare", catalog.names(), default=_offered(last), key=f"sim-strategies-{project.id}",
            format_func=strategy_title, help="Each strategy is simulated with the same first labels.",
        )  # fmt: skip
    wanted = {}
    for column, (name, (words, least, help_text)) in zip(numbers, NUMBERS.items(), strict=True):
        with column:
            usual = max(least, getattr(last, name))
            value = st.number_input(words, least, 10_000, usual, key=f"sim-{name}-{project.id}", help=help_text)
            wanted[name] = int(value)
    with training:
        presets = list(PRESETS)
        chosen = st.selectbox(
            "Simulated training", presets, presets.index(last.preset), format_func=PRESETS.__getitem__,
            key=f"sim-preset-{project.id}", help="Training preset of the simulated rounds.",
        )  # fmt: skip
    if not strategies:
        theme.muted("Choose at least one strategy.")
        return None
    asked = SimulationRequest(strategies=tuple(strategies), preset=chosen, **wanted)  # type: ignore[arg-type]
    fits = asked.most_labels <= known.pool
    cost, button = st.columns([8, 2], vertical_alignment="center")
    with cost:
        if fits:
            theme.muted(_cost(project, asked))
        else:
            theme.note(f"{asked.most_labels:,} labels are needed, but only {known.pool:,} items have a hidden label.")
    with button:
        pressed = st.button("Start simulation", key="start-simulation", width="stretch", disabled=not fits)
    return asked if pressed else None


def _offered(last: SimulationRequest) -> list[str]:
    return [name for name in last.strategies if name in catalog.names()]


def _cost(project: ProjectRow, asked: SimulationRequest) -> str:
    settings = dataclasses.replace(project.settings, preset=asked.preset, batch_size=asked.batch)
    config = round_requests.round_config(settings, project.kind)
    each = estimates.estimate(resources.store(), project.id, config).total
    at_once = min(asked.seeds, max(1, len(workers.living_workers(resources.store()))))
    seconds = each * asked.n_trainings / at_once
    labels = f"{asked.start:,} to {asked.most_labels:,} labels" if asked.rounds else f"{asked.start:,} labels"
    summary = f"{count(asked.n_trainings, 'training')}, {labels}. Estimated {duration(seconds)}"
    return f"{summary}, {count(at_once, 'worker')}. Rounds take priority."


def _running(project: ProjectRow) -> None:
    """The running simulations. When one ends, or the open one has new records, the entire screen is redrawn. Other
    simulations are drawn outside of this fragment, so that clicks on them are not lost between two polls."""
    found = [one for one in simulation_requests.listed(resources.store(), project.id) if one.running]
    news = [(one.id, one.n_records if one.id == st.session_state.get(OPEN) else 0) for one in found]
    known = st.session_state.get("simulation-news")
    st.session_state["simulation-news"] = news
    if known is not None and known != news:
        st.rerun()
    for one in found:
        with st.container(key=f"simulation-{one.id}"):
            _row(one)


def _row(one: Simulation) -> None:
    asked = one.asked
    text, buttons = st.columns([7, 3], vertical_alignment="center")
    with text:
        titles = ", ".join(strategy_title(name) for name in asked.strategies)
        theme.heading(titles, f"{asked.start:,} to {asked.most_labels:,} labels · {count(asked.seeds, 'seed')} · "
                              f"{PRESETS.get(asked.preset, asked.preset)} · {WORDS.get(one.status, one.status)}"
                              )  # fmt: skip
        if one.running:
            st.progress(min(one.n_records / asked.n_records, 1.0))
            theme.muted(_where(one))
        elif one.status == "failed":
            st.error(plain(one.error))
    with buttons, st.container(horizontal=True, gap="small", horizontal_alignment="right"):
        _verbs(one)


def _where(one: Simulation) -> str:
    if one.without_worker:
        return "No worker is running. Start one with: python -m app worker"
    if one.status == "requested":
        return "Waiting for a free worker"
    left = [] if one.seconds_left is None else [f"about {duration(one.seconds_left)} left"]
    return " · ".join([f"{one.n_records:,} of {one.asked.n_records:,}", *left, *one.notes])


def _verbs(one: Simulation) -> None:
    is_open = st.session_state.get(OPEN) == one.id
    label = "Hide results" if is_open else "Results"
    if one.n_records and st.button(label, key=f"sim-open-{one.id}", type="tertiary"):
        st.session_state[OPEN] = None if is_open else one.id
        st.rerun()
    if one.running:
        if st.button("Cancel", key=f"sim-cancel-{one.id}"):
            simulation_requests.cancel(resources.store(), one.id)
            st.rerun()
        return
    if not one.complete and st.button("Resume", key=f"sim-go-on-{one.id}", type="tertiary"):
        _do(simulation_requests.resume, one)
    if st.button("Remove", key=f"sim-remove-{one.id}", type="tertiary"):
        _do(simulation_requests.remove, one)


def _do(change: Callable[[Store, int], None], one: Simulation) -> None:
    """Call one function of the store. If another session was faster, show why nothing was changed."""
    try:
        change(resources.store(), one.id)
    except WinnowError as error:
        st.toast(plain(error))
    st.rerun()


def _results(one: Simulation) -> None:
    """Draw the learning curves with bands, the tables and a download button."""
    records = simulation_requests.records(resources.store(), one.id)
    if not records:
        return
    summary = report.summarize(records)
    dark = st.context.theme.type == "dark"
    with st.container(key="simulation-results"):
        seeds = min(summary["n_seeds"].values())
        name = report.measure_words(summary).replace("test accuracy", "Simulated accuracy")
        theme.heading(name, f"{count(seeds, 'seed')}, band of one standard deviation, test items")
        figure = report.curves(summary, dark=dark)
        figure.update_layout(paper_bgcolor="rgba(0,0,0,0)", height=360)
        st.plotly_chart(figure, key=f"sim-curves-{one.id}", config=charts.PLOT_OPTIONS)
        left, right = st.columns([3, 2])
        left.markdown(report.table(summary))
        right.markdown(report.reach_table(summary))
        if "with_propagation" in summary:
            theme.muted("With label propagation:")
            st.markdown(report.table(summary["with_propagation"]))
        whole = json.dumps(simulation_requests.document(resources.store(), one.id), indent=1)
        st.download_button(
            "Download results.json", whole, "results.json", "application/json", key=f"sim-download-{one.id}"
        )
