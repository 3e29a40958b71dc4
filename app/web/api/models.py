"""The requests and responses of the API as pydantic models. The OpenAPI document is generated from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from core.config import Preset
from storage.exporting.rows import Format
from storage.labeling.item_rows import State

LARGEST_ID = 2**62
Id = Annotated[int, Path(ge=1, le=LARGEST_ID)]
BodyId = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Limit = Annotated[int, Query(ge=1, le=1_000, description="Number of rows.")]
Cursor = Annotated[int, Query(ge=0, le=LARGEST_ID, description="`next_cursor` of the previous page; 0: first page.")]
Text = Annotated[str, Field(max_length=100_000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Received(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Returned(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class FieldError(Returned):
    field: str
    problem: str


class Error(Returned):
    """The format of all errors."""

    error: str = Field(description="A sentence for users: what happened and what to do.")
    code: str = Field(description="A stable code for programs: not_found, forbidden, conflict, invalid, …")
    fields: list[FieldError] = []


class Me(Returned):
    """The token that authenticated this request."""

    token: str
    role: str
    annotator_id: int
    annotator: str


class Settings(Received):
    """Settings of a project. Omitted fields keep their values."""

    labels_per_item: Annotated[int, Field(ge=1, le=100)] | None = None
    suggestions: Literal["show", "hide", "random"] | None = None
    hidden_share: Annotated[float, Field(ge=0, le=1)] | None = None
    blind: bool | None = None
    live: bool | None = None
    automatic_rounds: bool | None = None
    batch_size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    strategy: Name | None = None
    preset: Preset | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None


class Counts(Returned):
    total: int
    held_out: int
    labeled: int
    waiting: int
    skipped: int
    flagged: int
    unreadable: int


class Project(Returned):
    id: int
    name: str
    kind: str
    guidelines: str
    settings: dict[str, Any]
    created_at: datetime
    archived_at: datetime | None


class ProjectDetail(Project):
    role: str = Field(description="The role of this token in the project: viewer, annotator, editor or owner.")
    counts: Counts


class NewProject(Received):
    name: Name
    kind: Literal["audio", "image"]
    classes: Annotated[list[Annotated[str, Field(min_length=1, max_length=1_000)]], Field(max_length=1_000)] = []
    guidelines: Text = ""
    settings: Settings = Settings()


class ProjectChange(Received):
    name: Name | None = None
    guidelines: Text | None = None
    settings: Settings | None = None


class Class(Returned):
    id: int
    name: str
    position: int
    key: str | None
    color: str | None
    effective_id: int | None = Field(description="The class that its labels count as, after a merge.")
    retired_at: datetime | None


class NewClass(Received):
    name: Annotated[str, Field(min_length=1, max_length=1_000)]


class ClassChange(Received):
    name: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    key: Annotated[str, Field(max_length=8)] | None = None
    color: Annotated[str, Field(pattern=r"^#[0-9A-Fa-f]{6}$")] | None = None


class Merge(Received):
    into: BodyId


class Item(Returned):
    id: int
    name: str = Field(description="The file name as imported. It may reveal the class.")
    shown_name: str = Field(
        default="",
        description="The name to show to annotators: the file name, or `Item 7` if it contains a class name.",
    )
    sha256: str
    media_type: str
    n_bytes: int
    seconds: float | None
    sample_rate: int | None
    channels: int | None
    width: int | None
    height: int | None
    held_out: bool
    condition: str
    class_id: int | None = Field(description="The class of the label that counts, before any merge of classes.")
    label: str | None = Field(default=None, description="The name of the class that the label counts as.")
    n_labels: int
    decided: bool
    skipped: bool
    flagged: bool
    waiting: bool
    recording_sha256: str | None = Field(description="For a window: the SHA-256 of its recording; otherwise null.")
    first_frame: int | None = Field(description="For a window: its first frame in the recording.")
    last_frame: int | None = Field(description="For a window: its last frame in the recording, inclusive.")
    group_name: str = Field(description="Random splits keep all items of a group on one side.")


class ItemQuery(Received):
    """Conditions for items. The items that meet all of them are returned in the order of their ids."""

    state: State = "all"
    class_id: BodyId | None = None
    annotator_id: BodyId | None = None
    round_id: BodyId | None = None
    search: Annotated[str, Field(max_length=1_000, description="Part of the name.")] = ""
    cursor: Annotated[int, Field(ge=0, le=LARGEST_ID, description="`next_cursor` of the previous page.")] = 0
    limit: Annotated[int, Field(ge=1, le=1_000, description="Number of items.")] = 100


class ItemPage(Returned):
    items: list[Item]
    next_cursor: int | None = Field(description="Pass it as `cursor` for the next page; null: this is the last page.")


class Event(Returned):
    sequence: int
    uuid: str
    item_id: int
    annotator_id: int
    kind: str
    class_id: int | None
    undoes: str | None
    seconds: float | None
    note: str
    at: datetime
    stored_at: datetime


class NewEvent(Received):
    """One action. The client creates the `uuid`; sending an event again has no further effect."""

    uuid: Annotated[str, Field(max_length=64)]
    item_id: BodyId
    kind: Literal["label", "skip", "flag", "unflag", "note", "undo", "decide"] = "label"
    class_id: BodyId | None = None
    undoes: Annotated[str, Field(max_length=64)] | None = None
    seconds: Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)] | None = None
    note: Text = ""
    at: datetime | None = None


class NewEvents(Received):
    events: Annotated[list[NewEvent], Field(max_length=20_000)]


class Applied(Returned):
    uuid: str
    accepted: bool
    reason: str


class AppliedEvents(Returned):
    applied: list[Applied]


class Ask(Received):
    """`holder` identifies the caller's session, such as a notebook, to which the items are leased."""

    limit: Annotated[int, Field(ge=1, le=60)] = 1
    holder: Annotated[str, Field(min_length=1, max_length=64)] = "api"


