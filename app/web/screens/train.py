"""Train: start a round, follow its progress, and see its results.

The card of a running round polls the store. Everything else is drawn once per revision of the project.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import streamlit as st

from app.rounds import requests as round_requests
from app.rounds.timing import estimates
from app.views.durations import ago, duration
from app.views.figures import charts
from app.views.learning_progress import (
    LearningProgress,
    advice,
    is_inductive,
    learning_progress,
    worst_confusion,
    worst_confusions,
)
from app.views.strategy_names import strategy_title
from app.views.text import count, plain
from app.web import resources, state, theme
from app.web.screens.rounds.audition import audition_card
from app.web.screens.rounds.comparison import comparison_card
from app.web.screens.rounds.history import round_history, version_card
from app.web.screens.rounds.measure import measure_card
from app.web.screens.rounds.running import running
from app.web.screens.rounds.simulate import simulate_card, warnings_card
from app.web.screens.settings import advanced
from core.acquisition import catalog
from core.config import from_dict
from core.rounds import stage_names
from storage.labeling.pool import Pool, PoolCounts
from storage.projects import projects
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectSettings
from storage.rounds.workers import WorkerRow

MATRIX_CLASSES, MOST_CONFUSIONS = 15, 8  # with more classes, a table of the most frequent confusions is shown
PRESET_WORDS = {
    "auto": "Automatic: encoder or from scratch",
    "encoder": "Encoder: pretrained, seconds per round",
    "laptop": "Laptop: minutes on 2 cores",
    "paper": "Paper: WideResNet-28-10, requires a GPU",
    "smoke": "Smoke test: seconds, low accuracy",
}


def dark() -> bool:
    return st.context.theme.type == "dark"


def render() -> None:
    project = state.project()
    newest = round_requests.view(resources.store(), project.id)
    with theme.card("round-now"):
        if newest is not None and newest.round.unfinished:
            running(project.id)
        else:
            start(project, newest)
    found = learning_progress(resources.store(), project.id)
    if found.rounds:
        results(found)
    audition_card(project)
    measure_card(project)
    warnings_card(project)
    round_history(project.id)
    comparison_card()
    version_card(project.id)
    counts_and_workers(project.id)
    simulate_card(project)


def start(project: projects.ProjectRow, newest: round_requests.RoundView | None) -> None:
    """Settings of the next round, its estimated time, and the button."""
    store, settings = resources.store(), project.settings
    number = newest.round.number + 1 if newest else 1
    counts = Pool(store, project.id).counts()
    theme.heading(f"Round {number}", f"{count(counts.labeled, 'label')}, {counts.waiting:,} to label")
    if newest is not None and newest.round.status in ("failed", "cancelled"):
        message = newest.round.error or "The previous model and picks are still used."
        st.warning(f"Round {newest.round.number} {newest.round.status}. {plain(message)}")
    if not counts.total:
        theme.muted("This project has no items yet. Import files, then label a few.")
        theme.next_step("Import files", "data", "train-to-data", primary=True)
    elif not counts.labeled:
        theme.muted("Nothing is labeled yet. A model needs labels of at least two classes. Without labels, a round "
                    "only picks a first batch.")  # fmt: skip
        theme.next_step("Label the first items", "label", "train-to-label", primary=True)
    go = _fields(project, counts)
    help_text = "A round starts as soon as all items of a batch are labeled."
    st.toggle("Start the next round automatically", help=help_text, **_setting(project, "automatic_rounds"))
    advanced.section(project)
    _cost(project, settings.strategy, counts.labeled)
    if go:
        round_requests.request_round(store, project.id, by=state.session().annotator.id)
        st.rerun()


def _fields(project: projects.ProjectRow, counts: PoolCounts) -> bool:
    """The settings of a round and its start button. Returns whether the button was pressed. Before the first label, the
    main action is labeling."""
    with st.container(key="round-fields"):
        fields = st.columns([3, 1, 3, 1, 2], vertical_alignment="bottom")
    with fields[0]:
        st.selectbox(
            "Strategy",
            catalog.names(),
            format_func=strategy_title,
            help="How the items of the next batch are picked.",
            **_setting(project, "strategy"),
        )
    with fields[1]:
        st.number_input("Batch", 1, 10_000, help="Number of items to pick.", **_setting(project, "batch_size"))
    with fields[2]:
        st.selectbox(
            "Training",
            list(PRESET_WORDS),
            format_func=PRESET_WORDS.__getitem__,
            help="Network and duration of the training.",
            **_setting(project, "preset"),
        )
    with fields[3]:
        st.number_input("Seed", 0, 2**31 - 1, help="Fixes all random choices.", **_setting(project, "seed"))
    with fields[4]:
        return st.button(
            "Start round",
            type="primary" if counts.labeled else "secondary",
            key="start-round",
            width="stretch",
            disabled=not counts.waiting,
        )


def _setting(project: projects.ProjectRow, name: str) -> dict[str, Any]:
    """Arguments for a widget that shows one stored setting and stores each change immediately, so that two sessions do
    not overwrite each other's settings."""
    key = f"{name}-{project.id}"
    value = getattr(project.settings, name)
    known = {"strategy": catalog.names(), "preset": tuple(PRESET_WORDS)}.get(name)
    st.session_state[key] = value if known is None or value in known else known[0]
    return {"key": key, "on_change": _keep, "args": (project.id, name, key)}


