"""The result of an import: counts to show, the first names of each kind, and a file with all of them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

LISTED = 200


@dataclass(slots=True)
class ImportReport:
    """`imported` counts new items, including unreadable ones; `already` counts known items with the same name."""

    run_id: int
    source: str
    status: str = "running"
    entries: int = 0
    imported: int = 0
    recordings: int = 0  # files that were cut into windows; the windows are counted in `imported` and `already`
    already: int = 0
    held_out: int = 0
    labels: int = 0
    skipped: int = 0
    n_duplicates: int = 0
    n_refused: int = 0
    n_unreadable: int = 0
    duplicates: list[tuple[str, str]] = field(default_factory=list)  # (name, name of the same bytes), the first ones
    refused: list[tuple[str, str]] = field(default_factory=list)  # (name, reason), the first ones
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    new_classes: list[str] = field(default_factory=list)
    splits: dict[str, int] = field(default_factory=dict)  # new items by the split name of the source
    labels_from: str = ""
    warnings: list[str] = field(default_factory=list)
    details: str = ""  # file with one JSON line for every entry that was not imported without remarks
    seconds: float = 0.0

    def counts(self) -> dict[str, Any]:
        """The content of the run's row: the numbers, the splits, and the path of the details."""
        values = asdict(self).items()
        return {
            name: value for name, value in values if isinstance(value, int | float) or name in ("details", "splits")
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        """The counts of the import as one sentence."""
        splits = ", ".join(f"{n:,} {name}" for name, n in self.splits.items())
        parts = [f"{self.imported:,} imported" + (f" ({splits})" if splits else "")]
        if self.recordings:
            parts.append(f"{self.recordings:,} recording{'s' if self.recordings > 1 else ''} cut into windows")
        if self.held_out:
            parts.append(f"{self.held_out:,} used as test items")
        if self.already:
            parts.append(f"{self.already:,} already in the project")
        parts += [f"{self.n_duplicates:,} duplicates", f"{self.n_refused:,} rejected"]
        if self.n_unreadable:
            parts.append(f"{self.n_unreadable:,} unreadable")
        return ", ".join(parts) + "."


class Details:
    """The file with every entry that was not imported without remarks; opened for the first one."""

    def __init__(self, path: Path, report: ImportReport) -> None:
        self.path, self.report = path, report
        self._file: TextIO | None = None

    def __enter__(self) -> Details:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def add(self, kind: str, name: str, reason: str) -> None:
        """Write one entry; `kind` is refused, duplicates, unreadable or notes."""
        listed = getattr(self.report, kind)
        if len(listed) < LISTED:
            listed.append((name, reason))
        if kind != "notes":
            setattr(self.report, f"n_{kind}", getattr(self.report, f"n_{kind}") + 1)
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 (closed on exit)
            self.report.details = str(self.path)
        self._file.write(json.dumps({"kind": kind, "name": name, "reason": reason}, ensure_ascii=False) + "\n")
