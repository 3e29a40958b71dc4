"""The card of a running round on Train: stages, units, time left, measures and cancel. It polls the store."""

from __future__ import annotations

from collections.abc import Collection

import streamlit as st

from app.rounds import learning_settings
from app.rounds import requests as round_requests
from app.rounds.requests import RoundView
from app.rounds.timing.time_left import STATED_SECONDS
from app.views.durations import ago, duration
from app.views.figures import charts
from app.views.text import count, markup
from app.web import resources, theme
from core.rounds import stage_names
from storage.projects.projects import get_project
from storage.rounds import workers

POLL_SECONDS = 1.0
UNITS = {  # stage -> the units that it counts
    "encode": "items",
    "decide": "items",
    "prepare": "items read",
    "train": "training steps",
    "refine": "training steps",
    "predict": "items",
    "check": "clips compared",
    "propagate": "clips compared",
    "features": "items",
    "select": "picks",
    "map": "items",
    "rival": "training steps",
}
PART_UNITS = {  # part of a stage -> the units that it counts
    "views": "items augmented",
    "landmarks": "landmarks",
    "graph": "clips compared",
    "targets": "items predicted",
}
MEASURES = {  # name in the training metrics -> (name on the screen, whether it is a share)
    "loss": ("Loss", False),
    "labeled_loss": ("Loss on labeled items", False),
    "unlabeled_loss": ("Loss on unlabeled items", False),
    "labeled_accuracy": ("Correct on labeled items", True),
    "held_out_accuracy": ("Correct on test items", True),
    "confidence": ("Mean confidence", True),
    "used_share": ("Unlabeled items used", True),
}


@st.fragment(run_every=POLL_SECONDS)
def running(project_id: int) -> None:
    """The card, which is redrawn every second. When the round ends, the entire screen is redrawn."""
    view = round_requests.view(resources.store(), project_id)
    if view is None or not view.round.unfinished:
        st.rerun()
        return
    text, side, stop = st.columns([6, 3, 1], vertical_alignment="top")
    with text:
        theme.heading(f"Round {view.round.number}", _state(view))
        st.html(stage_list(view.stage or stage_names.NAMES[0], _hidden(view)))
        st.progress(min(view.done / view.total, 1.0) if view.total else 0.0)
        st.html(_time_left(view))
        theme.muted(_facts(view))
    with side:
        _measures(view)
    with stop:
        asked = view.round.cancel_requested
        if st.button("Stopping" if asked else "Cancel", key="cancel-round", disabled=asked, width="stretch"):
            round_requests.cancel_round(resources.store(), project_id, view.round.id)
            st.rerun()


def _state(view: RoundView) -> str:
    if view.round.started_at is None:
        return f"requested {ago(view.round.requested_at)}"
    return f"running · started {ago(view.round.started_at)}"


def _hidden(view: RoundView) -> tuple[str, ...]:
    """The stages that this round does not have. Only rounds with an encoder encode, only rounds of the preset `auto`
    with an encoder decide, and only networks for clips and for photographs described by patches are refined."""
    config, project = view.round.config, get_project(resources.store(), view.round.project_id)
    has_targets = config.similarity.neighbors > 0 if project.kind == "audio" else config.media.patches > 0
    refined = has_targets and config.preset != "encoder" and config.training.refine_steps > 0
    unrefined = () if refined else ("refine",)
    decides = config.preset == "auto" and config.encoder.name != "none"
    if decides and learning_settings.encoder_names(resources.store(), project):
        return unrefined
    return (*unrefined, "decide", "rival") if config.preset == "encoder" else (*unrefined, "encode", "decide", "rival")


def stage_list(current: str, hidden: Collection[str] = ()) -> str:
    """An HTML list of the stages of a round: finished, current and upcoming."""
    names = tuple(name for name in stage_names.NAMES if name not in hidden)
    at = names.index(current) if current in names else 0
    parts = []
    for place, name in enumerate(names):
        kind = "done" if place < at else "now" if place == at else "next"
        mark = "✓ " if kind == "done" else ""
        current_mark = ' aria-current="step"' if kind == "now" else ""
        about = markup(stage_names.ABOUT[name])
        parts.append(
            f'<li class="winnow-stage-{kind}" title="{about}"{current_mark}>{mark}{stage_names.title_of(name)}</li>'
        )
    return f'<ol class="winnow-stages" aria-label="Stages of the round">{"".join(parts)}</ol>'


def _time_left(view: RoundView) -> str:
    """The time left of the current stage and of the round, as text."""
    is_waiting = view.waiting_for_worker and not view.stage
    if is_waiting:
        alive = workers.living_workers(resources.store())
        stage = "Waiting for a free worker" if alive else "No worker is running. Start one with: python -m app worker"
    elif view.stage_seconds_left is None:
        stage = f"{stage_names.title_of(view.stage)}: estimating the time left"
    else:
        stage = f"{stage_names.title_of(view.stage)}: {_left(view.stage_seconds_left, view.stage_is_short)}"
    whole = ""
    if view.seconds_left is not None and is_waiting:
        whole = f"Whole round: about {duration(view.seconds_left)} from its start"
    elif view.seconds_left is not None:
        whole = f"Whole round: {_left(view.seconds_left, view.seconds_left < STATED_SECONDS)}"
    return f'<p class="winnow-time-left"><span>{markup(stage)}</span><span>{markup(whole)}</span></p>'


def _left(seconds: float, is_short: bool) -> str:
    return f"less than {STATED_SECONDS:.0f} s left" if is_short else f"about {duration(seconds)} left"


def _facts(view: RoundView) -> str:
    parts = []
    if view.total > 1:
        unit = PART_UNITS.get(view.counted) or UNITS.get(view.stage, "steps")
        parts.append(f"{view.done:,} of {view.total:,} {unit}")
    if view.note and not view.curves and view.counted not in PART_UNITS:
        parts.append(view.note)
    before = f" ({view.labels_since:,} more since it started)" if view.labels_since else ""
    parts.append(f"{count(view.round.n_labeled, 'label')}{before}")
    if view.interruptions:
        parts.append(f"resumed {count(view.interruptions, 'time')} after an interruption")
    return " · ".join(parts)


def _measures(view: RoundView) -> None:
    """The newest value of each measure as a table, and the loss as a line."""
    losses = view.curves.get("loss", ())
    if len(losses) > 1:
        steps, values = zip(*losses, strict=True)
        dark = st.context.theme.type == "dark"
        st.plotly_chart(charts.loss_line(steps, values, dark=dark), key="loss-line", config=charts.PLOT_OPTIONS)
    known = [(name, points[-1][1]) for name, points in view.curves.items() if points]
    if known:
        st.html(measure_table(known))


def measure_table(known: list[tuple[str, float]]) -> str:
    """An HTML table of the newest training measures."""
    lines = []
    for name, value in sorted(known, key=lambda one: list(MEASURES).index(one[0]) if one[0] in MEASURES else 99):
        title, is_share = MEASURES.get(name, (name.replace("_", " ").capitalize(), False))
        shown = f"{100 * value:.1f} %" if is_share else f"{value:.3f}"
        lines.append(f"<tr><th scope='row'>{markup(title)}</th><td>{shown}</td></tr>")
    return f'<table class="winnow-measures"><caption>Training so far</caption>{"".join(lines)}</table>'
