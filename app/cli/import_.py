"""The import command: preview, progress and report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli.output import progress_bar, show, tell
from core.errors import InvalidInput, NotFound
from core.types import MediaKind
from storage.database.store import Store
from storage.importing.open import open_source
from storage.importing.preview import ClassRules, Preview, preview
from storage.importing.reports import ImportReport
from storage.importing.run import ImportOptions, locator, run_import
from storage.importing.sources import Source
from storage.importing.zip_reader import BadEntry
from storage.media.types import HEAD_BYTES, identify, media_kind
from storage.projects.projects import ProjectRow, create_project, get_project


def preview_source(store: Store, path: Path, project_name: str, options: ImportOptions, *, as_json: bool) -> int:
    """Show what an import of `path` would do; nothing is written."""
    source = open_source(path, options.limits, locator(store))
    try:
        project = _project(store, project_name)
        rules = ClassRules({}, options.classes)
        if project is not None:
            rules = ClassRules.of_project(store, project.id, options.classes)
        kind = project.kind if project is not None else ""
        with progress_bar("Reading files") as report:
            seen = preview(source, None if options.labels == "ignore" else rules, kind=kind, report=report)
    finally:
        source.close()
    show(_as_dict(seen), as_json, lambda: _words(seen))
    return 0


def import_source(
    store: Store, path: Path, project_name: str, options: ImportOptions, *, kind: MediaKind | None, as_json: bool
) -> int:
    """Import `path`; 1 when nothing could be taken from it, else 0."""
    source = open_source(path, options.limits, locator(store))
    try:
        project = _project(store, project_name)
        if project is None:
            project = create_project(store, project_name, kind or kind_of(source))
        with progress_bar("Importing") as report:
            done = run_import(store, project.id, source, options, report)
    finally:
        source.close()
    show({"project": project.name, **done.as_dict()}, as_json, lambda: _report(done))
    if done.status == "cancelled":
        tell("The import was cancelled. Imported items are kept. Run it again to resume.")
        return 130
    return 0 if done.imported + done.already + done.n_duplicates else 1


def _project(store: Store, name: str) -> ProjectRow | None:
    try:
        return get_project(store, name)
    except NotFound:
        return None


def kind_of(source: Source) -> MediaKind:
    """Of the first file that is audio or an image."""
    for entry in source.entries():
        if entry.place is None or entry.problem:
            continue
        try:
            head = source.head(entry.place, HEAD_BYTES)
        except (OSError, BadEntry):
            continue
        found = "audio/mpeg" if head.startswith(b"ID3") else identify(head, lambda offset, n: b"")
        if found is not None:
            return media_kind(found)
    raise InvalidInput(f"{source.description} contains no audio clips or pictures that can be imported.")


def _as_dict(seen: Preview) -> dict[str, Any]:
    return asdict(seen) | {"labels": dict(seen.labels)}


def _words(seen: Preview) -> str:
    lines = [f"{seen.n_entries:,} entries, {seen.n_problems:,} with problems, {seen.n_test:,} test items."]
    lines += [f"  {name}: {count:,}" for name, count in sorted(seen.labels.items())]
    if seen.new_classes:
        lines.append(f"New classes: {', '.join(map(repr, seen.new_classes))}.")
    lines += [f"  {f'row {one.row}: ' if one.row else ''}{one.name!r}: {one.problem}" for one in seen.problems]
    if seen.n_problems > len(seen.problems):
        lines.append(f"  … and {seen.n_problems - len(seen.problems):,} more.")
    return "\n".join(lines)


def _report(done: ImportReport) -> str:
    lines = [done.sentence()]
    for title, listed in (("Rejected", done.refused), ("Unreadable", done.unreadable), ("Unchanged", done.notes)):
        lines += [f"  {title}: {name!r}: {reason}" for name, reason in listed[:10]]
    lines += [f"  Duplicate: {name!r} equals {equal!r}." for name, equal in done.duplicates[:10]]
    if done.details:
        lines.append(f"Full list: {done.details}")
    return "\n".join(lines)
