"""The requests that jobs run: typed, the same for a page, a job process and the command line.

A request holds JSON values only: `to_dict` and `from_dict` carry it to the process of a job. This module does not load
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
    """List what an import would do. Nothing is written."""

    source: str  # a folder, a zip archive, a manifest or an export
    project: str  # its name; it need not exist
    options: ImportOptions = field(default_factory=ImportOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """Import media into a project, which is created when no project has this name."""

    source: str
    project: str
    kind: MediaKind | None = None  # of a new project; None: that of the first file
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
    """Do a deletion that was confirmed (`storage.projects.deletion`), or the rest of it."""

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
    """Predict the files of an upload, or without one the named items of the project, and write a table."""

    project_id: int
    target: str  # .csv, .jsonl or .parquet
    round: str | None = None  # number or name; None: the newest round with a model
    all_probabilities: bool = False
    upload: str | None = None  # the archive of an upload
    item_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsRequest:
    """Keep embeddings that were computed elsewhere as an encoder with a new name."""

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
    """JSON values; `type` names the type."""
    name = next(name for name, found in TYPES.items() if found is type(request))
    return {"type": name, **asdict(request)}


def from_dict(values: Mapping[str, Any]) -> Request:
    """The request that `to_dict` gave; unknown types and fields raise `InvalidInput`."""
    fields = dict(values)
    name = fields.pop("type", "")
    if name not in TYPES:
        raise InvalidInput(f"There is no job of the type {name!r}; there are {', '.join(TYPES)}.")
    return config.from_dict(TYPES[name], fields)
