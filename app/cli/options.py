"""Options that commands share, and those of the import command, as types for their parameters."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
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
MediaRoot = Annotated[str, typer.Option(help="The folder that the table's file names start from.")]
