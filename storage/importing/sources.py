"""What every source of an import gives: a stream of entries, each with a name, a place and perhaps a label.

A source never reads media and never writes. What it can see to be wrong (a symbolic link, a path outside the root, a
ragged row) it gives as an entry with a `problem`, so that previews and reports name every one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from storage.media.folder import MediaFolder

TRAINING_FOLDERS = frozenset(("train", "training", "pool"))
TEST_FOLDERS = frozenset(("test", "testing"))


class GivenLabel(NamedTuple):
    """A label as a source states it; an export of Winnow states all of it."""

    label: str
    annotator: str = ""  # "": the annotator of the import
    at: datetime | None = None
    kind: Literal["label", "decide"] = "label"
    uuid: str = ""
    sequence: int = 0
    seconds: float | None = None
    suggestion: str = "none"
    suggested_label: str = ""
    suggested_confidence: float | None = None
    note: str = ""


class FilePlace(NamedTuple):
    path: str


class PackedPlace(NamedTuple):
    """One entry of an archive; the source that gave it can unpack it."""

    position: int
    n_bytes: int


class KeptPlace(NamedTuple):
    """Bytes that a pack of the media folder has already."""

    sha256: str
    media: MediaFolder


Place = FilePlace | PackedPlace | KeptPlace


class Entry(NamedTuple):
    """One thing to import. `problem` says why it will not be."""

    name: str
    place: Place | None = None
    problem: str = ""
    split: Literal["", "train", "test"] = ""
    labels: tuple[GivenLabel, ...] = ()
    row: int = 0  # line of the manifest, 0 when there is none
    sha256: str = ""  # what the manifest says the bytes are; "" when it says nothing
    other_names: tuple[str, ...] = ()  # under which the same bytes were known where they come from

    @property
    def label(self) -> str | None:
        """The label that counts: a decision, else the one given last."""
        if len(self.labels) == 1:
            return self.labels[0].label
        decided = [given for given in self.labels if given.kind == "decide"]
        return (decided or self.labels)[-1].label if self.labels else None


class Source(Protocol):
    """Where entries come from. `strict` sources (manifests) are not imported in part without being told to."""

    description: str
    strict: bool

    def entries(self) -> Iterator[Entry]: ...

    def head(self, place: Place, n_bytes: int) -> bytes:
        """The first bytes behind an entry, for previews."""
        ...

    def unpack(self, place: PackedPlace, target: Path) -> None:
        """Write the entry's bytes to a new file."""
        ...

    def close(self) -> None: ...


def label_of_folder(name: str, split_folders: bool) -> tuple[str | None, Literal["", "train", "test"]]:
    """(label, split) that the folders of a relative name stand for: `test/dog/a.wav` is a held-out dog.

    The innermost folder is the class. The outermost is the split when `split_folders` says that such folders are used.
    """
    folders = [folder for folder in name.split("/")[:-1] if folder not in ("", ".")]
    split: Literal["", "train", "test"] = ""
    if split_folders and folders:
        first = folders[0].lower()
        if first in TEST_FOLDERS or first in TRAINING_FOLDERS:
            split = "test" if first in TEST_FOLDERS else "train"
            folders = folders[1:]
    return (folders[-1] if folders else None), split


def has_split_folders(folders: set[str]) -> bool:
    """A top level with a test folder is one that splits; a lone class called `train` is a class."""
    lowered = {folder.lower() for folder in folders}
    return bool(lowered & TEST_FOLDERS) and lowered <= TEST_FOLDERS | TRAINING_FOLDERS


def readable_name(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are written as \\xe9, so that every database can keep it."""
    if name.isascii():
        return name
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name
