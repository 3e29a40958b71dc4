"""The import command: preview, progress and report."""

from __future__ import annotations

from app.cli.output import print_note, progress_bar, show
from app.cli.projects import open_store
from app.jobs.operations import IMPORT_CANCELLED, import_error, import_media, preview_as_dict, preview_import
from app.jobs.requests import ImportRequest, PreviewRequest
from app.views.text import count
from core.config import require
from storage.database.store import Store
from storage.importing.preview import Preview
from storage.importing.reading import Findings
from storage.importing.reports import ImportReport
from storage.media.windows import WindowOptions


def preview_or_import(request: ImportRequest, as_json: bool, *, preview: bool) -> int:
    """Carry out an import, or print what it would do. Returns the exit code."""
    with open_store() as store:
        if preview:
            asked = PreviewRequest(source=request.source, project=request.project, options=request.options)
            return show_preview(store, asked, as_json)
        return import_and_report(store, request, as_json)


def show_preview(store: Store, request: PreviewRequest, as_json: bool) -> int:
    """Print what an import would do. Nothing is written. Returns the exit code."""
    with progress_bar("Reading files") as report:
        found = preview_import(store, request, report)
    show(preview_as_dict(found), as_json, lambda: _words(found))
    return 0


def import_and_report(store: Store, request: ImportRequest, as_json: bool) -> int:
    """Import and print the report. Returns the exit code: 1 if nothing could be imported, 130 if it was cancelled."""
    with progress_bar("Importing") as report:
        project, done = import_media(store, request, report)
    show({"project": project, **done.as_dict()}, as_json, lambda: _report(done))
    if done.status == "cancelled":
        print_note(IMPORT_CANCELLED)
        return 130
    return 0 if import_error(done) is None else 1


def window_options(seconds: float | None, hop: float | None) -> WindowOptions | None:
    """The window options of an import, or None if recordings are not cut."""
    require(seconds is not None or hop is None, "--hop needs --windows: the length of a window in seconds.")
    return None if seconds is None else WindowOptions(seconds=seconds, hop=hop or 0.0)


def _words(seen: Preview) -> str:
    lines = [
        f"{count(seen.n_entries, 'entry', 'entries')}, {seen.n_problems:,} with problems, "
        f"{count(seen.n_test, 'test item')}, {count(seen.n_validation, 'validation item')}, "
        f"{seen.n_unlabeled:,} without a label."
    ]
    lines += [f"{seen.cut}."] if seen.cut else []
    lines += _reading_words(seen.found)
    if seen.splits:
        lines.append("Splits: " + ", ".join(f"{name} {count:,}" for name, count in seen.splits.items()) + ".")
    lines += [f"  {name}: {count:,}" for name, count in sorted(seen.labels.items())]
    lines += [f"  {label!r} counts as the class {name!r}." for label, name in seen.class_of.items()]
    if seen.new_classes:
        lines.append(f"New classes: {', '.join(map(repr, seen.new_classes))}.")
    lines += [f"Warning: {one}" for one in seen.found.warnings]
    lines += [f"Question (--{one.option.replace('_', '-')}): {one.text}" for one in seen.found.questions]
    lines += [f"  {f'row {one.row}: ' if one.row else ''}{one.name!r}: {one.problem}" for one in seen.problems]
    if seen.n_problems > len(seen.problems):
        lines.append(f"  … and {seen.n_problems - len(seen.problems):,} more.")
    return "\n".join(lines)


def _reading_words(found: Findings) -> list[str]:
    """Lines of text on the source of labels, the columns of the table and the class names."""
    lines = [f"Labels from: {found.labels_from}."] if found.labels_from else []
    if found.columns:
        columns = ", ".join(f"{what} = {name!r}" for what, name in found.columns.items())
        lines.append(f"Columns: {columns}; files in {found.media_root or 'the folder of the table'}.")
        lines += ["  " + ", ".join(f"{name}: {value}" for name, value in row.items()) for row in found.first_rows]
    if found.label_names:
        names = list(found.label_names.items())
        shown = ", ".join(f"{value} = {name}" for value, name in names[:10])
        lines.append(f"Class names: {shown}{' …' if len(names) > 10 else ''}.")
    return lines


def _report(done: ImportReport) -> str:
    lines = [done.sentence()]
    lines += [f"Warning: {one}" for one in done.warnings]
    for title, listed in (("Rejected", done.refused), ("Unreadable", done.unreadable), ("Unchanged", done.notes)):
        lines += [f"  {title}: {name!r}: {reason}" for name, reason in listed[:10]]
    lines += [f"  Duplicate: {name!r} equals {equal!r}." for name, equal in done.duplicates[:10]]
    if done.details:
        lines.append(f"Full list: {done.details}")
    return "\n".join(lines)
