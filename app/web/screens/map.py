"""Map: the items of a round in two dimensions, its picks, and areas to label."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from app.live.current import live_layers, live_result
from app.rounds import requests as round_requests
from app.views.figures import charts
from app.views.figures.map import Coloring, map_figure, mark_open_item, named_colors, outline
from app.views.item_names import ItemNames
from app.views.map_layers import NONE, MapLayers, blinded, inside, map_layers
from app.views.predictions import predictions_of
from app.views.strategy_names import strategy_title
from app.views.text import count, markup, plain, visible
from app.web import resources, state, theme
from app.web.routes.media import picture_path, sound_path
from app.web.screens.map_items import item_list
from app.web.widgets.map_hover import map_hover
from storage.labeling.labeled_items import items_to_hide
from storage.labeling.pool import LabelInput, Pool
from storage.projects.classes import list_classes
from storage.rounds.log import RoundLog, RoundRow

COLORINGS: tuple[Coloring, ...] = ("Prediction", "Label", "Confidence", "Round", "Annotator")

MOST_NAMES = 24  # names in the legend; the others are shown on hover
STEP_SECONDS = 1.6  # time for which the animation shows each round


@st.cache_resource(max_entries=4, show_spinner=False)
def _layers(
    url: str, project_id: int, round_id: int, revision: tuple[int, int], compared: str, blind_for: int | None
) -> MapLayers | None:
    """The layers of a map, cached by the revisions of the project and of its live predictions, so that any new label,
    class or round gives a new map. `blind_for` is an annotator's id in a blind project, or None."""
    found = map_layers(resources.store(), project_id, round_id)
    if found is not None and revision[1]:
        found = live_layers(found, resources.store(), list_classes(resources.store(), project_id, True))
    return found if found is None or blind_for is None else blinded(found, resources.store(), blind_for)


def render() -> None:
    if st.session_state.pop("map-leaves", False):
        st.switch_page(st.session_state["pages"]["grid"])
    project, store = state.project(), resources.store()
    done = [row for row in RoundLog(store, project.id).list() if row.status == "finished" and row.replay_of is None]
    if not done:
        theme.empty_state("No map yet", "The first round creates the map. Label a few items, then start a round.")
        with st.container(horizontal=True, horizontal_alignment="center"):
            if st.button("Go to Train", type="primary", key="map-to-train"):
                st.switch_page(st.session_state["pages"]["train"])
        return
    head = st.container(key="map-head", horizontal=True, vertical_alignment="center")
    body = st.container()
    row = chosen_round(done)  # drawn below the map but needed before it
    compared = round_requests.comparison(store, row.id)
    beside = f"{compared.ticket} {compared.status}" if compared else ""
    annotator = state.session().annotator.id
    blind_for = annotator if len(items_to_hide(store, project.id, annotator)) else None
    live = live_result(store, project.id, row.id)
    followed = live.fit.revision if live is not None else 0
    found = _layers(store.url, project.id, row.id, (project.revision, followed), beside, blind_for)
    if found is None:
        theme.empty_state("No map", f"Round {row.number} has no map.")
        return
    with head:
        coloring, shadows = controls(found)
    left, right = body.columns([3, 1])
    with left, theme.card("map"):
        draw(found, coloring, shadows)
    with right:
        with theme.card("map-side"):
            side(found, chosen())
        with theme.card("map-items"):
            item_list(found, chosen().item_id, open_item)


def controls(found: MapLayers) -> tuple[Coloring, tuple[str, ...]]:
    """The fields above the map: coloring, compared strategies, drawing."""
    coloring = st.segmented_control(
        "Color", COLORINGS, default="Prediction", key="map-color", label_visibility="collapsed"
    )
    shadows: list[str] = []
    if found.other_picks:
        shadows = st.pills(
            "Compare with",
            list(found.other_picks),
            selection_mode="multi",
            format_func=lambda name: f"Compare: {strategy_title(name)}",
            key="map-shadows",
            label_visibility="collapsed",
        )
    st.toggle("Draw areas", key="map-draw", help="Drag around points to select them.")
    drawn = f"{len(found.drawn):,} points over the density of all · " if len(found.drawn) < found.n_items else ""
    by = "the model" if found.round.metrics.get("has_model") else "raw inputs, no model yet"
    theme.muted(f"{drawn}{count(found.n_items, 'item')} · placed by {by} · round {found.round.number}")
    return coloring or "Prediction", tuple(shadows)


