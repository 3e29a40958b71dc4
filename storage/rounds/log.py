"""The log of rounds: requests, progress, results, failures and cancellations.

A project has at most one unfinished round; a further request returns that one. The arrays of a finished round are
artifacts: the files are written first, then the rows that name them and the picks in one transaction. A crash leaves an
unfinished round, never a partial result.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, func, insert, or_, select, update

from core.config import RoundConfig, from_json, to_json
from core.errors import Conflict, InvalidInput, NotFound
from core.types import Progress, Selection
from storage.database.schema import Artifact, ItemState, Pick, Round, RoundProgress
from storage.database.store import Store, now
from storage.labeling import projections, queue, snapshots
from storage.labeling.item_rows import PickRow, pick_query
from storage.projects import projects, roles
from storage.rounds.artifacts import ArtifactRef, ArtifactUnreadable

UNFINISHED = ("requested", "running")
START = "start"  # the stage of the progress record that a worker writes when it starts or takes over a round
FINISHED = "finished"  # the note of the progress record that says a stage is over


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    id: int
    project_id: int
    number: int
    status: str  # requested | running | finished | failed | cancelled
    config: RoundConfig
    strategy: str
    constraint: dict[str, Any]
    label_sequence: int
    class_event: int
    last_item_id: int
    n_labeled: int
    replay_of: int | None
    requested_by: int | None
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    stage: str
    error: str
    log: str
    metrics: dict[str, Any]
    notes: list[Any]
    workflow_id: str | None

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    stage: str
    done: int
    total: int
    note: str
    metrics: dict[str, Any]
    at: datetime


def unfinished_rounds(store: Store) -> list[tuple[int, int]]:
    """(project id, round id) of all requested and running rounds, oldest first."""
    query = select(Round.project_id, Round.id).where(Round.status.in_(UNFINISHED)).order_by(Round.id)
    with store.read() as connection:
        return [(row.project_id, row.id) for row in connection.execute(query)]


def is_cancelled(store: Store, round_id: int) -> bool:
    """Whether cancellation was requested, or the round no longer exists."""
    query = select(Round.cancel_requested, Round.status).where(Round.id == round_id)
    with store.read() as connection:
        row = connection.execute(query).one_or_none()
    return row is None or bool(row.cancel_requested) or row.status == "cancelled"


def project_of(store: Store, round_id: int) -> int:
    with store.read() as connection:
        return int(connection.execute(select(Round.project_id).where(Round.id == round_id)).scalar_one())


class RoundLog:
    def __init__(self, store: Store, project_id: int) -> None:
        roles.check(store, project_id, "read")
        self.store = store
        self.project_id = project_id

    def request(
        self,
        config: RoundConfig,
        *,
        by: int | None = None,
        constraint: Mapping[str, Any] | None = None,
        replay_of: int | None = None,
    ) -> RoundRow:
        """A new round that uses the labels given so far, or the unfinished round of the project if there is one."""
        with self.store.write() as connection:
            projects.touch(connection, self.project_id)
            unfinished = self._rows(connection, self._query().where(Round.status.in_(UNFINISHED)))
            if unfinished:
                return unfinished[0]
            moment = snapshots.present(connection, self.project_id)
            source = self._one(connection, replay_of) if replay_of is not None else None
            values = {
                "project_id": self.project_id,
                "number": self._next_number(connection),
                "status": "requested",
                "config": to_json(config),
                "strategy": config.selection.strategy,
                "constraint": dict(constraint or {}),
                "label_sequence": source.label_sequence if source else moment.label_sequence,
                "class_event": source.class_event if source else moment.class_event,
                "last_item_id": source.last_item_id if source else moment.last_item_id,
                "n_labeled": source.n_labeled if source else _n_labeled(connection, self.project_id),
                "replay_of": replay_of,
                "requested_by": by,
                "requested_at": now(),
                "metrics": {},
                "notes": [],
            }
            round_id = connection.execute(insert(Round).values(values).returning(Round.id)).scalar_one()
            return self._one(connection, round_id)

    def start(self, round_id: int, workflow_id: str | None = None) -> RoundRow:
        """Mark the round as running. When another worker takes over, the first starting time is kept."""
        with self.store.write() as connection:
            row = self._locked(connection, round_id)
            self._refuse_ended(row)
            values: dict[str, Any] = {"status": "running", "started_at": row.started_at or now()}
            if workflow_id is not None:
                values["workflow_id"] = workflow_id
            self._set(connection, round_id, **values)
            return self._one(connection, round_id)

    def progress(self, round_id: int, progress: Progress) -> bool:
        """Store one progress record; returns whether cancellation was requested. Callers limit the rate."""
        with self.store.write() as connection:
            row = self._one(connection, round_id)
            if row.unfinished:
                values = dataclasses.asdict(progress) | {"metrics": finite(dict(progress.metrics))[0]}
                connection.execute(insert(RoundProgress).values(round_id=round_id, at=now(), **values))
                self._set(connection, round_id, stage=progress.stage)
            return row.cancel_requested

    def finish(
        self,
        round_id: int,
        *,
        arrays: Mapping[str, NDArray[Any] | ArtifactRef],
        selection: Selection,
        metrics: Mapping[str, Any],
        notes: Sequence[str] = (),
    ) -> RoundRow:
        """Store arrays (or files stored before), picks, metrics and the new queue in one transaction.

        A round that is already finished is not changed.
        """
        folder = self.store.artifacts
        refs = {kind: one if isinstance(one, ArtifactRef) else folder.put_array(one) for kind, one in arrays.items()}
        clean, bad = finite(dict(metrics))
        more = [f"{name} was not a number and is left out." for name in bad]
        with self.store.write() as connection:
            row = self._locked(connection, round_id)
            if row.status == "finished":
                return row
            self._refuse_ended(row)
            for kind, ref in refs.items():
                self._add_artifact(connection, round_id, kind, ref)
            picks = _pick_rows(round_id, selection, row.label_sequence)
            if picks:
                connection.execute(insert(Pick), picks)
                looks = [pick["item_id"] for pick in picks if pick["look_after"] is not None]
                projections.refresh_states(connection, self.project_id, looks)
                queue.put_first(connection, self.project_id, [pick["item_id"] for pick in picks])
            every = list(dict.fromkeys([*selection.notes, *notes, *more]))
            self._set(connection, round_id, status="finished", finished_at=now(), metrics=clean, notes=every, stage="")
            return self._one(connection, round_id)

    def fail(self, round_id: int, error: str, log: str = "") -> RoundRow:
        """End the round as failed, with one sentence and the full log."""
        return self._end(round_id, "failed", error=clean_text(error), log=clean_text(log))

    def cancel(self, round_id: int) -> RoundRow:
        """Request cancellation of a running round; a round that has not started ends immediately."""
        with self.store.write() as connection:
            row = self._locked(connection, round_id)
            roles.check_in(connection, self.project_id, "edit")
            if row.status == "requested":
                self._set(connection, round_id, cancel_requested=True, status="cancelled", finished_at=now())
            elif row.status == "running":
                self._set(connection, round_id, cancel_requested=True)
            return self._one(connection, round_id)

    def mark_cancelled(self, round_id: int) -> RoundRow:
        return self._end(round_id, "cancelled")

    def set_hindsight(self, round_id: int, position: int, hindsight: Mapping[str, Any]) -> None:
        """Store what a later round measured about a pick."""
        which = (Pick.round_id == round_id, Pick.position == position)
        with self.store.write() as connection:
            self._locked(connection, round_id)
            connection.execute(update(Pick).where(*which).values(hindsight=finite(dict(hindsight))[0]))

    def get(self, round_id: int) -> RoundRow:
        with self.store.read() as connection:
            return self._one(connection, round_id)

    def latest(self, status: str | None = None) -> RoundRow | None:
        query = self._query() if status is None else self._query().where(Round.status == status)
        with self.store.read() as connection:
            return next(iter(self._rows(connection, query.limit(1))), None)

    def list(self) -> list[RoundRow]:
        """The rounds of the project, newest first."""
        with self.store.read() as connection:
            return self._rows(connection, self._query())

    def picks(self, round_id: int) -> Sequence[PickRow]:
        query = pick_query().where(Pick.round_id == round_id, Round.project_id == self.project_id)
        with self.store.read() as connection:
            return [PickRow(**row._asdict()) for row in connection.execute(query.order_by(Pick.position))]

    def progress_of(self, round_id: int, limit: int = 1_000) -> Sequence[ProgressRow]:
        """The newest `limit` progress records and all that mark the start or end of a stage, oldest first."""
        columns = [getattr(RoundProgress, name) for name in ProgressRow.__dataclass_fields__]
        own, number = RoundProgress.round_id == round_id, RoundProgress.id
        first = select(number).where(own).order_by(number.desc()).offset(limit - 1).limit(1).scalar_subquery()
        is_mark = or_(RoundProgress.note == FINISHED, RoundProgress.stage == START)
        query = select(*columns).where(own, or_(number >= func.coalesce(first, 0), is_mark)).order_by(number)
        with self.store.read() as connection:
            return [ProgressRow(**row._asdict()) for row in connection.execute(query)]

    def artifact(self, round_id: int, kind: str) -> ArtifactRef:
        query = select(Artifact.__table__).where(Artifact.round_id == round_id, Artifact.kind == kind)
        with self.store.read() as connection:
            number = self._one(connection, round_id).number
            row = connection.execute(query.order_by(Artifact.id.desc()).limit(1)).one_or_none()
        if row is None:
            raise NotFound(f"Round {number} has stored no {kind}.")
        return ArtifactRef(row.sha256, row.suffix, row.n_bytes, tuple(row.shape), row.dtype)

    def arrays(self, round_id: int, kind: str) -> NDArray[Any]:
        """One array of a finished round, memory-mapped."""
        ref = self.artifact(round_id, kind)
        with self._naming(round_id, kind):
            return self.store.artifacts.open_array(ref)

    def file(self, round_id: int, kind: str) -> Path:
        """One file of a finished round, such as its model."""
        ref = self.artifact(round_id, kind)
        with self._naming(round_id, kind):
            return self.store.artifacts.path(ref)

    @contextlib.contextmanager
    def _naming(self, round_id: int, kind: str) -> Iterator[None]:
        """Add to an unreadable file which round it belongs to and what to do."""
        try:
            yield
        except ArtifactUnreadable as problem:
            raise ArtifactUnreadable(
                f"The {kind.replace('_', ' ')} of round {self.get(round_id).number} cannot be read. {problem} Copy the "
                "artifacts folder back from a backup, or start a new round: it does not need this file."
            ) from problem

    def _end(self, round_id: int, status: str, **values: Any) -> RoundRow:
        with self.store.write() as connection:
            row = self._locked(connection, round_id)
            if row.unfinished:
                self._set(connection, round_id, status=status, finished_at=now(), **values)
            return self._one(connection, round_id)

    def _locked(self, connection: Connection, round_id: int) -> RoundRow:
        projects.lock(connection, self.project_id)
        return self._one(connection, round_id)

    def _refuse_ended(self, row: RoundRow) -> None:
        if not row.unfinished:
            raise Conflict(f"Round {row.number} is already {row.status}; request a new one.")

    def _query(self) -> Select[*tuple[Any, ...]]:
        return select(Round.__table__).where(Round.project_id == self.project_id).order_by(Round.number.desc())

    def _rows(self, connection: Connection, query: Select[*tuple[Any, ...]]) -> builtins.list[RoundRow]:
        return [RoundRow(**(row._asdict() | {"config": _config(row.config)})) for row in connection.execute(query)]

    def _one(self, connection: Connection, round_id: int) -> RoundRow:
        rows = self._rows(connection, self._query().where(Round.id == round_id))
        if not rows:
            raise NotFound(f"There is no round {round_id} in this project.")
        return rows[0]

    def _next_number(self, connection: Connection) -> int:
        newest = select(func.coalesce(func.max(Round.number), 0)).where(Round.project_id == self.project_id)
        return int(connection.execute(newest).scalar_one()) + 1

    def _set(self, connection: Connection, round_id: int, **values: Any) -> None:
        connection.execute(update(Round).where(Round.id == round_id).values(**values))

    def _add_artifact(self, connection: Connection, round_id: int, kind: str, ref: ArtifactRef) -> None:
        values = dataclasses.asdict(ref) | {"shape": list(ref.shape), "kind": kind, "created_at": now()}
        connection.execute(insert(Artifact).values(project_id=self.project_id, round_id=round_id, **values))


@lru_cache(maxsize=256)
def _config(text: str) -> RoundConfig:
    """The settings of a round; they are frozen, and every request of a screen reads those of the newest rounds."""
    return from_json(RoundConfig, text)


def _pick_rows(round_id: int, selection: Selection, label_sequence: int) -> list[dict[str, Any]]:
    """One row for each pick, with its reason if the strategy gave one. A second look concerns a label up to
    `label_sequence`: an item that was labeled after that does not wait again."""
    reasons = [finite(dataclasses.asdict(reason))[0] for reason in selection.reasons] or [{}] * len(selection.item_ids)
    scores = np.asarray(selection.scores, dtype=np.float64)
    if len(scores) != len(selection.item_ids) or len(reasons) != len(selection.item_ids):
        raise InvalidInput(
            f"{len(selection.item_ids)} picks came with {len(scores)} scores and {len(reasons)} reasons."
        )
    if not np.all(np.isfinite(scores)):
        raise InvalidInput(f"{int(np.sum(~np.isfinite(scores)))} pick scores are not numbers; nothing was stored.")
    return [
        {
            "round_id": round_id,
            "position": position,
            "item_id": int(item_id),
            "score": float(score),
            "reason": reason,
            "hindsight": {},
            "look_after": label_sequence if reason.get("second_look") else None,
        }
        for position, (item_id, score, reason) in enumerate(zip(selection.item_ids, scores, reasons, strict=True), 1)
    ]


def _n_labeled(connection: Connection, project_id: int) -> int:
    query = select(func.count()).where(ItemState.project_id == project_id, ItemState.class_id.is_not(None))
    return int(connection.execute(query).scalar_one())


def clean_text(text: str) -> str:
    """The text of a foreign message with characters that cannot be stored escaped."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def finite(value: Any, name: str = "") -> tuple[Any, list[str]]:
    """`value` as plain JSON values, numbers that are not finite as None, and the names of those."""
    if isinstance(value, Mapping):
        pairs = {str(key): finite(one, f"{name}.{key}" if name else str(key)) for key, one in value.items()}
        return {key: one for key, (one, _) in pairs.items()}, [bad for _, more in pairs.values() for bad in more]
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        parts = [finite(one, name) for one in value]
        return [one for one, _ in parts], list(dict.fromkeys(bad for _, more in parts for bad in more))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None, [name]
    return value, []
