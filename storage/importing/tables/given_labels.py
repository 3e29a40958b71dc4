"""Labels as rows of tables state them, checked and typed."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Literal

from storage.importing.sources import GivenLabel, GivenSpan, readable_name
from storage.importing.tables.columns import text_of
from storage.importing.tables.finders import InvalidRow

OWN_COLUMNS = frozenset(("source", "event", "sequence"))  # a row with these columns comes from an export of Winnow
SHARED_COLUMNS = frozenset(("annotator", "at", "note", "other_labels"))
SPAN_COLUMNS = ("recording_sha256", "first_frame", "last_frame")
HASH = re.compile(r"[0-9a-f]{64}\Z")


def given_labels(values: dict[str, Any], label: str) -> tuple[GivenLabel, ...]:
    """The row's labels in the order in which they were given; `label` is that of the row itself. A pseudo-label of an
    export is a prediction, not a label. Tables from elsewhere may use columns like `seconds` or `event` for other
    things, so only the annotator, the time and the note are read from them."""
    if not values.keys() >= OWN_COLUMNS:
        values = {name: value for name, value in values.items() if name in SHARED_COLUMNS}
    elif text_of(values.get("source")) == "pseudo":
        return ()
    others = _listed(values.get("other_labels"), "other labels", dict, "objects")
    given = [_given(values | {"label": label})] if label != "" else []
    given += [_given(other) for other in others if text_of(other.get("label")) or other.get("kind") == "skip"]
    return tuple(sorted(given, key=lambda one: one.sequence))


def other_names(values: dict[str, Any]) -> tuple[str, ...]:
    names = _listed(values.get("other_names"), "other names", str, "names")
    if any("\x00" in name for name in names):
        raise InvalidRow("One of the other names contains a NUL character.")
    return tuple(readable_name(name) for name in names)


def given_span(values: dict[str, Any], start: str, end: str) -> GivenSpan | None:
    """The part of a recording that a row names: the frames of an export, or the seconds in these columns."""
    if all(text_of(values.get(name)) != "" for name in SPAN_COLUMNS):
        first, last = (_number(values.get(name), name) for name in SPAN_COLUMNS[1:])
        return GivenSpan(int(first or 0), int(last or 0))
    if not (start and end) or text_of(values.get(start)) == text_of(values.get(end)) == "":
        return None
    begin, stop = _number(values.get(start), start), _number(values.get(end), end)
    if begin is None or stop is None or not 0 <= begin < stop < 1e9:
        raise InvalidRow(f"The part from {begin} to {stop} s is empty; the start must be at least 0 and below the end.")
    return GivenSpan(None, None, begin, stop)


def recording_hash(values: dict[str, Any]) -> str:
    """The SHA-256 of the recording that a row of an export names; "" if it names none."""
    sha256 = text_of(values.get(SPAN_COLUMNS[0])).lower()
    return sha256 if HASH.match(sha256) else ""


def _listed(value: Any, what: str, kind: type, kinds: str) -> list[Any]:
    """The list in a cell, which holds it directly (JSONL, Parquet, tasks) or as JSON (CSV)."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except ValueError as problem:
            raise InvalidRow(f"The {what} are not JSON: {problem}.") from problem
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise InvalidRow(f"The {what} are not a list of {kinds}.")
    return value


def _given(values: dict[str, Any]) -> GivenLabel:
    label, kind = text_of(values.get("label")), _kind(values)
    if "\x00" in label or len(label) > 1_000 or not (label.strip() or kind == "skip"):
        raise InvalidRow("The label is blank, longer than 1,000 characters or contains a NUL character.")
    return GivenLabel(
        label=label,
        annotator=text_of(values.get("annotator"))[:200],
        at=_time(values.get("at")),
        kind=kind,
        uuid=text_of(values.get("event")),
        sequence=int(_number(values.get("sequence"), "sequence") or 0),
        seconds=_number(values.get("seconds"), "seconds"),
        suggestion=text_of(values.get("suggestion")) or "none",
        suggested_label=text_of(values.get("suggested_label")),
        suggested_confidence=_number(values.get("suggested_confidence"), "suggested_confidence"),
        note=text_of(values.get("note")),
    )


def _kind(values: dict[str, Any]) -> Literal["label", "decide", "skip"]:
    kind = text_of(values.get("kind"))
    return "decide" if kind == "decide" else "skip" if kind == "skip" else "label"


def _number(value: Any, what: str) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidRow(f"The {what} is {str(value)[:40]!r}, not a number.") from None


def _time(value: Any) -> datetime | None:
    if value is None or value == "":
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise InvalidRow(f"The time {str(value)[:40]!r} is not an ISO 8601 time.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
