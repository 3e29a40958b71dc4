"""Measure accuracy, a card on Train: draw test items from the pool, and see the accuracy on them."""

from __future__ import annotations

import streamlit as st

from app.live.current import live_result
from app.views import measuring_words as words
from app.views.figures import charts
from app.views.figures.charts import CurvePoint
from app.views.measuring import Measurement, Share, half_width, measure, needed_items
from app.views.strategy_names import strategy_title
from app.views.text import count, plain
from app.web import resources, theme
from core.errors import WinnowError
from storage.labeling.groups import FEWEST_GROUPS, n_test_groups
from storage.labeling.test_sets import Frame, GroupUse, draw_test_set, serve_tests_first, test_frame
from storage.projects.projects import ProjectRow

WIDTHS = {0.10: "± 10 points", 0.07: "± 7 points", 0.05: "± 5 points", 0.03: "± 3 points", 0.02: "± 2 points"}
FEWEST_POOL = 20
GROUP_WORDS: dict[GroupUse, str] = {"groups": "Whole groups", "shares": "Items of every group"}


def measure_card(project: ProjectRow) -> None:
    """The card with the accuracy or, before the first draw, the form to draw test items."""
    found = measure(resources.store(), project.id)
    with theme.card("measure"):
        if found is None:
            theme.heading("Measure accuracy", "with test items of your own")
            theme.muted(
                "A random sample of the pool is set aside. You label it without suggestions, and no round trains on "
                "it. Every round is then measured on it."
            )
            _cross_validated(project)
            _draw_form(project, expected=0.5)
            return
        _results(project, found)
        expected = found.newest.accuracy.value if found.newest else 0.5
        with st.expander("Draw more test items"):
            _draw_form(project, expected=min(max(expected, 0.5), 0.97), have=found.n_drawn - found.n_skipped)


def _cross_validated(project: ProjectRow) -> None:
    """While there are no test items, show the share of labels that heads of the encoder predict correctly without using
    them."""
    live = live_result(resources.store(), project.id)
    if live is None or not live.fit.n_checked:
        return
    share = Share(correct=live.fit.n_agreeing, n=live.fit.n_checked)
    theme.muted(
        f"Cross-validated on the labels, by the encoder's head: {words.percent(share)}. Labels are not a random sample "
        "of the pool: picks are harder than most items."
    )


