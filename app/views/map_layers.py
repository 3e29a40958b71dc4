"""What the map of one round shows, as arrays: where each item lies, what the model guesses, what people said.

Positions, guesses and picks are the round's own and never change; labels are those of now. The arrays hold every item
the round knew; `drawn` names the rows that are drawn: all of them up to `MOST_POINTS`, else labeled items, picks and a
stated sample of the rest. Areas are resolved here, against all items, not only those drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from app.rounds import requests as round_requests
from app.views.predictions import predictions_of
from core.errors import NotFound
from storage.database.schema import Item, ItemState, LabelEvent, Pick, Round
from storage.database.store import Store
from storage.projects import classes
from storage.projects.annotators import list_annotators
from storage.rounds.log import RoundLog, RoundRow

MOST_POINTS = 50_000
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """One row per item of the round, sorted as in the round."""

    round: RoundRow
    class_names: tuple[str, ...]  # active now
    class_ids: tuple[int, ...]
    class_colors: tuple[str, ...]  # as the project has them
    item_ids: NDArray[np.int64]
    names: tuple[str, ...]
    points: NDArray[np.float32]  # (n, 2)
    guess: NDArray[np.int64]  # position in class_names, NONE without a model
    confidence: NDArray[np.float32]
    label: NDArray[np.int64]  # position in class_names, NONE where there is none
    label_round: NDArray[np.int64]  # number of the round whose pick it was, 0: labeled without being a pick, NONE: not
    annotator: NDArray[np.int64]  # position in annotator_names
    annotator_names: tuple[str, ...]  # those whose labels count here
    held_out: NDArray[np.bool_]
    picks: NDArray[np.int64]  # rows, in order
    shadows: Mapping[str, NDArray[np.int64]]  # strategy -> rows, in order
    drawn: NDArray[np.int64]  # rows

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    def row_of(self, item_id: int) -> int | None:
        found = np.flatnonzero(self.item_ids == item_id)
        return int(found[0]) if len(found) else None


def layers(store: Store, project_id: int, round_id: int) -> Layers | None:
    """None for a round that left no map."""
    log = RoundLog(store, project_id)
    row = log.get(round_id)
    opinion = predictions_of(store, row)
    try:
        points = np.asarray(log.arrays(round_id, "map"), np.float32)
    except NotFound:
        return None
    if opinion is None or len(points) != len(opinion.item_ids):
        return None
    known = classes.list_classes(store, project_id, include_inactive=True)
    active = [one for one in known if one.active]
    shares = opinion.shares(known)
    has_model = bool(row.metrics.get("has_model")) and shares.shape[1] > 0
    n = len(points)
    said = _said(store, project_id, opinion.item_ids, {one.id: one.effective_id or one.id for one in known})
    position = {one.id: place for place, one in enumerate(active)}
    row_at = {int(item): place for place, item in enumerate(opinion.item_ids)}
    picks = _rows([pick.item_id for pick in log.picks(round_id)], row_at)
    found = round_requests.comparison(store, round_id)
    shadows = {name: _rows(ids, row_at) for name, ids in (found.picks.items() if found else ())}
    label = np.array([position.get(one, NONE) for one in said.classes], np.int64)
    return Layers(
        round=row,
        class_names=tuple(one.name for one in active),
        class_ids=tuple(one.id for one in active),
        class_colors=tuple(one.color or classes.color_of(one.position) for one in active),
        item_ids=opinion.item_ids,
        names=said.names,
        points=points,
        guess=shares.argmax(1) if has_model else np.full(n, NONE, np.int64),
        confidence=shares.max(1) if has_model else np.zeros(n, np.float32),
        label=label,
        label_round=np.where(label == NONE, NONE, said.rounds),
        annotator=said.annotators,
        annotator_names=said.annotator_names,
        held_out=said.held_out,
        picks=picks,
        shadows=shadows,
        drawn=drawn_rows(label, picks, n),
    )


def drawn_rows(label: NDArray[np.int64], picks: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """All rows up to `MOST_POINTS`; beyond, every labeled row and pick and an even sample of the others."""
    if n <= MOST_POINTS:
        return np.arange(n)
    keep = np.union1d(np.flatnonzero(label != NONE)[: MOST_POINTS // 2], picks)
    rest = np.setdiff1d(np.arange(n), keep, assume_unique=True)
    sample = np.random.default_rng(0).choice(rest, MOST_POINTS - len(keep), replace=False)
    return np.union1d(keep, sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    names: tuple[str, ...]
    classes: list[int]  # class id that counts, NONE without a label
    rounds: NDArray[np.int64]
    annotators: NDArray[np.int64]
    annotator_names: tuple[str, ...]
    held_out: NDArray[np.bool_]


def _said(store: Store, project_id: int, item_ids: NDArray[np.int64], counts_as: Mapping[int, int]) -> _Said:
    """What the store says of the items now, in the order of `item_ids`."""
    place = {int(item): row for row, item in enumerate(item_ids)}
    names, kinds = [""] * len(item_ids), [NONE] * len(item_ids)
    by, held = np.full(len(item_ids), NONE, np.int64), np.zeros(len(item_ids), np.bool_)
    items = (
        select(Item.id, Item.name, Item.held_out, ItemState.class_id, LabelEvent.annotator_id)
        .join_from(Item, ItemState, ItemState.item_id == Item.id)
        .outerjoin(LabelEvent, LabelEvent.sequence == ItemState.sequence)
        .where(Item.project_id == project_id)
    )
    picked = (
        select(Pick.item_id, Round.number)
        .join(Round, Round.id == Pick.round_id)
        .where(Round.project_id == project_id, Round.replay_of.is_(None))
        .order_by(Round.number.desc())  # the first round that picked an item is written last
    )
    numbers = np.zeros(len(item_ids), np.int64)
    with store.read() as connection:
        for row in connection.execute(items):
            at = place.get(row.id)
            if at is not None:
                names[at], held[at] = row.name, row.held_out
                if row.class_id is not None:
                    kinds[at] = counts_as.get(row.class_id, row.class_id)
                    by[at] = NONE if row.annotator_id is None else row.annotator_id
        for item_id, number in connection.execute(picked):
            if item_id in place:
                numbers[place[item_id]] = number
    here = [one for one in list_annotators(store) if one.id in set(by.tolist())]
    person = {one.id: at for at, one in enumerate(here)}
    return _Said(
        names=tuple(names),
        classes=kinds,
        rounds=numbers,
        annotators=np.array([person.get(one, NONE) for one in by.tolist()], np.int64),
        annotator_names=tuple(one.name for one in here),
        held_out=held,
    )


def _rows(item_ids: Sequence[int], row_at: Mapping[int, int]) -> NDArray[np.int64]:
    return np.array([row_at[int(item)] for item in item_ids if int(item) in row_at], np.int64)


def inside(points: NDArray[np.float32], x: Sequence[float], y: Sequence[float]) -> NDArray[np.bool_]:
    """(n,) which points lie in the polygon, by the even-odd rule; the border may go either way."""
    px, py = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    within = np.zeros(len(points), np.bool_)
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    for x1, y1, x2, y2 in zip(xs, ys, np.roll(xs, -1), np.roll(ys, -1), strict=True):
        crosses = (y1 > py) != (y2 > py)
        if crosses.any():
            at = x1 + (py[crosses] - y1) * (x2 - x1) / (y2 - y1)
            within[crosses] ^= px[crosses] < at
    return within
