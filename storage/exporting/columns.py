"""The rows of an export as columns, one chunk at a time: the same values as `ExportRows`, without a dictionary per row.

Columnar table formats take the columns as they are. Only unusual rows (picks, labels of several annotators, further
names) are processed one by one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import compress
from typing import Any

from storage.exporting.reasons import PICK_COLUMNS
from storage.exporting.rows import COLUMNS, ITEM_COLUMNS, Chunk, ExportRows, fields_of
from storage.exporting.votes import Votes, votes_of

EVENT_COLUMNS = ("annotator", "at", "kind", "sequence", "suggestion")  # as the query names them
Column = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """`values` has a sequence of `n` values for each column, or None for a column without values. The columns of votes
    have few distinct values: these are in `votes`, and `vote_of` (n,) is the position of each row among them."""

    n: int
    values: dict[str, Column | None]
    votes: list[dict[str, Any]]
    vote_of: list[int]


@contextmanager
def without_cycle_collection() -> Iterator[None]:
    """Pause cyclic garbage collection. Rows have no reference cycles, and it took a third of the time of an export."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def columns_of(rows: ExportRows) -> Iterator[Columns]:
    """The columns of all rows, chunk by chunk in order; chunks without rows are left out."""
    for chunk in rows.chunks():
        found = _columns(rows, chunk)
        if found is not None:
            yield found


def _columns(rows: ExportRows, chunk: Chunk) -> Columns | None:
    pseudo, kept, fields = chunk.pseudo_labels, chunk.rows, chunk.fields
    if rows.pseudo_labels is not None and not rows.options.unlabeled:  # otherwise every item of a chunk has a row
        kept, fields = _with_label(chunk)
    if not kept:
        return None
    kinds = _sources(rows, fields, pseudo)
    labels = _labels(rows, fields, pseudo, kinds)
    votes = _votes(chunk, fields["id"], kinds, labels)
    if chunk.others:
        distinct_votes = {id(one): one for one in votes}
        left_out = {key for key, one in distinct_votes.items() if not one.kept(rows.options.contested)}
        if left_out:
            fits = [id(one) not in left_out for one in votes]
            rows.n_left_out += fits.count(False)
            kept, kinds, labels, votes = (list(compress(ones, fits)) for ones in (kept, kinds, labels, votes))
            if not kept:
                return None
            fields = fields_of(kept)
    given = [kind not in ("truth", "pseudo", "none") for kind in kinds]
    values: dict[str, Column | None] = dict.fromkeys(COLUMNS)
    values |= {name: fields[name] for name in ITEM_COLUMNS}
    values |= {"path": [""] * len(kept), "label": labels, "source": kinds}
    values["split"] = [
        name or ("test" if held_out else "train")
        for name, held_out in zip(fields["split_name"], fields["held_out"], strict=True)
    ]
    values |= _event_values(rows, fields, given, labels)
    values["flagged"] = fields["flagged"]
    if chunk.notes:
        pairs = zip(values["note"] or (), fields["id"], strict=True)
        values["note"] = [own or chunk.notes.get(item_id) for own, item_id in pairs]
    _set_pseudo(rows, pseudo, values, fields["id"], kinds)
    values |= _pick_values(rows, kept, fields, given, labels)
    values["other_names"] = [chunk.names.get(one, []) for one in fields["id"]]
    values["other_labels"] = [chunk.others.get(one, []) for one in fields["id"]]
    distinct: dict[int, int] = {}
    vote_of = [distinct.setdefault(id(one), len(distinct)) for one in votes]
    different = {id(one): one for one in votes}
    return Columns(len(kept), values, [different[one].columns() for one in distinct], vote_of)


def _with_label(chunk: Chunk) -> tuple[Sequence[Any], dict[str, Column]]:
    """The rows of a chunk that have a label or a pseudo-label, and their fields."""
    pseudo = chunk.pseudo_labels
    values = zip(*(chunk.fields[name] for name in ("class_id", "held_out", "id")), strict=True)
    fits = [label is not None or held_out or item_id in pseudo for label, held_out, item_id in values]
    if all(fits):
        return chunk.rows, chunk.fields
    kept = list(compress(chunk.rows, fits))
    return kept, fields_of(kept) if kept else {}