class Probability(Returned):
    class_id: int
    name: str
    probability: float


class LeasedItem(Returned):
    item: Item
    predictions: list[Probability] = Field(description="The most probable classes, if the project shows suggestions.")


class Leased(Returned):
    items: list[LeasedItem]
    lease_seconds: int


class Holder(Received):
    holder: Annotated[str, Field(min_length=1, max_length=64)] = "api"


class Round(Returned):
    id: int
    number: int
    status: str = Field(description="requested, running, finished, failed or cancelled")
    strategy: str
    n_labeled: int
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str
    metrics: dict[str, Any]
    notes: list[Any]


class RoundProgress(Returned):
    stage: str
    done: int
    total: int
    note: str
    seconds_left: float | None
    waiting_for_worker: bool


class RoundDetail(Round):
    progress: RoundProgress


class Pick(Returned):
    item_id: int
    name: str
    label: str | None
    order: int
    score: float
    reason: dict[str, Any] = Field(description="The reason why the item was picked, and the later effect of its label.")


class Prediction(Returned):
    item_id: int
    class_id: int
    confidence: float
    probabilities: list[float] = Field(description="In the order of `classes`.")


class PredictionPage(Returned):
    round_id: int
    round_number: int
    classes: list[Class]
    predictions: list[Prediction]
    next_cursor: int | None


class Job(Returned):
    id: str
    title: str
    status: str = Field(description="running, finished, failed, cancelled or lost")
    done: int
    total: int
    note: str
    error: str
    result: dict[str, Any] | None


class NewExport(Received):
    """`audacity` and `raven` write one file of labeled spans per recording, and the table as CSV."""

    format: Format = "csv"
    pseudo_above: Annotated[float, Field(ge=0, le=1)] | None = None
    held_out: bool = False
    media: bool = False
    contested: Literal["keep", "majority", "omit"] = "keep"