def _draw_form(project: ProjectRow, *, expected: float, have: int = 0) -> None:
    """The form to draw test items: the margin of error, the number of items that it needs, and the button."""
    frame = test_frame(resources.store(), project.id)
    if len(frame.item_ids) + len(frame.random_labels) < FEWEST_POOL:
        theme.muted(f"The pool has {count(len(frame.item_ids), 'unlabeled item')}: too few to set some aside.")
        return
    fields = st.columns([3, 3, 2], vertical_alignment="bottom")
    with fields[0]:
        width = st.select_slider(
            "Margin of error",
            list(WIDTHS),
            value=0.05,
            format_func=WIDTHS.__getitem__,
            key=f"measure-width-{project.id}",
            help="Half the width of the 95 % interval.",
        )
    wanted = max(needed_items(float(width), expected) - have, 0)
    possible = min(wanted, (len(frame.item_ids) + len(frame.random_labels)) // 2)  # the other half stays for training
    n_groups = n_test_groups(frame.n_whole_groups, int(frame.whole.sum()), possible)
    with fields[1]:
        by = _group_use(project, n_groups) if frame.groups else "auto"
        old = _old_labels(frame) if by != "groups" else 0
    with fields[2]:
        words_ = f"Draw {count(possible, 'test item')}" if possible else "Enough test items"
        go = st.button(words_, key=f"measure-draw-{project.id}", width="stretch", disabled=not possible)
    theme.muted(" ".join([*_about(frame, wanted, possible, expected, have), *_about_groups(frame, by, n_groups)]))
    if go:
        try:
            draw_test_set(resources.store(), project.id, possible, n_labels=old, by=by)
        except WinnowError as problem:
            st.warning(plain(problem))
            return
        st.rerun()


def _old_labels(frame: Frame) -> int:
    """A field for whether labels given in random order become test labels. Returns their number."""
    n = len(frame.random_labels)
    if not n:
        return 0
    use = st.checkbox(
        f"Use {count(n, 'label')} given in random order",
        key="measure-old",
        help="They become test labels and are no longer used for training. Only labels from before the first round can "
        "be used, because later items were picked and models were trained on their labels.",
    )
    return n if use else 0


def _group_use(project: ProjectRow, n_groups: int) -> GroupUse:
    """A field for the use of groups. The default is whole groups if there are enough of them."""
    if not n_groups:
        return "shares"
    help_text = "Whole groups (speakers, recordings) become test groups, so that no group is on both sides."
    use: GroupUse = st.selectbox(
        "Groups",
        list(GROUP_WORDS),
        format_func=GROUP_WORDS.__getitem__,
        key=f"measure-groups-{project.id}",
        help=help_text,
    )
    return use


def _about_groups(frame: Frame, by: GroupUse, n_groups: int) -> list[str]:
    if by == "groups":
        return [
            f"{n_groups:,} of {count(frame.n_whole_groups, 'group')} without a label become test groups. Their other "
            "items are removed from the pool. The accuracy then applies to new groups, and its interval may be wider."
        ]
    if not frame.groups:
        return []
    few = (
        ""
        if n_groups
        else f" Whole groups can be set aside if there are {FEWEST_GROUPS} groups without a label, and a third of "
        "them is enough for the test items."
    )
    return [
        f"Each of {count(len(set(frame.groups)), 'group')} contributes its share. The same groups are used for "
        f"training, so the accuracy on new groups may be lower.{few}"
    ]


def _about(frame: Frame, wanted: int, possible: int, expected: float, have: int) -> list[str]:
    parts = [f"Drawn from {count(len(frame.item_ids), 'unlabeled item')}."]
    if possible < wanted:
        half = half_width(possible + have, expected)
        parts.append(
            f"{wanted:,} are needed, but at most half of the pool becomes test items: {possible:,} give about "
            f"± {100 * half:.0f} points."
        )
    elif expected == 0.5:
        parts.append("This is enough for any accuracy; a high accuracy needs fewer items.")
    if frame.n_rounds:
        parts.append(
            "Existing labels are not used, because rounds have trained on them or picked their items. The accuracy "
            "applies to the unlabeled items."
        )
    return parts


def _results(project: ProjectRow, found: Measurement) -> None:
    newest = found.newest
    theme.heading("Accuracy on your test items", words.percent(newest.accuracy) if newest else "")
    left, right = st.columns([3, 2])
    with left:
        if newest is not None:
            st.plotly_chart(
                charts.learning_curve(_points(found), dark=_dark(), height=220),
                key="measure-curve",
                config=charts.PLOT_OPTIONS,
            )
            for line in words.about_rounds(found):
                theme.muted(line)
        else:
            theme.muted("Accuracy appears after test items are labeled and a round with a model has finished.")
    with right:
        theme.muted(words.progress_sentence(found))
        if found.n_waiting and st.button("Label test items", key="measure-label", type="primary"):
            serve_tests_first(resources.store(), project.id)
            st.switch_page(st.session_state["pages"]["label"])
        if newest is not None:
            _target(project, found)
            _classes(found)


def _target(project: ProjectRow, found: Measurement) -> None:
    about = "The accuracy that you need. The estimate below shows how many labels it may take."
    key = f"measure-target-{project.id}"
    target = st.number_input("Target accuracy (%)", 50.0, 99.9, 95.0, 0.5, format="%.1f", key=key, help=about)
    forecast = found.forecast(target / 100)
    theme.muted(words.forecast_sentence(forecast, found.n_labeled))
    if advice := words.stop_advice(found, forecast):
        theme.note(advice)


def _classes(found: Measurement) -> None:
    if not found.per_class:
        return
    rows = [
        {
            "class": name,
            "accuracy": f"{100 * share.value:.0f} %",
            "95 % interval": f"{100 * share.interval[0]:.0f} to {100 * share.interval[1]:.0f} %",
            "items": share.n,
        }
        for name, share in sorted(found.per_class, key=lambda pair: pair[1].value)
    ]
    st.dataframe(rows, hide_index=True, key="measure-classes", height=min(36 * (len(rows) + 1), 220))


def _points(found: Measurement) -> list[CurvePoint]:
    return [
        CurvePoint(
            round=row.number,
            labels=row.n_labeled,
            correct=row.accuracy.correct,
            n=row.accuracy.n,
            interval=row.accuracy.interval,
            strategy=strategy_title(row.strategy) + ("" if row.inductive else " · before the draw"),
        )
        for row in found.rounds
    ]


def _dark() -> bool:
    return st.context.theme.type == "dark"
