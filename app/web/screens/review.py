"""Review: items with labels on which annotators disagree or that the model contradicts. A decision is an event."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import streamlit as st

from app.views import review_cases
from app.views.cards.annotator_table import COLUMNS, annotator_lines
from app.views.item_names import ItemNames
from app.views.review_cases import Case
from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from app.web.routes.media import picture_path, sound_path
from storage.labeling import agreement
from storage.labeling.item_rows import ItemRow
from storage.labeling.pool import LabelInput, Pool
from storage.projects.annotators import annotator_statistics, list_annotators
from storage.projects.class_rows import ClassRow
from storage.projects.classes import list_classes

MOST_CLASSES = 12  # rows of the table of agreement
KINDS = {"label": "labeled", "decide": "decided", "skip": "skipped", "flag": "flagged", "unflag": "removed the flag",
         "note": "added a note", "undo": "undid"}  # fmt: skip


def render() -> None:
    project, store = state.project(), resources.store()
    known = list_classes(store, project.id, include_inactive=True)
    waiting = review_cases.cases(store, project.id, state.session().annotator.id)
    with st.container(key="review"):
        left, right = st.columns([3, 2])
    with left, theme.card("case"):
        if waiting:
            one_case(waiting, known)
        else:
            theme.heading("Nothing to review")
            theme.muted("Items appear here when annotators choose different classes, or when a model that was trained "
                        "without the label predicts another class with confidence.")  # fmt: skip
            if project.settings.labels_per_item == 1:
                theme.muted("Each item is labeled by one annotator. You can change this under Data.")
            theme.next_step("Continue labeling", "label", "review-to-label")
    with right:
        with theme.card("agreement"):
            agreement_card(project.id, known)
        with theme.card("people"):
            people_card(project.id)


def one_case(waiting: list[Case], known: list[ClassRow]) -> None:
    """One item to decide: media, labels, prediction, evidence and history."""
    place = st.session_state.get("review-place", 0) % len(waiting)
    case = waiting[place]
    pool = Pool(resources.store(), state.project().id)
    item = pool.item(case.item_id)
    names = {row.id: row.name for row in known}
    people = {row.id: row.name for row in list_annotators(resources.store())}
    words = "annotators disagree" if case.kind == "disagreement" else "the model predicts another class"
    theme.heading(f"{place + 1} of {len(waiting)}", words)
    _item(item, known)
    entries = [(people.get(annotator, "Label"), class_id, "") for annotator, class_id in case.labels.items()]
    if case.prediction is not None:
        entries.append(("Model", case.prediction, f", {100 * (case.confidence or 0):.0f} %"))
    st.html(_label_list([(who, names.get(class_id, "?") + sure) for who, class_id, sure in entries]))
    for line in evidence(case, known):
        theme.muted(line)
    _decision(case, place, pool, known)
    with st.expander("History"):
        for past in pool.history(case.item_id):
            what = f" {names.get(past.class_id, '?')}" if past.class_id is not None else ""
            note = f": {past.note}" if past.note else ""
            who = people.get(past.annotator_id, "unknown annotator")
            theme.muted(f"{past.at:%Y-%m-%d %H:%M} UTC · {who} {KINDS.get(past.kind, past.kind)}{what}{note}"[:300])


def _item(item: ItemRow, known: list[ClassRow]) -> None:
    """The media and the name of an item."""
    sound = f'<audio controls src="{sound_path(item)}"></audio>' if state.project().kind == "audio" else ""
    st.html(f'<img class="winnow-thumb winnow-review" alt="" src="{picture_path(item)}">{sound}')
    st.html(ItemNames(row.name for row in known).shown_html(item.id, item.name))


def _decision(case: Case, place: int, pool: Pool, known: list[ClassRow]) -> None:
    """A field for the final label, with buttons that store it or show the next case."""
    names = {row.id: row.name for row in known}
    options = list(dict.fromkeys([*case.labels.values(), *([case.prediction] if case.prediction is not None else [])]))
    options += [row.id for row in known if row.active and row.id not in options]
    chosen = st.selectbox(
        "Final label",
        options,
        format_func=lambda one: visible(names.get(one, "?")),
        key=f"decide-{case.item_id}",
        help="The class that counts for this item; all labels are kept.",
    )
    buttons = st.columns([2, 2, 1])
    if buttons[0].button("Save decision", type="primary", key=f"decide-now-{case.item_id}", width="stretch"):
        event = LabelInput(uuid=str(uuid.uuid4()), item_id=case.item_id, kind="decide", class_id=chosen)
        applied = pool.apply([event], annotator=state.session().annotator.id)[0]
        if applied.accepted:
            st.rerun()
        st.error(plain(applied.reason))
    if buttons[1].button("Decide later", key=f"later-{case.item_id}", width="stretch"):
        st.session_state["review-place"] = place + 1
        st.rerun()


def evidence(case: Case, known: list[ClassRow]) -> list[str]:
    """Sentences on why a label may be wrong: the prediction without it, its influence, the nearest labeled items."""
    if case.kind != "conflict":
        return []
    lines = []
    if case.trust is not None:
        lines.append(f"Predicted without this label, it is right with a probability of about {100 * case.trust:.0f} %.")
    if case.influence is not None:
        effect = "raises" if case.influence < 0 else "lowers"
        lines.append(f"More weight on this label {effect} the expected loss on the whole pool.")
    names = {row.id: row.name for row in known}
    near = [names.get(one, "?") for one in review_cases.nearest_classes(resources.store(), state.project().id, case)]
    if near:
        lines.append(f"Nearest labeled items: {', '.join(visible(name) for name in near)}.")
    return lines


def _label_list(lines: list[tuple[str, str]]) -> str:
    """One line per annotator and class."""
    parts = [f"<li><span>{markup(who)}:</span> <strong>{markup(what)}</strong></li>" for who, what in lines]
    return f'<ul class="winnow-label-list">{"".join(parts)}</ul>'


def agreement_card(project_id: int, known: list[ClassRow]) -> None:
    """Agreement of annotators over all items with several labels, and per class."""
    found = agreement.agreement(resources.store(), project_id)
    theme.heading("Agreement", f"{count(found.n_items, 'item')} with at least two labels")
    if found.alpha is None:
        theme.muted(
            "Agreement is measured when several annotators have labeled the same items with more than one class."
        )
        return
    theme.figure(f"{found.alpha:.2f}", "Krippendorff's alpha", "1: full agreement, 0: chance level")
    if found.share_equal is not None:
        theme.figure(f"{100 * found.share_equal:.0f} %", "of items with full agreement")
    names = {row.id: row.name for row in known}
    lowest_first = sorted((value, one) for one, value in found.per_class.items() if value is not None)
    lines = [[visible(names.get(one, "?")), f"{value:.2f}"] for value, one in lowest_first]
    if lines:
        theme.table(["Class", "Alpha"], lines[:MOST_CLASSES])
    if len(lines) > MOST_CLASSES:
        theme.muted(f"The {MOST_CLASSES} classes with the lowest agreement, of {len(lines):,}.")


def people_card(project_id: int) -> None:
    """The activity of each annotator in the project."""
    theme.heading("Annotators")
    zone = ZoneInfo(st.context.timezone) if st.context.timezone else UTC
    lines = annotator_lines(annotator_statistics(resources.store(), project_id, zone), datetime.now(zone))
    if lines:
        theme.table(COLUMNS, lines, wide=True)
    else:
        theme.muted("No labels yet.")
