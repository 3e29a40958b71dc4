"""The tables of the store.

Facts         projects, classes + class_events, items + item_names, annotators, label_events, rounds + picks, artifacts,
              simulations + simulation_records. Events are appended and never changed.
              recordings of windows (`storage.database.tables.recordings`).
Access        memberships, api_tokens, audit_entries, deletions, test_sets (`storage.database.access_schema`).
Projections   item_states, current_labels: derived from `label_events` and updated in the transaction that adds an
              event. `storage.labeling.projections.rebuild` derives them again and must produce the same rows.
Transient     leases, queue_cursors, round_progress, workers, import_runs, watches + watched_files, simulation_seeds:
              work in progress. Losing them loses no label.

Times are UTC. A merged class keeps its row and its history; `effective_id` is the class that its labels count as.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from storage.database.access_schema import ACCESS_TABLES
from storage.database.declarative import Table, rare_rows, rows_where
from storage.database.tables.recordings import RECORDING_TABLES, WindowColumns, windows_index

NOT_OK = "condition <> 'ok'"
CHANGED = "revision > 0"
SHARED = "n_labels > 1"
NOTED = "kind = 'note'"
IN_NAMED_SPLIT = "split_name <> ''"


class Project(Table):
    __tablename__ = "projects"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    kind: Mapped[str] = mapped_column(String(10))  # audio | image
    guidelines: Mapped[str] = mapped_column(Text, default="")
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)  # storage.projects.projects.ProjectSettings
    revision: Mapped[int] = mapped_column(default=0)  # grows with every change in the project; caches are keyed on it
    created_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]


class LabelClass(Table):
    __tablename__ = "classes"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    name: Mapped[str] = mapped_column(Text)  # exactly as typed; never a path
    position: Mapped[int]
    key: Mapped[str | None] = mapped_column(String(8))
    color: Mapped[str | None] = mapped_column(String(9))
    effective_id: Mapped[int | None] = mapped_column(ForeignKey("classes.id"))  # None: counts as itself
    retired_at: Mapped[datetime | None]
    __table_args__ = (
        Index(
            "classes_active_name",
            "project_id",
            "name",
            unique=True,
            sqlite_where=text("retired_at IS NULL AND effective_id IS NULL"),
            postgresql_where=text("retired_at IS NULL AND effective_id IS NULL"),
        ),
    )


class ClassEvent(Table):
    __tablename__ = "class_events"
    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    class_id: Mapped[int] = mapped_column(ForeignKey("classes.id"))
    kind: Mapped[str] = mapped_column(String(12))  # add | rename | merge | unmerge | retire | restore | style
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)
    annotator_id: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))
    at: Mapped[datetime]


class Annotator(Table):
    __tablename__ = "annotators"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    subject: Mapped[str | None] = mapped_column(String(300), unique=True)  # OIDC subject when signed in
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]


class Item(WindowColumns, Table):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    sha256: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(Text)  # the original name, exactly; shown escaped, never used as a path
    media_type: Mapped[str] = mapped_column(String(40))  # from the content: audio/wav, image/png, ...
    n_bytes: Mapped[int]
    link_path: Mapped[str | None] = mapped_column(Text)  # None: the bytes are in the content-addressed folder
    link_mtime_ns: Mapped[int | None]
    seconds: Mapped[float | None]
    sample_rate: Mapped[int | None]
    channels: Mapped[int | None]
    width: Mapped[int | None]
    height: Mapped[int | None]
    held_out: Mapped[bool] = mapped_column(default=False)
    split_name: Mapped[str] = mapped_column(String(40), default="", server_default="")  # of the source: val, dev …
    truth_class_id: Mapped[int | None] = mapped_column(
        ForeignKey("classes.id")
    )  # known label, hidden from annotators; for tests and simulations
    condition: Mapped[str] = mapped_column(String(12), default="ok")  # ok | missing | changed | unreadable
    condition_note: Mapped[str] = mapped_column(Text, default="")
    test_set_id: Mapped[int | None]  # of a test item that people label: `test_sets.id`
    imported_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("project_id", "sha256", name="items_content"),
        Index("items_order", "project_id", "id"),
        windows_index(),
        rare_rows("items_held_out", "held_out"),
        rows_where("items_split", IN_NAMED_SPLIT, "project_id", "split_name"),
        rows_where("items_unreadable", NOT_OK, "project_id"),
    )


class ItemName(Table):
    """Other names under which the same bytes were imported."""

    __tablename__ = "item_names"
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)


class LabelEvent(Table):
    __tablename__ = "label_events"
    sequence: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"))
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"))
    kind: Mapped[str] = mapped_column(String(10))  # label | skip | flag | unflag | note | undo | decide
    class_id: Mapped[int | None] = mapped_column(ForeignKey("classes.id"))
    undoes: Mapped[str | None] = mapped_column(String(36))  # uuid of the undone event
    suggestion: Mapped[str] = mapped_column(String(8), default="none")  # shown | hidden | none
    suggested_class_id: Mapped[int | None] = mapped_column(ForeignKey("classes.id"))
    suggested_confidence: Mapped[float | None]
    seconds: Mapped[float | None]  # time to decide
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"))  # the round that picked the item
    note: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[datetime]  # when the person decided
    stored_at: Mapped[datetime]
    __table_args__ = (
        Index("label_events_item", "item_id", "sequence"),
        Index("label_events_annotator", "project_id", "annotator_id", "sequence"),
        Index("label_events_undoes", "undoes"),
        rows_where("label_events_notes", NOTED, "project_id", "item_id"),
        {"sqlite_autoincrement": True},
    )


class CurrentLabel(Table):
    """Projection: the current label of each annotator on each item."""

    __tablename__ = "current_labels"
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"), primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    class_id: Mapped[int] = mapped_column(ForeignKey("classes.id"))
    sequence: Mapped[int]  # the event that gave it
    __table_args__ = (Index("current_labels_annotator", "project_id", "annotator_id", "item_id"),)


class ItemState(Table):
    """Projection: whether an item waits for a label, and its position in the queue."""

    __tablename__ = "item_states"
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    waiting: Mapped[bool]  # may be served: readable, no test item unless of a test set, not skipped, labels missing
    n_labels: Mapped[int] = mapped_column(Integer, default=0)  # annotators with a current label
    class_id: Mapped[int | None] = mapped_column(ForeignKey("classes.id"))  # the label that counts, as given
    decided: Mapped[bool] = mapped_column(default=False)  # class_id comes from a review decision
    skipped: Mapped[bool] = mapped_column(default=False)
    flagged: Mapped[bool] = mapped_column(default=False)
    sequence: Mapped[int | None]  # the newest event that changed class_id
    queue_rank: Mapped[int]  # small and in order for picks and prioritized items; NOT_QUEUED for the rest
    shuffle: Mapped[int] = mapped_column(Integer)  # from the hash: a stable order that is not alphabetical
    revision: Mapped[int] = mapped_column(default=0, server_default="0")  # of the project, at the row's last change
    __table_args__ = (
        rows_where("item_states_changed", CHANGED, "project_id", "revision"),
        Index("item_states_queue", "project_id", "waiting", "queue_rank", "shuffle", "item_id"),
        Index("item_states_class", "project_id", "class_id"),
        rows_where("item_states_shared", SHARED, "project_id", "item_id"),
        rare_rows("item_states_skipped", "skipped"),
        rare_rows("item_states_flagged", "flagged"),
    )


NOT_QUEUED = 2**40


class Lease(Table):
    """An item reserved for one tab of one annotator until it expires."""

    __tablename__ = "leases"
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"), primary_key=True)
    holder: Mapped[str] = mapped_column(String(64))  # the tab
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    expires_at: Mapped[datetime]
    __table_args__ = (Index("leases_expiry", "project_id", "expires_at"),)


class QueueCursor(Table):
    """The queue position at which the search for an annotator's next item starts; no item before it waits for them.

    Only projects with several labels per item use cursors: there, an item still waits for other annotators after this
    one has labeled it. A change that makes an item wait again moves the cursors back
    (`storage.labeling.queue.move_cursors_back`).
    """

    __tablename__ = "queue_cursors"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    annotator_id: Mapped[int] = mapped_column(ForeignKey("annotators.id"), primary_key=True)
    queued: Mapped[bool] = mapped_column(primary_key=True)  # one for picks and prioritized items, one for all others
    queue_rank: Mapped[int]
    shuffle: Mapped[int] = mapped_column(Integer)
    item_id: Mapped[int]


class Round(Table):
    __tablename__ = "rounds"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"))
    number: Mapped[int] = mapped_column(Integer)  # 1, 2, ... within the project
    status: Mapped[str] = mapped_column(String(12))  # requested | running | finished | failed | cancelled
    config: Mapped[str] = mapped_column(Text)  # core.config.RoundConfig as JSON
    strategy: Mapped[str] = mapped_column(String(40))
    constraint: Mapped[dict[str, Any]] = mapped_column(default=dict)  # region item ids (artifact) and its share
    label_sequence: Mapped[int]  # the newest label event that the round uses
    class_event: Mapped[int] = mapped_column(default=0)  # the newest class event that it uses
    last_item_id: Mapped[int] = mapped_column(default=0)  # items imported later are not part of it
    n_labeled: Mapped[int] = mapped_column(Integer)
    replay_of: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"))
    requested_by: Mapped[int | None] = mapped_column(ForeignKey("annotators.id"))
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    stage: Mapped[str] = mapped_column(String(20), default="")
    error: Mapped[str] = mapped_column(Text, default="")  # one sentence
    log: Mapped[str] = mapped_column(Text, default="")
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    notes: Mapped[list[Any]] = mapped_column(default=list)
    workflow_id: Mapped[str | None] = mapped_column(String(80))
    __table_args__ = (UniqueConstraint("project_id", "number", name="rounds_number"),)


class RoundProgress(Table):
    __tablename__ = "round_progress"
    id: Mapped[int] = mapped_column(primary_key=True)
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), index=True)
    stage: Mapped[str] = mapped_column(String(20))
    done: Mapped[int]
    total: Mapped[int]
    note: Mapped[str] = mapped_column(Text, default="")
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    at: Mapped[datetime]


class Pick(Table):
    __tablename__ = "picks"
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)  # 1 = chosen first
    item_id: Mapped[int] = mapped_column(ForeignKey("items.id"), index=True)
    score: Mapped[float]
    reason: Mapped[dict[str, Any]] = mapped_column(default=dict)  # core.types.PickReason
    hindsight: Mapped[dict[str, Any]] = mapped_column(default=dict)  # what the next round measured about it
    look_after: Mapped[int | None]  # of a second look: the newest label event that the round used


class Artifact(Table):
    __tablename__ = "artifacts"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int | None] = mapped_column(ForeignKey("projects.id"), index=True)
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"), index=True)
    kind: Mapped[str] = mapped_column(String(40))  # item_ids | probabilities | embeddings | map | model | ...
    sha256: Mapped[str] = mapped_column(String(64))  # of the file's bytes; the file is named after it
    suffix: Mapped[str] = mapped_column(String(16))  # .npy | .npz | .safetensors | .json
    n_bytes: Mapped[int]
    shape: Mapped[list[Any]] = mapped_column(default=list)
    dtype: Mapped[str] = mapped_column(String(20), default="")
    created_at: Mapped[datetime]


class Setting(Table):
    __tablename__ = "settings"
    key: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[dict[str, Any]]


class Worker(Table):
    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(80), primary_key=True)  # executor id in the workflow engine
    host: Mapped[str] = mapped_column(String(200))
    pid: Mapped[int] = mapped_column(Integer)
    device: Mapped[str] = mapped_column(String(80))
    round_id: Mapped[int | None] = mapped_column(ForeignKey("rounds.id"))
    stage: Mapped[str] = mapped_column(String(20), default="")
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]


class ImportRun(Table):
    __tablename__ = "import_runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    source: Mapped[str] = mapped_column(Text)
    options: Mapped[dict[str, Any]] = mapped_column(default=dict)
    status: Mapped[str] = mapped_column(String(12))  # running | finished | cancelled | failed
    counts: Mapped[dict[str, Any]] = mapped_column(default=dict)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    cancel_requested: Mapped[bool] = mapped_column(default=False)


class Watch(Table):
    """A folder whose new files are imported into a project, and the buffer of candidates kept from that stream."""

    __tablename__ = "watches"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    folder: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(200))  # the machine that has the folder
    status: Mapped[str] = mapped_column(String(12))  # active | stopped
    labels: Mapped[str] = mapped_column(String(10))  # what class folders mean: given | hidden | ignore
    buffer_size: Mapped[int] = mapped_column(Integer)
    remaining: Mapped[int | None]  # files to import before the watch stops; None: no limit
    problem: Mapped[str] = mapped_column(Text, default="")  # why the last scan failed, one sentence
    buffer: Mapped[dict[str, Any]] = mapped_column(default=dict)  # storage.rounds.candidate_buffer
    started_at: Mapped[datetime]
    looked_at: Mapped[datetime | None]
    stopped_at: Mapped[datetime | None]


class WatchedFile(Table):
    """The outcome for one file of a watched folder; a changed file is examined again."""

    __tablename__ = "watched_files"
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    path_key: Mapped[str] = mapped_column(String(64), primary_key=True)  # SHA-256 of the path's bytes
    name: Mapped[str] = mapped_column(Text)  # below the folder
    n_bytes: Mapped[int]
    mtime_ns: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(12))  # taken | duplicate | unreadable | refused
    reason: Mapped[str] = mapped_column(Text, default="")
    at: Mapped[datetime]
    __table_args__ = (Index("watched_files_outcome", "project_id", "outcome", "at"),)


class Simulation(Table):
    """A simulation of a project: its settings and its status."""

    __tablename__ = "simulations"
    id: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[int] = mapped_column(ForeignKey("projects.id"), index=True)
    asked: Mapped[dict[str, Any]]  # app.simulation.requests.SimulationRequest
    settings: Mapped[dict[str, Any]]  # core.config.RoundConfig; `auto` is resolved by the worker that starts it
    status: Mapped[str] = mapped_column(String(12))  # requested | running | finished | failed | cancelled
    attempt: Mapped[int] = mapped_column(Integer, default=1)  # incremented each time it is resumed
    last_item_id: Mapped[int]  # newest item when it was requested
    pool: Mapped[str] = mapped_column(String(64), default="")  # digest of items and known labels, set at the start
    error: Mapped[str] = mapped_column(Text, default="")
    log: Mapped[str] = mapped_column(Text, default="")
    requested_at: Mapped[datetime]
    started_at: Mapped[datetime | None]  # of this attempt
    finished_at: Mapped[datetime | None]


class SimulationRecord(Table):
    """One trained model and its next selection; the first worker that finishes it writes it, once."""

    __tablename__ = "simulation_records"
    simulation_id: Mapped[int] = mapped_column(ForeignKey("simulations.id"), primary_key=True)
    strategy: Mapped[str] = mapped_column(String(60), primary_key=True)
    seed: Mapped[int] = mapped_column(Integer, primary_key=True)
    round: Mapped[int] = mapped_column(Integer, primary_key=True)
    record: Mapped[dict[str, Any]]  # core.rounds.simulation_plan.RoundRecord
    at: Mapped[datetime]


class SimulationSeed(Table):
    """The progress of one seed that a worker has started."""

    __tablename__ = "simulation_seeds"
    simulation_id: Mapped[int] = mapped_column(ForeignKey("simulations.id"), primary_key=True)
    seed: Mapped[int] = mapped_column(Integer, primary_key=True)
    starts: Mapped[int] = mapped_column(Integer, default=0)  # workers that started it since its last record
    note: Mapped[str] = mapped_column(Text, default="")  # current activity; empty when no worker is active
    at: Mapped[datetime]


METADATA = Table.metadata  # the tables above, those of access, and recordings
assert all(table.metadata is METADATA for table in (*ACCESS_TABLES, *RECORDING_TABLES))
