"""Tables as a source: every row becomes an entry, checked before any media is read.

A row names a file below the source's folder (or inside its archive) by a relative path. Addresses are refused: nothing
is downloaded. A row of an export may name bytes that are already in the store by their hash alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from storage.database.strings import count
from storage.importing.folder import head_of_file
from storage.importing.folder_names import is_media_name
from storage.importing.reading import Findings, Question
from storage.importing.sources import CellPlace, Entry, FilePlace, KeptPlace, PackedPlace, Place
from storage.importing.tables.finders import InvalidRow
from storage.importing.tables.label_table import LabelTable, Locate


class ManifestSource:
    """The rows of one or more tables as entries. With `count_others`, files that no row names are counted."""

    strict = True

    def __init__(
        self,
        tables: Sequence[LabelTable],
        description: str,
        locate: Locate = lambda sha256: None,
        scratch: tempfile.TemporaryDirectory[str] | None = None,
        *,
        questions: Sequence[Question] = (),
        count_others: bool = False,
    ) -> None:
        self.tables, self.description, self._locate, self._scratch = tables, description, locate, scratch
        self._questions, self._count_others = questions, count_others
        self.choices: Sequence[str] = ()  # all tables beside the files
        self._seen: dict[int, int] = {}  # hash of a place -> the row that names it

    def entries(self) -> Iterator[Entry]:
        self._seen = {}
        for position, table in enumerate(self.tables):
            for row in table.rows():
                yield self._checked(table.entry(row, position, self._locate))

    def _checked(self, entry: Entry) -> Entry:
        """The entry, with a problem if another row names the same file."""
        if entry.place is None:
            return entry
        key = hash(entry.place) if entry.span is None else hash((entry.place, entry.span))
        if key in self._seen:
            what = "file" if entry.span is None else "part of the same file"
            problem = f"Row {self._seen[key]} names the same {what}."
            return Entry(entry.name, problem=problem, row=entry.row)
        self._seen[key] = entry.row
        if entry.span is not None:
            self._seen.setdefault(hash(entry.place), entry.row)  # a row names the file, too
        return entry

    def findings(self) -> Findings:
        found = Findings(questions=list(self._questions), choices=list(self.choices))
        for table in self.tables:
            table.describe(found)
        if self._count_others and (n_others := self._n_others()):
            found.warnings.append(
                f"{count(n_others, 'file is', 'files are')} in no row of {found.labels_from} and not imported."
            )
        return found

    def _n_others(self) -> int:
        """The number of files beside the table that no row names; 0 before the first pass over the entries."""
        finder, n_others = self.tables[0].finder, 0
        if not self._seen or any(table.columns.path == "" for table in self.tables):
            return 0
        for path in finder.all_files():
            if is_media_name(path):
                try:
                    n_others += hash(finder.find(path)) not in self._seen
                except InvalidRow:
                    n_others += 1
        return n_others

    def head(self, place: Place, n_bytes: int) -> bytes:
        if isinstance(place, FilePlace):
            return head_of_file(place.path, n_bytes)
        if isinstance(place, KeptPlace):
            with place.media.open(place.sha256) as stream:
                return stream.read(n_bytes)
        if isinstance(place, CellPlace):
            return self.tables[place.table].media.read(place.row)[:n_bytes]
        return self.tables[0].finder.head(place, n_bytes)

    def unpack(self, place: PackedPlace | CellPlace, target: Path) -> None:
        if isinstance(place, CellPlace):
            target.write_bytes(self.tables[place.table].media.read(place.row))
        else:
            self.tables[0].finder.unpack(place, target)

    def close(self) -> None:
        for table in self.tables:
            table.close()
        if self._scratch is not None:
            self._scratch.cleanup()
