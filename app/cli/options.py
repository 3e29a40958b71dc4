"""Options that several commands share, and the options of the import and export commands, as parameter types."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as training.method=mixmatch; repeatable.")
]
Project = Annotated[str, typer.Argument(help="Name or id of the project.")]
Kind = Annotated[
    Literal["audio", "image"] | None,
    typer.Option(help="Media type of a new project; default: that of the first file."),
]
Labels = Annotated[
    Literal["given", "hidden", "ignore"],
    typer.Option(help="Existing labels: use them (given), hide them for evaluation (hidden), or ignore them."),
]
Classes = Annotated[
    Literal["ask", "add", "match"],
    typer.Option(help="Unknown classes: reject the import (ask), add them, or match ignoring case and spaces."),
]
Folders = Annotated[
    Literal["auto", "classes", "ignore"],
    typer.Option(help="Folder names: labels where that is clear (auto), always labels, or never."),
]
Splits = Annotated[
    Literal["auto", "take", "ignore"],
    typer.Option(help="Folders called train, val or test: splits where that is clear (auto), always, or never."),
]
Validation = Annotated[
    Literal["hold-out", "pool"], typer.Option(help="Validation items: hold them out, or put them into the pool.")
]
Table = Annotated[str, typer.Option(help="Name of the table with the labels; 'none' uses folder names only.")]
PathColumn = Annotated[str, typer.Option(help="The table's column with the file names.")]
LabelColumn = Annotated[str, typer.Option(help="The table's column with the labels.")]
SplitColumn = Annotated[str, typer.Option(help="The table's column with the splits.")]
GroupColumn = Annotated[str, typer.Option(help="The table's column with the groups, such as speakers.")]
Windows = Annotated[
    float | None, typer.Option(help="Cut sounds longer than this many seconds into windows of this length.")
]
Hop = Annotated[
    float | None, typer.Option(help="Seconds from the start of one window to the next; default: the window's length.")
]
TestShare = Annotated[
    float,
    typer.Option(
        help="Make a random share (0 to 0.9) of the new items test items where the source names no split; "
        "groups and recordings stay together."
    ),
]
MediaRoot = Annotated[str, typer.Option(help="The folder that the table's file names start from.")]

ExportFormat = Annotated[
    Literal["csv", "jsonl", "parquet", "folders", "label-studio", "hugging-face", "audacity", "raven"],
    typer.Option("--format", "-f"),
]
PseudoAbove = Annotated[
    float | None, typer.Option(help="Include model predictions with at least this confidence (0 to 1).")
]
HeldOut = Annotated[bool, typer.Option("--held-out", help="Include test items and their labels.")]
Media = Annotated[
    bool, typer.Option("--media", help="Include media files (class folders and hugging-face always contain them).")
]
MediaPrefix = Annotated[
    str | None,
    typer.Option(help="For Label Studio: text before each path, such as https://host/folder/; default: local files."),
]
Arrays = Annotated[
    bool, typer.Option("--arrays", help="Include embeddings and probabilities of the newest round (npz and Parquet).")
]
Contested = Annotated[
    Literal["keep", "majority", "omit"],
    typer.Option(help="Undecided items with different labels: keep all, keep those with a majority, or omit all."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")]
