"""How a source is read, and what reading it found: tables, columns, warnings and open questions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FolderUse = Literal["auto", "classes", "ignore"]
SplitUse = Literal["auto", "take", "ignore"]
NO_TABLE = "none"
CLASS_FOLDERS = "class folders"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """What the user states about a source. Empty values are detected or become a question."""

    folders: FolderUse = "auto"  # auto: class folders are labels where this is clear; otherwise there is a question
    splits: SplitUse = "auto"  # take: every folder with the name of a split is one; ignore: none is
    table: str = ""  # the table beside the files that holds the labels; NO_TABLE uses none
    path_column: str = ""
    label_column: str = ""
    split_column: str = ""
    group_column: str = ""
    media_root: str = ""  # the folder that paths in a table start from


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the user has to answer before an import: `option` names the option that answers it."""

    option: Literal["folders", "splits", "table", "media_root", "path_column"]
    text: str


@dataclass(slots=True)
class Findings:
    """How a source was understood. Complete after one pass over its entries."""

    labels_from: str = ""  # CLASS_FOLDERS, the names of tables, or nothing
    classes_stated: bool = False  # the user stated that folders are classes
    tables: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)  # path, label, split -> the table's column
    media_root: str = ""  # where the files of a table are
    label_names: dict[str, str] = field(default_factory=dict)  # value in the source -> class name, where they differ
    first_rows: list[dict[str, str]] = field(default_factory=list)
    column_names: list[str] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)  # tables that could be used instead
    warnings: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
