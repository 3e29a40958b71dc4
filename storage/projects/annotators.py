"""Annotators: the people whose labels the store keeps, the importer, and what each did in a project."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from statistics import median

from sqlalchemy import Connection, select, update

from core.errors import Conflict, NotFound
from storage.database.schema import Annotator, LabelEvent
from storage.database.store import Store, insert_for, now
from storage.database.strings import named, storable
from storage.labeling.undo import is_undone

PROGRAM_NAMES = frozenset(
    {"import", "simulator"}
)  # whose labels come from files or hidden labels; nobody signs in as these


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorRow:
    id: int
    name: str
    subject: str | None
    created_at: datetime
    removed_at: datetime | None

    @property
    def is_person(self) -> bool:
        """Whether a person may sign in as this annotator."""
        return self.subject is not None or self.name.casefold() not in PROGRAM_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorStatistics:
    """What one annotator did in a project, without undone events."""

    annotator_id: int
    name: str
    n_labels: int
    n_skips: int
    n_flags: int
    n_undone: int
    median_seconds: float | None  # median time per label, over labels with a measured time
    per_day: dict[date, int]  # labels per day, in the requested time zone
    last_at: datetime | None


def annotator_named(store: Store, name: str, subject: str | None = None) -> AnnotatorRow:
    """The annotator with this name, created if missing.

    With `subject` (a signed-in user), the subject identifies the annotator; a new one whose name is taken gets a number
    after the name. Raises Conflict for a removed annotator.
    """
    name = named(name.strip(), "The annotator's name", 200)
    if subject is not None:
        storable(subject, "The sign-in subject", 300)
    with store.read() as connection:
        found = _find(connection, name, subject)
    if found is None:
        with store.write() as connection:
            found = _find(connection, name, subject) or _make(connection, name, subject)
    if found.removed_at is not None:
        raise Conflict(f"The annotator {found.name} was removed. Use another name, or restore them first.")
    return found


def list_annotators(store: Store, include_removed: bool = False) -> list[AnnotatorRow]:
    query = select(Annotator.__table__).order_by(Annotator.name)
    if not include_removed:
        query = query.where(Annotator.removed_at.is_(None))
    with store.read() as connection:
        return [AnnotatorRow(**row._asdict()) for row in connection.execute(query)]


def list_people(store: Store) -> list[AnnotatorRow]:
    """The annotators that sign-in offers: people who were not removed."""
    return [row for row in list_annotators(store) if row.is_person]


def person_named(store: Store, name: str) -> AnnotatorRow:
    """`annotator_named` for a name that a person typed; the names of programs are refused."""
    if name.strip().casefold() in PROGRAM_NAMES:
        raise Conflict(f"The name {name.strip()!r} is reserved for labels that no person gave. Use another name.")
    return annotator_named(store, name)


def known_person(store: Store, name: str) -> AnnotatorRow:
    """The person with this name, who has signed in or labeled before; raises NotFound."""
    found = [row for row in list_people(store) if row.name == name.strip()]
    if not found:
        raise NotFound(
            f"There is no annotator called {name.strip()!r}. They appear once they have signed in or chosen a name."
        )
    return found[0]


def get_annotator(store: Store, annotator_id: int) -> AnnotatorRow:
    with store.read() as connection:
        return _one(connection, annotator_id)


def remove_annotator(store: Store, annotator_id: int) -> AnnotatorRow:
    """Refuse further labels of this annotator; existing labels stay."""
    return _set_removed(store, annotator_id, now())


def restore_annotator(store: Store, annotator_id: int) -> AnnotatorRow:
    return _set_removed(store, annotator_id, None)


def annotator_statistics(store: Store, project_id: int, zone: tzinfo = UTC) -> list[AnnotatorStatistics]:
    """One record for each annotator with events in the project, most labels first; days are those of `zone`."""
    query = (
        select(
            LabelEvent.annotator_id,
            Annotator.name,
            LabelEvent.kind,
            LabelEvent.seconds,
            LabelEvent.at,
            is_undone().label("undone"),
        )
        .join(Annotator, Annotator.id == LabelEvent.annotator_id)
        .where(LabelEvent.project_id == project_id, LabelEvent.kind.in_(("label", "skip", "flag")))
        .order_by(LabelEvent.annotator_id, LabelEvent.sequence)
    )
    tallies: dict[int, _Tally] = {}
    with store.read() as connection:
        for row in connection.execution_options(yield_per=5_000).execute(query):
            tallies.setdefault(row.annotator_id, _Tally(row.name)).add(row.kind, row.seconds, row.at, row.undone, zone)
    found = [tally.statistics(annotator_id) for annotator_id, tally in tallies.items()]
    return sorted(found, key=lambda one: (-one.n_labels, one.name))


class _Tally:
    def __init__(self, name: str) -> None:
        self.name = name
        self.kinds: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.days: Counter[date] = Counter()
        self.last: datetime | None = None

    def add(self, kind: str, seconds: float | None, at: datetime, undone: bool, zone: tzinfo) -> None:
        if undone:
            self.kinds["undone"] += 1
            return
        self.kinds[kind] += 1
        self.last = at if self.last is None else max(self.last, at)
        if kind == "label":
            self.days[at.astimezone(zone).date()] += 1
            if seconds is not None:
                self.seconds.append(seconds)

    def statistics(self, annotator_id: int) -> AnnotatorStatistics:
        return AnnotatorStatistics(
            annotator_id=annotator_id,
            name=self.name,
            n_labels=self.kinds["label"],
            n_skips=self.kinds["skip"],
            n_flags=self.kinds["flag"],
            n_undone=self.kinds["undone"],
            median_seconds=median(self.seconds) if self.seconds else None,
            per_day=dict(sorted(self.days.items())),
            last_at=self.last,
        )


def _find(connection: Connection, name: str, subject: str | None) -> AnnotatorRow | None:
    matches = Annotator.subject == subject if subject is not None else Annotator.name == name
    row = connection.execute(select(Annotator.__table__).where(matches)).one_or_none()
    return AnnotatorRow(**row._asdict()) if row is not None else None


def _make(connection: Connection, name: str, subject: str | None) -> AnnotatorRow:
    """Insert unless another process did; for a new subject, a taken name gets the first free number."""
    candidate, number = name, 2
    if subject is not None and name.casefold() in PROGRAM_NAMES:
        candidate, number = f"{name} (2)", 3
    while True:
        values = {"name": candidate, "subject": subject, "created_at": now()}
        connection.execute(insert_for(connection, Annotator).values(values).on_conflict_do_nothing())
        if (row := _find(connection, candidate, subject)) is not None:
            return row
        candidate, number = f"{name} ({number})", number + 1


def _one(connection: Connection, annotator_id: int) -> AnnotatorRow:
    row = connection.execute(select(Annotator.__table__).where(Annotator.id == annotator_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no annotator {annotator_id}.")
    return AnnotatorRow(**row._asdict())


def _set_removed(store: Store, annotator_id: int, at: datetime | None) -> AnnotatorRow:
    with store.write() as connection:
        _one(connection, annotator_id)
        connection.execute(update(Annotator).where(Annotator.id == annotator_id).values(removed_at=at))
        return _one(connection, annotator_id)
