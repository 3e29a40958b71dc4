"""Checks an exported folder against its description: the hashes of files, and the rows of tables.

An export of labels is described by manifest.json, a model by model.json. Nothing is written and no store is needed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from core.errors import InvalidInput
from core.types import Progress, Report, ignore
from storage.database.strings import count
from storage.exporting.provenance import RowDigest
from storage.exporting.target import MANIFESTS, described, is_media
from storage.importing.tables.readers import read_table

REPORT_EVERY = 200  # files or rows


@dataclass(slots=True, kw_only=True)
class Verification:
    """What was checked, and one sentence for each problem."""

    folder: str
    kind: Literal["export", "model"]
    source: dict[str, Any]  # round, seed and settings stated in the folder
    n_files: int = 0
    n_rows: int = 0
    problems: list[str] = field(default_factory=list)


def verify_folder(folder: Path | str, report: Report = ignore) -> Verification:
    """Check an exported folder. Raises InvalidInput if the folder is not an export."""
    folder = Path(folder).expanduser().absolute()
    name, about = _description(folder)
    if name == "model.json":
        made = about.get("round") or {}
        source = {"round": made.get("number"), "name": made.get("name", ""), "seed": about.get("seed")}
        source |= {"settings": about.get("settings"), "encoder": about.get("encoder")}
        found = Verification(folder=str(folder), kind="model", source=source)
    else:
        made = about.get("round") or {}
        source = {"round": made.get("number"), "name": made.get("name", ""), "seed": made.get("seed")}
        source |= {"settings": made.get("settings"), "encoder": made.get("encoder")}
        found = Verification(folder=str(folder), kind="export", source=source)
    listed = _check_files(folder, about, found, report)
    if found.kind == "model":
        _check_model(about, found)
    elif (about.get("content") or {}).get("format") != "hugging-face":  # has tables per split: checked as files
        _check_rows(folder, about, found, report)
    _check_others(folder, name, listed, found, report)
    return found


def _description(folder: Path) -> tuple[str, dict[str, Any]]:
    if folder.suffix == ".zip" and folder.is_file():
        raise InvalidInput(f"{folder.name} is a zip file. Unpack it and verify the folder.")
    formats = {"manifest.json": "winnow-export", "model.json": "winnow-model"}
    for name in MANIFESTS:
        if (folder / name).is_file():
            try:
                about = json.loads((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError) as problem:
                raise InvalidInput(f"{folder / name} cannot be read: {problem}.") from problem
            if isinstance(about, dict) and about.get("format") == formats[name]:
                return name, about
    raise InvalidInput(f"{folder} is not an export of Winnow: it has no {' or '.join(MANIFESTS)} that Winnow wrote.")


def _check_files(folder: Path, about: Mapping[str, Any], found: Verification, report: Report) -> set[str]:
    """Compare every listed file with its hash and size; returns the listed names."""
    listed: dict[str, Any] = about.get("files") or {}
    for number, (name, wanted) in enumerate(sorted(listed.items())):
        report(Progress("verify", number, len(listed), name))
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            found.problems.append(f"The list of files names {name}, which is outside the folder.")
            continue
        found.n_files += 1
        if not (folder / name).is_file():
            found.problems.append(f"{name} is missing.")
            continue
        there = described(folder / name)
        if there != {"sha256": wanted.get("sha256"), "n_bytes": wanted.get("n_bytes")}:
            found.problems.append(
                f"{name} has changed: {there['n_bytes']:,} bytes with SHA-256 {there['sha256'][:12]}…, expected "
                f"{wanted.get('n_bytes'):,} bytes with {str(wanted.get('sha256'))[:12]}…."
            )
    return set(listed)


def _check_model(about: Mapping[str, Any], found: Verification) -> None:
    """Check that the weights are those that the round stored."""
    stored = (about.get("network") or {}).get("sha256")
    written = ((about.get("files") or {}).get("model.safetensors") or {}).get("sha256")
    if stored != written:
        found.problems.append(
            f"model.safetensors is listed with SHA-256 {str(written)[:12]}…, but the round stored {str(stored)[:12]}…."
        )


def _check_rows(folder: Path, about: Mapping[str, Any], found: Verification, report: Report) -> None:
    """Count the rows and labels of the table, check their files, and compare the digest of the rows."""
    counts = about.get("counts") or {}
    labels: Counter[str] = Counter()
    digest = RowDigest()
    for table in about.get("tables") or ():
        if not (folder / table).is_file():
            continue  # reported with the files
        for values in _rows(folder / table, found):
            found.n_rows += 1
            labels[str(values.get("label") or "")] += 1
            digest.add(values)
            _check_row_file(folder, table, found.n_rows, values, found)
            if found.n_rows % REPORT_EVERY == 0:
                report(Progress("verify", found.n_rows, int(counts.get("rows") or 0), table))
    if found.n_rows != counts.get("rows"):
        found.problems.append(f"The table has {count(found.n_rows, 'row')}; manifest.json says {counts.get('rows')}.")
    for name in sorted({*labels, *(counts.get("labels") or {})}):
        wanted = (counts.get("labels") or {}).get(name, 0)
        if labels[name] != wanted:
            found.problems.append(
                f"{count(labels[name], 'row has', 'rows have')} the label {name!r}; manifest.json says {wanted:,}."
            )
    if about.get("rows_sha256") not in (None, digest.hexdigest()):  # exports of older versions have none
        found.problems.append("The items, labels or order of the rows have changed: the row digest differs.")


def _rows(table: Path, found: Verification) -> Iterator[Mapping[str, Any]]:
    """The exported values of each row. A Label Studio task has them under `meta.winnow`."""
    if table.name == "tasks.json":
        for task in json.loads(table.read_text(encoding="utf-8")):
            yield (task.get("meta") or {}).get("winnow") or {}
        return
    for row in read_table(table):
        if row.problem:
            found.problems.append(f"{table.name}, row {row.number}: {row.problem}")
        else:
            yield row.values


def _check_row_file(folder: Path, table: str, number: int, values: Mapping[str, Any], found: Verification) -> None:
    path = str(values.get("path") or "")
    if not path:
        return
    if PurePosixPath(path).stem != values.get("sha256"):
        found.problems.append(f"{table}, row {number}: the file {path} is not that of item {values.get('sha256')}.")
    elif not (folder / path).is_file():
        found.problems.append(f"{table}, row {number}: the file {path} is missing.")


def _check_others(folder: Path, name: str, listed: set[str], found: Verification, report: Report) -> None:
    """Check the media files, which are named after their hash, and report any other file that is not listed."""
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).as_posix()
        if not path.is_file() or place in listed or place == name:
            continue
        if found.kind == "export" and is_media(path):
            found.n_files += 1
            if described(path)["sha256"] != path.stem:
                found.problems.append(f"{place} has changed: its bytes do not have the hash that it is named after.")
            if found.n_files % REPORT_EVERY == 0:
                report(Progress("verify", found.n_files, 0, place))
        else:
            found.problems.append(f"{place} is not listed in {name}: it was added later.")