def chosen_round(done: list[RoundRow]) -> RoundRow:
    """A slider over the rounds with an animation. Points keep their places from one round to the next."""
    if len(done) == 1:
        return done[0]
    by_number = {row.number: row for row in done}
    numbers = sorted(by_number)
    if (following := st.session_state.pop("map-next", None)) in by_number:
        st.session_state["map-round"] = following
    if st.session_state.get("map-round") not in by_number:
        st.session_state["map-round"] = numbers[-1]
    with st.container(key="map-rounds", horizontal=True, vertical_alignment="center"):
        st.html('<span aria-hidden="true">Round</span>', width="content")
        number = st.select_slider("Round", numbers, key="map-round", label_visibility="collapsed")
        playing = st.session_state.get("map-playing", False)
        words = "Stop" if playing else "Animate rounds"
        icon = ":material/stop:" if playing else ":material/play_arrow:"
        st.button(words, icon=icon, key="map-play", type="tertiary", on_click=_play, args=(numbers[0], not playing))
    if playing:
        _next_round(numbers, number)
    return by_number[number]


def _play(first: int, start: bool) -> None:
    st.session_state["map-playing"] = start
    if start:
        st.session_state["map-next"] = first
        st.session_state["map-shown-at"] = time.monotonic()


@st.fragment(run_every=STEP_SECONDS / 2)
def _next_round(numbers: list[int], current: int) -> None:
    """Advance by one round when the current one has been shown for long enough. Stop at the last."""
    if time.monotonic() - st.session_state.get("map-shown-at", 0.0) < STEP_SECONDS:
        return
    st.session_state["map-shown-at"] = time.monotonic()
    later = [number for number in numbers if number > current]
    if later:
        st.session_state["map-next"] = later[0]
    st.session_state["map-playing"] = len(later) > 1
    st.rerun()


def draw(found: MapLayers, coloring: Coloring, shadows: tuple[str, ...]) -> None:
    """Draw the figure and read its selection."""
    dark, choice = st.context.theme.type == "dark", chosen()
    figure = map_figure(found, coloring, shadows, dark=dark)
    outline(figure, choice.areas, dark=dark)
    if choice.item_id is not None and (row := found.row_of(choice.item_id)) is not None:
        mark_open_item(figure, found, row, dark=dark)
    if st.session_state.get("map-draw"):  # while a drag draws an area, Streamlit reports no clicks
        figure.update_layout(dragmode="lasso")
    key = f"map-{state.project().id}"
    st.plotly_chart(
        figure,
        key=key,
        on_select=lambda: _choose(key),
        selection_mode=("points", "lasso"),
        config=charts.MAP_OPTIONS,
    )
    map_hover(plot_key=key, project_id=state.project().id, key="map-hover")
    st.html(legend(found, coloring))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The last selection on the map. It is stored here because Streamlit drops it when the figure changes."""

    project_id: int
    item_id: int | None = None
    areas: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()  # polygons as (x, y)


def chosen() -> Chosen:
    found = st.session_state.get("map-chosen")
    mine = state.project().id
    return found if isinstance(found, Chosen) and found.project_id == mine else Chosen(mine)


def open_item(item_id: int | None) -> None:
    """Open an item from the list."""
    st.session_state["map-chosen"] = Chosen(state.project().id, item_id)


def _choose(key: str) -> None:
    event = st.session_state.get(key)
    selection = event.selection if event is not None else {}
    project_id, areas = state.project().id, []
    for one in selection.get("lasso", ()):
        if len(one["x"]) == len(one["y"]) > 2:
            areas.append((tuple(map(float, one["x"])), tuple(map(float, one["y"]))))
    items = [point.get("customdata") for point in selection.get("points", ())]
    first = next((one for one in items if one is not None), None) if not areas else None
    item = first[0] if isinstance(first, list) else first
    if not areas and item is None and chosen().areas:
        return  # redrawing the figure sends an empty selection, so it does not clear areas; they have their own button
    st.session_state["map-chosen"] = Chosen(project_id, int(item) if item is not None else None, tuple(areas))


def legend(found: MapLayers, coloring: Coloring) -> str:
    """The meaning of colors and shapes, as text."""
    dots = "".join(
        f'<span class="winnow-legend-item"><span aria-hidden="true" style="color:{color}">●</span>{markup(name)}</span>'
        for name, color in named_colors(found, coloring)[:MOST_NAMES]
    )
    words = {"Confidence": "darker: more confident", "Round": "darker: labeled later"}.get(coloring, "")
    shapes = (
        '<span class="winnow-legend-item">▲ labeled</span><span class="winnow-picked">current picks, in order</span>'
    )
    return f'<div class="winnow-legend"><span>{dots}{words}</span><span class="winnow-muted">{shapes}</span></div>'


def side(found: MapLayers, choice: Chosen) -> None:
    """The selected area, the selected point, or instructions."""
    row = found.row_of(choice.item_id) if choice.item_id is not None else None
    if choice.areas:
        area(found, rows_in_areas(found, choice))
    elif row is not None:
        point(found, row)
    else:
        theme.heading(f"Round {found.round.number}", strategy_title(found.round.strategy))
        theme.muted("Click a point to open its item. Or draw an area to label its items together, move them to the "
                    "front of the queue, or pick half of the next batch from them.")  # fmt: skip
        theme.figure(f"{len(found.picks)}", "picks", f"of {int((~found.held_out).sum()):,} items in the pool")
        theme.figure(f"{int((found.label != NONE).sum()):,}", "labeled")


def rows_in_areas(found: MapLayers, choice: Chosen) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows in any of the drawn areas, among all items of the round except test items."""
    within = np.zeros(found.n_items, np.bool_)
    for x, y in choice.areas:
        within |= inside(found.points, x, y)
    return np.flatnonzero(within & ~found.held_out)


