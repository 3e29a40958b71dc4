"""Which label events are undone: those whose uuid an `undo` event names. Every other event counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import aliased

from storage.database.schema import LabelEvent


class UndoableEvent(Protocol):
    @property
    def uuid(self) -> str: ...

    @property
    def undoes(self) -> str | None: ...


Event = TypeVar("Event", bound=UndoableEvent)


def undone_uuids(events: Iterable[UndoableEvent]) -> set[str]:
    """The uuids that the undo events among `events` name."""
    return {event.undoes for event in events if event.undoes is not None}


def without_undone(events: Iterable[Event]) -> list[Event]:
    """`events` without the undone ones, in the same order. The undo events themselves must be among them."""
    events = list(events)
    undone = undone_uuids(events)
    return [event for event in events if event.uuid not in undone]


def undoes_event(undo: type[LabelEvent]) -> ColumnElement[bool]:
    """The same rule as a condition: the event `undo`, an alias of `LabelEvent`, undoes the event `LabelEvent`."""
    return undo.undoes == LabelEvent.uuid


def is_undone() -> ColumnElement[bool]:
    """The same rule as a condition on `LabelEvent`: an event exists that undoes it."""
    undo = aliased(LabelEvent)
    return select(undo.sequence).where(undoes_event(undo)).exists()
