"""The interface of import sources: a stream of entries, each with a name, a place and optionally a label and a split.

A source never reads media and never writes. Entries that cannot be imported (a symbolic link, a path outside the root,
a row with missing cells) carry a `problem`, so that previews and reports list every one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from core.errors import InvalidInput, NotFound
from core.types import MediaKind
from storage.importing.reading import Findings
from storage.importing.splits import NO_SPLIT, GivenSplit
from storage.importing.zip_reader import BadEntry
from storage.media.types import HEAD_BYTES, identify, media_kind, refusal

if TYPE_CHECKING:
    from storage.media.folder import MediaFolder


class GivenLabel(NamedTuple):
    """A label as a source states it; an export of Winnow states all fields."""

    label: str
    annotator: str = ""  # "": the annotator of the import
    at: datetime | None = None
    kind: Literal["label", "decide", "skip"] = "label"  # a skip carries no label
    uuid: str = ""
    sequence: int = 0
    seconds: float | None = None
    suggestion: str = "none"
    suggested_label: str = ""
    suggested_confidence: float | None = None
    note: str = ""


class GivenSpan(NamedTuple):
    """A part of a recording as a source states it: in frames, the last one included, or in seconds."""

    first_frame: int | None = None
    last_frame: int | None = None
    start: float = 0.0
    end: float = 0.0

    def frames(self, sample_rate: int) -> tuple[int, int]:
        if self.first_frame is not None and self.last_frame is not None:
            return self.first_frame, self.last_frame
        return round(self.start * sample_rate), round(self.end * sample_rate) - 1


class FilePlace(NamedTuple):
    path: str


class PackedPlace(NamedTuple):
    """One entry of an archive; its source can unpack it."""

    position: int
    n_bytes: int


class CellPlace(NamedTuple):
    """The media cell of one row of a table; its source can unpack it."""

    table: int  # position among the tables of the source
    row: int
    n_bytes: int  # on average


class KeptPlace(NamedTuple):
    """Bytes that are already in a pack of the media folder."""

    sha256: str
    media: MediaFolder


Place = FilePlace | PackedPlace | CellPlace | KeptPlace


class Entry(NamedTuple):
    """One file or part of a recording to import. `problem` says why it is not imported."""

    name: str
    place: Place | None = None
    problem: str = ""
    split: GivenSplit = NO_SPLIT
    labels: tuple[GivenLabel, ...] = ()
    row: int = 0  # line of the manifest, 0 when there is none
    sha256: str = ""  # the hash that the manifest states; "" if it states none
    other_names: tuple[str, ...] = ()  # further names of the same bytes in the exporting project
    note: str = ""  # what the user should know although the entry is imported
    span: GivenSpan | None = None  # the entry is this part of the file
    group: str = ""  # items of one group stay together in random splits; "": for a window, its recording

    @property
    def label(self) -> str | None:
        """The label that counts: a decision, else the last one. None for skipped and unlabeled entries."""
        if len(self.labels) == 1:
            return self.labels[0].label or None
        decided = [given for given in self.labels if given.kind == "decide"]
        given = decided or [given for given in self.labels if given.kind == "label"]
        return given[-1].label if given else None


class Source(Protocol):
    """A source of entries. `strict` sources (manifests) are imported in part only on request."""

    description: str
    strict: bool

    def entries(self) -> Iterator[Entry]: ...

    def head(self, place: Place, n_bytes: int) -> bytes:
        """The first bytes of an entry, for previews."""
        ...

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        """Write the entry's bytes to a new file."""
        ...

    def findings(self) -> Findings:
        """How the source was understood. Complete after one pass over `entries`."""
        ...

    def close(self) -> None: ...


def readable_name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are written as \\xe9, so that every database can store it."""
    if name.isascii():
        return name
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name


def find_media_kind(source: Source) -> MediaKind:
    """The kind of the first entry that is audio or an image. If there is none, raises `InvalidInput` with the problem
    of the first entry."""
    first = ""
    for entry in source.entries():
        found, problem = _type_or_problem(source, entry)
        if found is not None:
            return media_kind(found)
        if not first:
            where = f"row {entry.row}, {entry.name!r}" if entry.row else repr(entry.name)
            first = f" The first entry ({where}): {problem}"
    raise InvalidInput(f"{source.description} contains no audio clips or pictures that can be imported.{first}")


def _type_or_problem(source: Source, entry: Entry) -> tuple[str | None, str]:
    if entry.place is None or entry.problem:
        return None, entry.problem
    try:
        head = source.head(entry.place, HEAD_BYTES)
    except (OSError, BadEntry, NotFound) as problem:
        return None, f"It cannot be read: {getattr(problem, 'strerror', None) or problem}."
    found = type_of(head)
    return found, "" if found is not None else refusal(head)


def type_of(head: bytes) -> str | None:
    """The media type by the first bytes. What follows an ID3 tag is checked when the file is read."""
    return "audio/mpeg" if head.startswith(b"ID3") else identify(head, lambda offset, n: head[offset : offset + n])
