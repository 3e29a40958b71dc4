"""One row of a table in any format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

IN_TABLE = "bytes in the table"  # the key of a media cell whose bytes are in the file


@dataclass(frozen=True, slots=True)
class TableRow:
    """`number` counts rows from 1; the row of column names is not counted."""

    number: int
    values: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
