"""Requests and follows a round from the command line."""

from __future__ import annotations

import time
from collections.abc import Sequence

from app.cli.output import print_note, progress_bar, show
from app.rounds import learning_settings
from app.rounds.requests import RoundView, request_round, view
from core.types import Progress
from storage.database.store import Store
from storage.rounds.log import RoundLog, RoundRow

POLL_SECONDS = 0.5
NO_WORKER_SECONDS = 10.0  # time after which a missing worker is reported


def request(store: Store, project_id: int, settings: Sequence[str]) -> RoundRow:
    """Request the next round with the given settings. If a round waits or runs already, it keeps its settings, and a
    note is printed."""
    changes = learning_settings.parse(settings)
    newest = RoundLog(store, project_id).latest()
    row = request_round(store, project_id, changes=changes)
    if changes and newest is not None and newest.id == row.id:
        print_note(f"Round {row.number} was requested before and keeps its own settings; --set has no effect on it.")
    return row


def follow(store: Store, project_id: int, round_id: int, as_json: bool) -> int:
    """Show progress until the round ends. Returns the exit code: 0 if it finished, 1 if it failed or was cancelled."""
    asked, has_warned = time.monotonic(), False
    with progress_bar("Round") as report:
        while True:
            seen = view(store, project_id, round_id)
            assert seen is not None
            if not seen.round.unfinished:
                break
            if seen.waiting_for_worker and not has_warned and time.monotonic() - asked > NO_WORKER_SECONDS:
                print_note("No worker is running. Start one with: python -m app worker")
                has_warned = True
            report(_progress(seen))
            time.sleep(POLL_SECONDS)
    return _ended(seen.round, as_json)


def _progress(seen: RoundView) -> Progress:
    return Progress(seen.stage or "waiting", seen.done, seen.total, seen.note)


def _ended(row: RoundRow, as_json: bool) -> int:
    result = {
        "round": row.number,
        "id": row.id,
        "status": row.status,
        "strategy": row.strategy,
        "metrics": row.metrics,
        "notes": row.notes,
        "error": row.error,
    }
    if row.status == "finished":
        accuracy = row.metrics.get("accuracy") if isinstance(row.metrics, dict) else None
        words = f" Test accuracy: {accuracy:.1%}." if isinstance(accuracy, float) else ""
        with_propagation = row.metrics.get("accuracy_with_propagation") if words else None
        if isinstance(with_propagation, float):
            words += f" With label propagation: {with_propagation:.1%}."
        show(result, as_json, f"Round {row.number} has finished.{words}")
        return 0
    if as_json:
        show(result, True, "")
    print_note(row.error or f"Round {row.number} was {row.status}.")
    return 1