def _keep(project_id: int, name: str, key: str) -> None:
    settings = projects.get_project(resources.store(), project_id).settings
    wanted = from_dict(ProjectSettings, dataclasses.asdict(settings) | {name: st.session_state[key]})
    projects.update_project(resources.store(), project_id, settings=wanted)


def _cost(project: projects.ProjectRow, strategy: str, n_labeled: int) -> None:
    found = estimates.estimate(resources.store(), project.id, round_requests.next_config(resources.store(), project))
    source = "based on the last round" if found.source == "last round" else "on a 2-core CPU"
    first = " The first batch is picked without a model." if n_labeled == 0 else ""
    about = f"{catalog.entry(strategy).description} " if strategy in catalog.names() else ""
    theme.muted(f"{about}Estimated time: {duration(found.total)}, {source}.{first}")


def results(found: LearningProgress) -> None:
    """Draw the cards with the learning curve, the effect of the last batch, and the confusions."""
    with st.container(key="results"):
        left, middle, right = st.columns([5, 4, 3])
    with left, theme.card("curve", height="stretch"):
        _curve(found)
    with middle, theme.card("bought", height="stretch"):
        _bought(found)
    with right, theme.card("confusions", height="stretch"):
        _confusions(found)


def _curve(found: LearningProgress) -> None:
    if not found.curve:
        theme.heading("Accuracy")
        theme.muted("No accuracy yet. Draw test items below, or import some (split=test).")
        return
    n = found.curve[-1].n
    if found.measure != "picks":
        last = found.curve[-1]
        low, high = charts.wilson(last.correct, last.n)
        name = "Test accuracy" if found.measure == "test items" else "Test accuracy (earlier measure)"
        theme.heading(
            name, f"{100 * last.share:.1f} %, {count(n, 'item')}, 95 % interval {100 * low:.1f} to {100 * high:.1f} %"
        )
    else:
        theme.heading("Correct predictions on picks", f"{count(n, 'label')} in the last batch; picks are hard items")
    st.plotly_chart(charts.learning_curve(found.curve, dark=dark()), key="curve", config=charts.PLOT_OPTIONS)
    for line in _about_measure(found):
        theme.muted(line)


def _about_measure(found: LearningProgress) -> list[str]:
    """Sentences on what the curve shows."""
    lines = []
    if found.measure == "test items":
        lines.append("Accuracy of the network alone, on test items that are used for nothing else.")
        if found.with_propagation is not None:
            lines.append(f"With label propagation: {100 * found.with_propagation:.1f} %.")
    if found.n_earlier:
        rounds = count(found.n_earlier, "earlier round")
        lines.append(f"Not in the curve: {rounds} whose accuracy was measured in another way.")
    return lines


