"""Typed requests for jobs. Pages, the API, job processes and the command line use the same types.

A request holds JSON values only; `to_dict` and `from_dict` pass it to the process of a job. This module does not load
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from core import config
from core.config import require
from core.errors import InvalidInput
from core.types import MediaKind
from storage.exporting.rows import ExportOptions
from storage.importing.run import ImportOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRequest:
    """Determine what an import would do. Nothing is written."""

    source: str  # a folder, a zip archive, a manifest or an export
    project: str  # the name of the project, which need not exist
    options: ImportOptions = field(default_factory=ImportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Import media into a project. The project is created if it does not exist."""

    source: str
    project: str
    kind: MediaKind | None = None  # the media type of a new project; None: that of the first file
    options: ImportOptions = field(default_factory=ImportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Write the labels of a project to a new folder or zip file."""

    project_id: int
    target: str
    options: ExportOptions = field(default_factory=ExportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOptions:
    """The size of a summary, as a number of items or as a percentage of the labeled items, and how it is made."""

    items: int | None = None
    percent: float | None = None
    weighted: bool = True
    joint: bool = False
    n_draws: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        given = (self.items is not None) + (self.percent is not None)
        require(given == 1, "Set the size of the summary: a number of items, or a percentage of the labeled items.")
        require(self.percent is None or 0 < self.percent <= 100, f"{self.percent} % was requested; use 0 to 100.")
        require(2 <= self.n_draws <= 100, f"{self.n_draws} random draws were requested; use 2 to 100.")

    def size(self, n_labeled: int) -> int:
        if self.items is not None:
            return self.items
        assert self.percent is not None
        return max(1, round(n_labeled * self.percent / 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """Summarize the labeled items of a project; with a target, also export the summary."""

    project_id: int
    target: str | None = None
    summary: SummaryOptions
    options: ExportOptions = field(default_factory=ExportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRequest:
    """Carry out a confirmed deletion (`storage.projects.deletion`), or finish an interrupted one."""

    deletion_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Write the model of a round to a new folder or zip file."""

    project_id: int
    target: str
    round: str | None = None  # number or name; None: the newest round with a model
    overwrite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRequest:
    """Predict the files of an upload, or the listed items of the project, and write a table."""

    project_id: int
    target: str  # .csv, .jsonl or .parquet
    round: str | None = None  # number or name; None: the newest round with a model
    all_probabilities: bool = False
    upload: str | None = None  # the archive of an upload
    item_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    """Store embeddings that were computed elsewhere as an encoder with a new name."""

    project_id: int
    source: str  # a Parquet or NPY file, or an upload with one
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditionRequest:
    """Compare the encoders of a project, and none, on its labels."""

    project_id: int


Request = (
    PreviewRequest
    | ImportRequest
    | ExportRequest
    | SummaryRequest
    | DeletionRequest
    | ModelRequest
    | PredictionRequest
    | EmbeddingsRequest
    | AuditionRequest
)
TYPES: dict[str, type[Request]] = {
    "preview": PreviewRequest,
    "import": ImportRequest,
    "export": ExportRequest,
    "summary": SummaryRequest,
    "deletion": DeletionRequest,
    "model": ModelRequest,
    "predictions": PredictionRequest,
    "embeddings": EmbeddingsRequest,
    "audition": AuditionRequest,
}


def to_dict(request: Request) -> dict[str, Any]:
    """The request as JSON values, with its type under `type`."""
    name = next(name for name, found in TYPES.items() if found is type(request))
    return {"type": name, **asdict(request)}


def from_dict(values: Mapping[str, Any]) -> Request:
    """The inverse of `to_dict`. Unknown types and fields raise `InvalidInput`."""
    fields = dict(values)
    name = fields.pop("type", "")
    if name not in TYPES:
        raise InvalidInput(f"There is no job type {name!r}. The job types are {', '.join(TYPES)}.")
    return config.from_dict(TYPES[name], fields)
