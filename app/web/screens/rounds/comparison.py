"""Compare strategies, a card on Train: the picks of other strategies in a round, side by side.

It is a card rather than a dialog, so that it stays open while rounds run and other parts of the page are redrawn.
"""

from __future__ import annotations

import streamlit as st

from app.rounds import requests as round_requests
from app.views.cards.strategy_comparison import PicksComparison, StrategyPicks, compare_picks
from app.views.figures import charts
from app.views.figures.strategy_maps import strategy_maps
from app.views.strategy_names import strategy_title
from app.views.text import markup, plain
from app.web import resources, state, theme
from app.web.routes.media import media_path
from core.acquisition import catalog
from storage.labeling.pool import Pool
from storage.rounds.comparisons import Comparison
from storage.rounds.log import RoundLog, RoundRow

OPEN = "comparison-open"
POLL_SECONDS = 1.0
SHOWN_PICKS = 24
SHOWN_CLASSES = 6
COLUMNS = ("Strategy", "Shared picks", "Predicted classes", "Distance to nearest pick", "Distance between picks")


def open_comparison(round_id: int) -> None:
    st.session_state[OPEN] = (state.project().id, round_id)


def close_comparison() -> None:
    st.session_state.pop(OPEN, None)


def comparison_card() -> None:
    """The card. Nothing is drawn until the button Compare of a round is pressed."""
    project_id, round_id = st.session_state.get(OPEN, (None, None))
    if project_id != state.project().id:
        return
    store = resources.store()
    row = RoundLog(store, project_id).get(round_id)
    with theme.card("comparison"):
        head, close = st.columns([8, 1], vertical_alignment="center")
        with head:
            theme.heading(
                "Compare strategies", f"what each would have picked in round {row.number}; no labels are needed"
            )
        close.button("Close", key="comparison-close", on_click=close_comparison, type="tertiary")
        _choose(project_id, row)
        found = round_requests.comparison(store, round_id)
        if found is not None and found.status == "requested":
            st.fragment(_waiting, run_every=POLL_SECONDS)(round_id, found.ticket)
        elif found is not None:
            _result(row, found)


def _choose(project_id: int, row: RoundRow) -> None:
    store = resources.store()
    others = [name for name in catalog.names() if name != row.strategy]
    known = round_requests.comparison(store, row.id)
    left, right = st.columns([8, 1], vertical_alignment="bottom")
    chosen = left.multiselect(
        "Strategies",
        others,
        default=[name for name in (known.strategies if known else ("badge", "uniform")) if name in others],
        format_func=strategy_title,
        key=f"compare-with-{row.id}",
        help="Strategies that pick from the same items, labels and model.",
    )
    if right.button("Compare", type="primary", key=f"compare-go-{row.id}", disabled=not chosen, width="stretch"):
        round_requests.request_comparison(store, project_id, row.id, chosen)
        st.rerun()


def _waiting(round_id: int, ticket: str) -> None:
    found = round_requests.comparison(resources.store(), round_id)
    if found is None or found.ticket != ticket or found.status != "requested":
        st.rerun()
    theme.muted("A worker is computing the picks. You can continue to work on this page.")


def _result(row: RoundRow, found: Comparison) -> None:
    if found.status == "failed":
        st.error(plain(found.error))
        return
    compared = compare_picks(resources.store(), row, found.picks)
    if compared is None:
        theme.muted("This round stored no predictions, so the picks cannot be compared.")
        return
    st.html(comparison_table(compared))
    theme.muted(
        "Distances are between the model's embeddings of the items; 1 is the distance of two random items, computed on "
        f"{compared.n_sampled:,} items. A smaller distance to the nearest pick covers the pool better."
    )
    if len(compared.background):
        dark = st.context.theme.type == "dark"
        st.plotly_chart(strategy_maps(compared, dark=dark), key="comparison-maps", config=charts.PLOT_OPTIONS)
        theme.muted("Each strategy on the map of the round: filled dots are its picks, rings those of the round.")
    for place, one in enumerate(compared.strategies):
        st.html(_thumbnails(row.project_id, one, one.shared if place else frozenset()))


def comparison_table(found: PicksComparison) -> str:
    """An HTML table of the overlap, predicted classes and distances of each strategy."""
    lines = []
    for place, one in enumerate(found.strategies):
        shared = "the round itself" if place == 0 else f"{len(one.shared)} of {len(one.item_ids)}"
        cells = (one.title, shared, _classes(one, found.n_classes), _number(one.to_nearest), _number(one.apart))
        lines.append("<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th scope='col'>{name}</th>" for name in COLUMNS)
    return (
        f'<div class="winnow-table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _classes(one: StrategyPicks, n_classes: int) -> str:
    if not one.predicted:
        return "no model yet"
    most = ", ".join(f"{name} ({n})" for name, n in list(one.predicted.items())[:SHOWN_CLASSES])
    rest = f" and {len(one.predicted) - SHOWN_CLASSES:,} more" if len(one.predicted) > SHOWN_CLASSES else ""
    return f"{len(one.predicted)} of {n_classes}: {most}{rest}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _thumbnails(project_id: int, one: StrategyPicks, marked: frozenset[int]) -> str:
    """The first picks in order as thumbnails. Picks in `marked`, which the round has too, have a border. Names are not
    shown."""
    items = {item.id: item for item in Pool(resources.store(), project_id).items_by_id(one.item_ids[:SHOWN_PICKS])}
    parts = []
    for order, item_id in enumerate(one.item_ids[:SHOWN_PICKS], 1):
        if item_id in items:
            shared = item_id in marked
            words = f"Pick {order}" + (", also picked in the round" if shared else "")
            kind = ' class="winnow-shared"' if shared else ""
            source = media_path(items[item_id], "thumb.png")
            parts.append(f'<li{kind}><img loading="lazy" alt="{words}" title="{words}" src="{source}"></li>')
    more = len(one.item_ids) - SHOWN_PICKS
    rest = f'<li class="winnow-muted">and {more:,} more</li>' if more > 0 else ""
    return (
        f'<h3 class="winnow-small-heading">{markup(one.title)}</h3><ol class="winnow-picks">{"".join(parts)}{rest}</ol>'
    )