def _bought(found: LearningProgress) -> None:
    theme.heading("Effect of the last batch")
    answered = [row for row in found.rounds if row.id in found.on_picks]
    if found.gain is not None:
        before, after = found.curve[-2].share, found.curve[-1].share
        theme.figure(f"{found.gain:+.1f}", "points on test items", f"{100 * before:.1f} → {100 * after:.1f} %")
    if answered:
        last = found.on_picks[answered[-1].id]
        accuracy = answered[-1].metrics.get("accuracy") if is_inductive(answered[-1]) else None
        average = f"average on test items {100 * (1 - accuracy):.0f} %" if accuracy is not None else ""
        theme.figure(f"{last.wrong} of {last.labeled}", "predictions were wrong", average)
    if found.changed_nearby is not None:
        theme.figure(f"{found.changed_nearby:,}", "predictions changed", "near the labeled picks")
    if not answered and found.gain is None:
        theme.muted("Label the batch and run another round to see its effect.")
    theme.note(advice(found))


def _confusions(found: LearningProgress) -> None:
    where = f"test items, round {found.rounds[-1].number}" if found.confusion is not None else ""
    theme.heading("Confusions", where)
    if found.confusion is None:
        theme.muted("Test items show which classes are confused: draw some below, or import them (split=test).")
        return
    if len(found.class_names) > MATRIX_CLASSES:
        _frequent_confusions(found)
        return
    figure = charts.confusion(found.confusion, found.class_names, dark=dark())
    st.plotly_chart(figure, key="confusion", config=charts.PLOT_OPTIONS)
    worst = worst_confusion(found.confusion, found.class_names)
    theme.muted(f"Most often: {worst[0]} predicted as {worst[1]} ({worst[2]})" if worst else "No errors.")


def _frequent_confusions(found: LearningProgress) -> None:
    """The most frequent confusions as a table, because a matrix of many classes is not readable."""
    assert found.confusion is not None
    worst = worst_confusions(found.confusion, found.class_names, MOST_CONFUSIONS)
    if not worst:
        theme.muted("No errors.")
        return
    theme.table(["Label", "Predicted as", "Items"], [[label, predicted, f"{n:,}"] for label, predicted, n in worst])


def counts_and_workers(project_id: int) -> None:
    """The cards with the labels by class and the workers."""
    left, right = st.columns([7, 5])
    store = resources.store()
    with left, theme.card("per-class", height="stretch"):
        counts = Pool(store, project_id).counts()
        known = list_classes(store, project_id)
        theme.heading("Labels by class", f"{count(counts.labeled, 'label')} now")
        if not counts.labeled:
            theme.muted("No labels yet.")
        elif known:
            values = [counts.per_class.get(row.id, 0) for row in known]
            figure = charts.class_counts(values, [row.name for row in known], dark=dark(), height=180)
            st.plotly_chart(figure, key="class-counts", config=charts.PLOT_OPTIONS)
            missing = [row.name for row, value in zip(known, values, strict=True) if value == 0]
            if missing:
                more = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
                theme.muted(f"No label yet for {', '.join(missing[:5])}{more}.")
    with right, theme.card("workers", height="stretch"):
        theme.heading("Workers", "processes that run rounds")
        panel = round_requests.workers_panel(store)
        if not panel:
            theme.muted("No worker is running. Start one with: python -m app worker")
        for worker in panel:
            theme.muted(_worker_line(worker))


def _worker_line(worker: WorkerRow) -> str:
    doing = stage_names.UNDER_WAY.get(worker.stage, "running a round") if worker.stage else "idle"
    return f"{worker.host} · {worker.device} · {doing} · last heartbeat {ago(worker.heartbeat_at)}"
