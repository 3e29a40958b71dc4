"""The provenance of an export: the newest finished round with its settings and model, a digest of the rows, and
suggestions that repeat a label."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.orm import aliased

from core.errors import NotFound
from storage.database.schema import LabelEvent, Round
from storage.database.store import Store
from storage.rounds.log import RoundLog
from storage.rounds.names import round_names

ROW_COLUMNS = ("sha256", "split", "source", "label")  # that the digest of rows covers


class RowDigest:
    """SHA-256 over the identity and the label of each row, in order; the same for every table format."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, values: Mapping[str, Any]) -> None:
        line = json.dumps([values.get(name) or "" for name in ROW_COLUMNS], ensure_ascii=True)
        self._digest.update(f"{line}\n".encode())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def round_provenance(store: Store, project_id: int) -> dict[str, Any] | None:
    """Number, name, strategy, seed, settings and the hash of the model; None before the first finished round. `encoder`
    is None for a network that was trained from scratch."""
    log = RoundLog(store, project_id)
    row = log.latest("finished")
    if row is None:
        return None
    try:
        model = log.artifact(row.id, "model").sha256
    except NotFound:
        model = None
    settings = row.metrics.get("settings") or dataclasses.asdict(row.config)
    return {
        "number": row.number,
        "name": round_names(store, project_id).get(row.id, ""),
        "strategy": row.strategy,
        "seed": row.config.seed,
        "settings": settings,
        "label_sequence": row.label_sequence,
        "model_sha256": model,
        "encoder": _encoder(settings),
    }


def _encoder(settings: Mapping[str, Any]) -> dict[str, str] | None:
    """Name and identity (the hash of its files) of the encoder that these settings of a round name."""
    about = settings.get("encoder") or {}
    return {"name": about["name"], "identity": about["identity"]} if about.get("identity") else None


def repeated_labels(connection: Connection, sequences: Sequence[int]) -> Sequence[int]:
    """The sequences of those events whose suggestion was a label of the item, stored with a confidence of 100 %.

    Earlier versions showed the label of an item as a suggestion if the round had used that label.
    """
    earlier, used_by = aliased(LabelEvent), aliased(Round)
    was_used = (
        select(earlier.sequence)
        .join(used_by, used_by.project_id == earlier.project_id)
        .where(
            earlier.item_id == LabelEvent.item_id,
            earlier.kind.in_(("label", "decide")),
            earlier.sequence < LabelEvent.sequence,
            used_by.status == "finished",
            used_by.label_sequence >= earlier.sequence,
            used_by.finished_at <= LabelEvent.stored_at,
        )
        .exists()
    )
    query = select(LabelEvent.sequence).where(LabelEvent.sequence.in_(sequences), was_used)
    return connection.execute(query).scalars().all()