def _sources(rows: ExportRows, fields: dict[str, Column], pseudo: dict[int, tuple[str, float]]) -> list[str]:
    names = ("held_out", "class_id", "kind", "truth_class_id", "id")
    known, values = rows.options.held_out, zip(*(fields[name] for name in names), strict=True)
    return [
        ("truth" if known and truth is not None else "none")
        if held_out
        else kind
        if label is not None
        else "pseudo"
        if item_id in pseudo
        else "none"
        for held_out, label, kind, truth, item_id in values
    ]


def _labels(
    rows: ExportRows, fields: dict[str, Column], pseudo: dict[int, tuple[str, float]], kinds: list[str]
) -> list[str | None]:
    names = rows.counts_as
    values = zip(kinds, *(fields[name] for name in ("label_class", "truth_class_id", "id")), strict=True)
    return [
        names[truth] if kind == "truth" else pseudo[item][0] if kind == "pseudo" else names.get(given)
        for kind, given, truth, item in values
    ]


def _votes(chunk: Chunk, item_ids: Column, kinds: list[str], labels: list[str | None]) -> list[Votes]:
    """The votes of each row; rows without other labels share one object for each source and label."""
    alone = cache(lambda kind, label: votes_of(kind, label, ()))
    if not chunk.others:
        return [alone(kind, label) for kind, label in zip(kinds, labels, strict=True)]
    return [
        votes_of(kind, label, chunk.others[item_id]) if item_id in chunk.others else alone(kind, label)
        for item_id, kind, label in zip(item_ids, kinds, labels, strict=True)
    ]


def _event_values(
    rows: ExportRows, fields: dict[str, Column], given: list[bool], labels: list[str | None]
) -> dict[str, Column]:
    """The columns of the counting label, None where `given` is false."""

    def of(values: Column) -> Column:
        return values if all(given) else [v if g else None for v, g in zip(values, given, strict=True)]

    certain = fields["suggested_confidence"]
    if rows.repeated:
        pairs = zip(certain, fields["sequence"], strict=True)
        certain = [None if sequence in rows.repeated else value for value, sequence in pairs]
    names = [rows.given.get(one) for one in fields["class_id"]]
    return {name: of(fields[name]) for name in EVENT_COLUMNS} | {
        "event": of(fields["uuid"]),
        "seconds": of(fields["seconds_to_decide"]),
        "suggested_label": of([rows.counts_as.get(one) for one in fields["suggested_class_id"]]),
        "suggested_confidence": of(certain),
        "note": of([note or None for note in fields["note"]]),
        "label_given": of([a if a != b else None for a, b in zip(names, labels, strict=True)]),
        "round": of(fields["number"]),
        "strategy": of(fields["strategy"]),
    }


def _set_pseudo(
    rows: ExportRows,
    pseudo: dict[int, tuple[str, float]],
    values: dict[str, Column | None],
    item_ids: Column,
    kinds: list[str],
) -> None:
    """Fill in the confidence and the round of pseudo-labels."""
    if not pseudo or rows.pseudo_labels is None:
        return
    number = rows.pseudo_labels.number
    values["confidence"] = [
        pseudo[one][1] if kind == "pseudo" else None for one, kind in zip(item_ids, kinds, strict=True)
    ]
    known = values["round"] or [None] * len(kinds)
    values["round"] = [number if kind == "pseudo" else one for one, kind in zip(known, kinds, strict=True)]


def _pick_values(
    rows: ExportRows, kept: Sequence[Any], fields: dict[str, Column], given: list[bool], labels: list[str | None]
) -> dict[str, Column | None]:
    """PICK_COLUMNS, empty if no row was picked."""
    picked = [k for k, position in enumerate(fields["position"]) if position is not None and given[k]]
    if not picked:
        return {}
    values: dict[str, Any] = {name: [None] * len(kept) for name in PICK_COLUMNS}
    for k in picked:
        for name, value in rows.picks.of(kept[k], labels[k]).items():
            values[name][k] = value
    return values
