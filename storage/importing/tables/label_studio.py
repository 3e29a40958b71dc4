"""Exports of Label Studio as rows of a table: tasks (JSON), and one row for each annotation (JSON_MIN, CSV).

A task that came from an export of Winnow has that row under `meta.winnow`, and each annotation has the id of the label
event it was made from. Annotations that were changed or added in Label Studio are labels of the person who did so,
given after the exported ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from storage.importing.tables.finders import InvalidRow
from storage.importing.tables.rows import TableRow

ANNOTATION_COLUMNS = frozenset(("annotation_id", "annotator", "created_at", "updated_at", "lead_time", "id"))
OWN_DATA = ("sha256", "name", "annotators")  # what exports of Winnow add to the data of a task
MEDIA_KEYS = ("audio", "image", "file", "path", "url")
_MEDIA_STARTS = ("/data/", "http://", "https://", "s3://", "gs://")


def has_annotation_columns(names: Iterable[str]) -> bool:
    """Whether a table is a CSV or JSON_MIN export: one row for each annotation."""
    return set(names) >= ANNOTATION_COLUMNS


def label_column(names: Iterable[str], path_column: str) -> str:
    """The control tag's column of a CSV or JSON_MIN export; "" unless exactly one column can be it."""
    left = [name for name in names if name not in ANNOTATION_COLUMNS and name not in (*OWN_DATA, path_column)]
    return left[0] if len(left) == 1 else ""


def task_values(task: dict[str, Any]) -> dict[str, Any]:
    """One task as a row; raises `InvalidRow` for annotations that cannot be expressed as a single label."""
    annotations = [one for one in task.get("annotations") or () if isinstance(one, dict)]
    given = [label for one in annotations if (label := _annotation_values(one)) is not None]
    meta = task.get("meta")
    if isinstance(meta, dict) and isinstance(meta.get("winnow"), dict):
        return _with_changes(meta["winnow"], given)
    data = task.get("data")
    data = data if isinstance(data, dict) else {}
    address, sha256 = _address(data), data.get("sha256")
    values: dict[str, Any] = {"path": address, "other_labels": given}
    if isinstance(sha256, str) and isinstance(data.get("name"), str):
        values |= {"sha256": sha256, "name": data["name"]}
    return values


def _address(data: dict[str, Any]) -> str:
    """The media file of a task: a known key, else the first value that looks like an address or a file name."""
    texts = {key: value for key, value in data.items() if isinstance(value, str) and key not in OWN_DATA}
    known = next((texts[key] for key in MEDIA_KEYS if key in texts), None)
    if known is not None:
        return known
    return next((value for value in texts.values() if value.startswith(_MEDIA_STARTS)), next(iter(texts.values()), ""))


def _annotation_values(annotation: dict[str, Any]) -> dict[str, Any] | None:
    """A label or a skip as a row of `other_labels`; None for an annotation without a choice."""
    at = annotation.get("updated_at") or annotation.get("created_at")
    who = _person(annotation.get("updated_by") or annotation.get("completed_by"))
    identity = annotation.get("unique_id") or annotation.get("id")
    values = {"annotator": who, "at": at, "seconds": annotation.get("lead_time")}
    if identity is not None:
        values["event"] = f"label-studio {identity} {at}"
    if annotation.get("was_cancelled"):
        return values | {"label": "", "kind": "skip"}
    results = [one for one in annotation.get("result") or () if isinstance(one, dict)]
    chosen = [(one.get("id"), choice) for one in results for choice in _choices(one.get("value"))]
    if not chosen:
        return None
    if len(chosen) > 1:
        raise InvalidRow(f"An annotation has {len(chosen)} choices; an item has one label.")
    return values | {"label": chosen[0][1], "origin": chosen[0][0]}


def _choices(value: Any) -> list[str]:
    found = value.get("choices") if isinstance(value, dict) else None
    return [str(choice) for choice in found] if isinstance(found, list) else []


def _person(who: Any) -> str:
    if isinstance(who, dict):
        who = who.get("email") or who.get("id")
    text = "" if who is None else str(who).strip()
    return f"Label Studio user {text}" if text.isdigit() else text


def _with_changes(ours: dict[str, Any], given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The exported row with the changes made in Label Studio. Unchanged labels keep their events."""
    pseudo = ours.get("source") == "pseudo"
    others = [one for one in ours.get("other_labels") or () if isinstance(one, dict)]
    known = others if pseudo else [ours, *others]
    left, changed = list(known), []
    for one in given:
        same = _same(one, left)
        if same is not None:
            left = [other for other in left if other is not same]
        elif not _repeats(one, known):
            changed.append(one)
    if not changed:
        return ours
    last = max((int(one.get("sequence") or 0) for one in known), default=0)
    new = [{"sequence": last + n, **one, **_kind(one, known)} for n, one in enumerate(changed, 1)]
    values = ours | {"other_labels": [*others, *new]}
    return values | {"label": "", "source": "label"} if pseudo else values


def _kind(given: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The kind of a changed label: a decision if several people had labeled, because their votes would outnumber it."""
    several = len({one.get("annotator") for one in known}) > 1
    was_ours = not given.get("origin") or any(one.get("event") == given["origin"] for one in known)
    return {"kind": "decide"} if several and was_ours and given["label"] else {}


def _same(given: dict[str, Any], known: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The exported label that an annotation repeats: by the id of its event, else by its class."""
    origin = given.get("origin")
    by_id = next((one for one in known if origin and one.get("event") == origin), None)
    if by_id is not None:
        return by_id if by_id.get("label") == given["label"] else None
    return next((one for one in known if one.get("label") == given["label"]), None)


def _repeats(given: dict[str, Any], known: Sequence[dict[str, Any]]) -> bool:
    """Whether an annotation is a copy of one that repeats an exported label."""
    origin = given.get("origin")
    return any(origin and one.get("event") == origin and one.get("label") == given["label"] for one in known)


def joined_annotations(rows: Iterable[TableRow], column: str) -> Iterator[TableRow]:
    """Rows of a CSV or JSON_MIN export, joined by task: the first row of each task with the labels of all its rows."""
    first: TableRow | None = None
    labels: list[dict[str, Any]] = []
    for row in rows:
        if row.problem:
            yield row
            continue
        if first is not None and row.values.get("id") != first.values.get("id"):
            yield _joined(first, labels)
            first, labels = None, []
        first = first or row
        try:
            labels += _row_labels(row.values, column)
        except InvalidRow as problem:
            yield TableRow(row.number, row.values, str(problem))
            first = None if first is row else first
    if first is not None:
        yield _joined(first, labels)


def _joined(row: TableRow, labels: list[dict[str, Any]]) -> TableRow:
    kept = {name: value for name, value in row.values.items() if name not in ("annotator", "lead_time")}
    labels = sorted(labels, key=lambda one: str(one["at"]))
    return TableRow(row.number, kept | {"other_labels": labels})


def _row_labels(values: dict[str, Any], column: str) -> list[dict[str, Any]]:
    label = values.get(column)
    if isinstance(label, str) and label.startswith("{"):
        with contextlib.suppress(ValueError):
            label = json.loads(label)
    chosen = _choices(label) if isinstance(label, dict) else [label] if isinstance(label, str) and label else []
    if len(chosen) > 1:
        raise InvalidRow(f"The annotation has {len(chosen)} choices; an item has one label.")
    at = values.get("updated_at") or values.get("created_at")
    event = f"label-studio row {values.get('annotation_id')} {at}"
    who = _person(values.get("annotator"))
    return [
        {"label": one, "annotator": who, "at": at, "seconds": values.get("lead_time"), "event": event} for one in chosen
    ]