def area(found: MapLayers, rows: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """The number of items in the selected areas, and the actions on them."""
    project, store = state.project(), resources.store()
    n_labeled = int((found.label[rows] != NONE).sum())
    theme.heading("Selected area")
    theme.figure(f"{len(rows):,}", "items", f"{n_labeled:,} labeled")
    ids = found.item_ids[rows]
    open_ids = ids[found.label[rows] == NONE]
    none = not len(open_ids)
    if st.button("Label these in the grid", type="primary", key="area-grid", width="stretch", disabled=none):
        state.send_to_grid([int(one) for one in open_ids], "Area on the map")
        st.switch_page(st.session_state["pages"]["grid"])
    if st.button("Move to front of queue", key="area-first", width="stretch", disabled=none):
        Pool(store, project.id).put_first([int(one) for one in open_ids])
        st.toast(f"{count(len(open_ids), 'item')} moved to the front of the queue.")
    if st.button("Pick half of the next batch here", key="area-batch", width="stretch", disabled=none):
        constraint = round_requests.region_constraint(store, [int(one) for one in open_ids], 0.5)
        row = round_requests.request_round(store, project.id, by=state.session().annotator.id, constraint=constraint)
        took = row.constraint.get("region") == constraint["region"]
        st.toast(
            f"Round {row.number} "
            + ("was requested." if took else "was already running. Try again when it has finished.")
        )
    if st.button("Clear selection", key="area-clear", type="tertiary"):
        st.session_state.pop("map-chosen", None)
        st.rerun()


def point(found: MapLayers, row: int) -> None:
    """One item: media, predictions, reason of the pick, label."""
    project, store = state.project(), resources.store()
    pool = Pool(store, project.id)
    item = pool.item(int(found.item_ids[row]))
    order = np.flatnonzero(found.picks == row)
    theme.heading(f"Pick {int(order[0]) + 1}" if len(order) else "Item", "")
    sound = f'<audio controls src="{sound_path(item)}"></audio>' if project.kind == "audio" else ""
    st.html(f'<img class="winnow-thumb" alt="" src="{picture_path(item)}">{sound}')
    known = list_classes(store, project.id, include_inactive=True)
    st.html(ItemNames(one.name for one in known).shown_html(item.id, item.name))
    predictions = predictions_of(store, found.round)
    if predictions is not None and found.predicted[row] != NONE:
        theme.muted("Prediction")
        for guess in predictions.most_probable(item.id, known):
            st.html(
                f'<div class="winnow-bar" style="--share:{100 * guess.probability:.1f}%">'
                f"<span>{markup(guess.name)}</span>"
                f"<span>{100 * guess.probability:.0f} %</span></div>"
            )
    if len(order):
        reason = RoundLog(store, project.id).picks(found.round.id)[int(order[0])].reason
        if reason.get("stands_for") is not None:
            theme.figure(f"{reason['stands_for']:,}", "items represented")
    also = [strategy_title(name) for name, rows in found.other_picks.items() if row in rows]
    if also:
        theme.muted(f"Also picked by {', '.join(also)}")
    st.button("More like this", key="map-like", on_click=_like, args=(item.id,))
    if found.held_out[row]:
        theme.muted("Test item: used only for evaluation, never labeled or picked.")
        return
    label_here(found, row, pool)


def _like(item_id: int) -> None:
    """Runs as a callback, because the click may also clear the selection, so that the button is not drawn again."""
    state.send_like(item_id)
    st.session_state["map-leaves"] = True


def label_here(found: MapLayers, row: int, pool: Pool) -> None:
    """A field that labels the open item."""
    current = int(found.label[row])
    if current != NONE:
        theme.muted(f"Labeled {found.class_names[current]}")
    name = st.selectbox(
        "Label",
        found.class_names,
        index=current if current != NONE else None,
        format_func=visible,
        key=f"map-label-{found.item_ids[row]}-{current}",
        placeholder="Choose a class",
        help="Stored as your label of this item.",
    )
    if name is not None and (current == NONE or name != found.class_names[current]):
        class_id = found.class_ids[found.class_names.index(name)]
        event = LabelInput(uuid=str(uuid.uuid4()), item_id=int(found.item_ids[row]), kind="label", class_id=class_id)
        applied = pool.apply([event], annotator=state.session().annotator.id)[0]
        if applied.accepted:
            st.rerun()
        st.error(plain(applied.reason))
