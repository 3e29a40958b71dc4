"""What other strategies would have selected in a round: requested on a screen, computed by a worker, one row each."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, insert, select, update

from core.errors import InvalidInput
from storage.database.schema import Setting
from storage.database.store import Store
from storage.rounds.log import finite

PREFIX = "comparison/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`picks` maps a strategy to its item ids in order; `overlap` to the number it shares with the real batch."""

    round_id: int
    ticket: str  # identifies this request; a new request has a new one
    strategies: tuple[str, ...]
    status: str  # requested | finished | failed
    picks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    overlap: Mapping[str, int] = field(default_factory=dict)
    error: str = ""


def request(store: Store, round_id: int, strategies: Sequence[str]) -> Comparison:
    """Request a comparison. An earlier one with the same strategies is returned unless it failed, others replaced."""
    if not strategies:
        raise InvalidInput("Name at least one strategy to compare with.")
    known = get(store, round_id)
    if known is not None and known.strategies == tuple(strategies) and known.status != "failed":
        return known
    requested = Comparison(
        round_id=round_id, ticket=uuid.uuid4().hex[:12], strategies=tuple(strategies), status="requested"
    )
    with store.write() as connection:
        connection.execute(delete(Setting).where(Setting.key == f"{PREFIX}{round_id}"))
        connection.execute(insert(Setting).values(key=f"{PREFIX}{round_id}", value=dataclasses.asdict(requested)))
    return requested


def get(store: Store, round_id: int) -> Comparison | None:
    with store.read() as connection:
        row = connection.execute(select(Setting.value).where(Setting.key == f"{PREFIX}{round_id}")).one_or_none()
    return _comparison(row.value) if row is not None else None


def requested(store: Store) -> list[Comparison]:
    """All comparisons that are not computed yet."""
    with store.read() as connection:
        rows = connection.execute(select(Setting.value).where(Setting.key.startswith(PREFIX))).all()
    return [found for row in rows if (found := _comparison(row.value)).status == "requested"]


def store_result(store: Store, comparison: Comparison) -> bool:
    """Store the result if its request has not been replaced; returns whether it was stored."""
    with store.write() as connection:
        where = Setting.key == f"{PREFIX}{comparison.round_id}"
        row = connection.execute(select(Setting.value).where(where)).one_or_none()
        if row is None or row.value.get("ticket") != comparison.ticket:
            return False
        connection.execute(update(Setting).where(where).values(value=finite(dataclasses.asdict(comparison))[0]))
        return True


def failed(comparison: Comparison, error: str) -> Comparison:
    return dataclasses.replace(comparison, status="failed", error=error)


def _comparison(value: Mapping[str, Any]) -> Comparison:
    return Comparison(**{**value, "strategies": tuple(value["strategies"])})
