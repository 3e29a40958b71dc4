"""The list next to the map: find an item by name or number, and open any point with the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable

import streamlit as st

from app.views.item_names import ItemNames
from app.views.map_layers import NONE, MapLayers
from app.views.text import plain, visible
from app.web import resources, state, theme
from storage.labeling.browsing.item_browser import ItemQuery, matching
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes

SHOWN = 20
_NUMBER = re.compile(r"(?:item\s*)?#?\s*(\d{1,15})", re.IGNORECASE)


def item_list(found: MapLayers, opened: int | None, choose: Callable[[int | None], None]) -> None:
    """The picks of the round or the results of a search, as a list of choices. `choose` opens an item."""
    project_id = state.project().id
    text = st.text_input(
        "Find an item",
        key=f"map-search-{project_id}",
        placeholder="Name or number",
        help="Lists items whose file name contains this text, or the item with this number.",
    ).strip()
    rows = _searched(found, text) if text else found.picks.tolist()
    if text and not rows:
        theme.muted("No item of this round has this name or number.")
        return
    if not rows:
        return
    ids = [int(found.item_ids[row]) for row in rows[:SHOWN]]
    names = _names(found, rows[:SHOWN])
    key = f"map-list-{project_id}-{found.round.id}-{text}"
    st.session_state[key] = opened if opened in names else None
    st.radio(
        f"Found: {_size(len(rows))}" if text else f"Picks of round {found.round.number}",
        [one for one in ids if one in names],
        format_func=lambda one: plain(names[one]),
        key=key,
        on_change=lambda: choose(st.session_state[key]),
        help="Opens the item and marks it on the map.",
    )


def _size(n: int) -> str:
    return f"the first {SHOWN}" if n > SHOWN else f"{n} item" + ("s" if n != 1 else "")


def _searched(found: MapLayers, text: str) -> list[int]:
    """Rows of at most SHOWN + 1 items that match."""
    named = matching(resources.store(), found.round.project_id, ItemQuery(search=text)).item_ids
    ids = named[: SHOWN + 1].tolist()
    if match := _NUMBER.fullmatch(text):
        ids.insert(0, int(match[1]))
    rows = [found.row_of(item_id) for item_id in dict.fromkeys(ids)]
    return [row for row in rows if row is not None]


def _names(found: MapLayers, rows: list[int]) -> dict[int, str]:
    """item id -> its text in the list: number of the pick, displayed name, label or prediction."""
    store, project_id = resources.store(), found.round.project_id
    called = ItemNames(one.name for one in list_classes(store, project_id, include_inactive=True))
    items = Pool(store, project_id).items_by_id([int(found.item_ids[row]) for row in rows])
    place = {int(row): order for order, row in enumerate(found.picks, 1)}
    texts = {}
    for item in items:
        row = found.row_of(item.id)
        assert row is not None
        parts = [f"{place[row]}." if row in place else "", visible(called.shown_name(item.id, item.name))[:60]]
        if found.label[row] != NONE:
            parts.append(f"· labeled {visible(found.class_names[found.label[row]])}")
        elif found.predicted[row] != NONE:
            predicted = visible(found.class_names[found.predicted[row]])
            parts.append(f"· predicted {predicted}, {100 * found.confidence[row]:.0f}\u00a0%")
        texts[item.id] = " ".join(part for part in parts if part)
    return texts
