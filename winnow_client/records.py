"""The records that the client returns, with the fields that the API documents.

Unknown fields are ignored, so that a client works with a newer server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in known})


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    id: int
    name: str
    kind: str
    guidelines: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    annotator_id: int
    name: str
    role: str  # viewer | annotator | editor | owner


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelClass:
    id: int
    name: str
    key: str | None
    color: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    id: int
    name: str
    sha256: str
    media_type: str
    seconds: float | None
    held_out: bool
    class_id: int | None
    label: str | None
    n_labels: int
    skipped: bool
    flagged: bool
    waiting: bool
    recording_sha256: str | None = None  # this field and the next two are set for windows only
    first_frame: int | None = None
    last_frame: int | None = None
    group_name: str = ""
    shown_name: str = ""  # the name to show to annotators; the number of the item if the name contains a class


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    class_id: int
    name: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedItem:
    item: Item
    predictions: tuple[Prediction, ...]  # most probable first; empty if the project hides suggestions


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    uuid: str
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    id: int
    number: int
    status: str  # requested | running | finished | failed | cancelled
    strategy: str
    error: str
    metrics: Mapping[str, Any]

    @property
    def ended(self) -> bool:
        return self.status not in ("requested", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    id: str
    title: str
    status: str  # running | finished | failed | cancelled | lost
    error: str
    result: Mapping[str, Any] | None
