"""Finding rounds that have a model."""

from __future__ import annotations

from core.errors import InvalidInput, NotFound
from storage.database.store import Store
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.names import find_round


def find_model_round(store: Store, project_id: int, wanted: str | None = None) -> RoundRow:
    """The round of this number or name, or the newest round with a model if None. Raises if it has no model."""
    log = RoundLog(store, project_id)
    row = _newest_with_model(log) if wanted is None else find_round(store, project_id, wanted)
    if row.status != "finished":
        raise InvalidInput(f"Round {row.number} is {row.status}; only a finished round has a model.")
    if not has_model(log, row):
        raise InvalidInput(
            f"Round {row.number} trained no model: there was nothing to learn from yet. Choose a later round, or label "
            "items of at least two classes and run a round."
        )
    return row


def has_model(log: RoundLog, row: RoundRow) -> bool:
    try:
        log.artifact(row.id, "model")
    except NotFound:
        return False
    return row.status == "finished"


def _newest_with_model(log: RoundLog) -> RoundRow:
    for row in log.list():
        if has_model(log, row):
            return row
    raise InvalidInput(
        "No finished round of this project has trained a model. Label items of at least two classes and run a round."
    )
