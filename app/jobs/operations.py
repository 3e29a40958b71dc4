"""Imports, exports, summaries, models and predictions: one function for each request of `app.jobs.requests`.

The command line calls these functions in its own process and a page calls them through a job, so both do the same.
`run` chooses the function by the type of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.jobs.requests import (
    AuditionRequest,
    DeletionRequest,
    EmbeddingsRequest,
    ExportRequest,
    ImportRequest,
    ModelRequest,
    PredictionRequest,
    PreviewRequest,
    Request,
    SummaryRequest,
)
from core.errors import Cancelled, InvalidInput, NotFound, WinnowError
from core.types import Report
from storage.database.store import Store
from storage.exporting.run import ExportReport, export_project
from storage.exporting.target import check_target
from storage.importing.open import open_source
from storage.importing.preview import ClassRules, Preview, preview
from storage.importing.reports import ImportReport
from storage.importing.run import check_source, locator, run_import
from storage.importing.sources import find_media_kind
from storage.importing.windows.lengths import suggestion as windows_suggestion
from storage.projects.deletion import run_deletion
from storage.projects.projects import ProjectRow, create_project, get_project
from storage.projects.recordings import WINDOW_GUIDELINES

MISSING_NAMED = 100  # items without embeddings in the result of a job
IMPORT_CANCELLED = "The import was cancelled. Imported items are kept. Run it again to resume."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a job as JSON values. If `error` is set, the job failed or was cancelled, and the result describes
    the work that was done before."""

    result: Mapping[str, Any]
    error: WinnowError | None = None


def run(store: Store, request: Request, report: Report) -> Outcome:
    """Carry out `request`. Raises a `WinnowError` if it fails without a partial result."""
    match request:
        case PreviewRequest():
            return Outcome(preview_as_dict(preview_import(store, request, report)))
        case ImportRequest():
            name, done = import_media(store, request, report)
            return Outcome({"project": name, **done.as_dict()}, import_error(done))
        case ExportRequest():
            return Outcome(asdict(export_labels(store, request, report)))
        case SummaryRequest():
            return Outcome(export_summary(store, request, report))
        case DeletionRequest():
            deleted = run_deletion(store, request.deletion_id, report)
            return Outcome({name: n for name, n in deleted.counts.items() if name != "pending"})
        case ModelRequest():
            return Outcome(export_round_model(store, request, report))
        case PredictionRequest():
            return Outcome(predict(store, request, report))
        case EmbeddingsRequest():
            return Outcome(keep_embeddings(store, request, report))
        case AuditionRequest():
            return Outcome(run_audition(store, request, report))


def preview_import(store: Store, request: PreviewRequest, report: Report) -> Preview:
    """Determine what an import of the source would do. Nothing is written."""
    options = request.options
    source = open_source(Path(request.source), options.source_limits(), locator(store), options.reading)
    try:
        project = _project(store, request.project)
        rules = ClassRules({}, options.classes)
        if project is not None:
            rules = ClassRules.of_project(store, project.id, options.classes)
        kind = project.kind if project is not None else ""
        rules_or_none = None if options.labels == "ignore" else rules
        seen = preview(
            source,
            rules_or_none,
            kind=kind,
            validation=options.validation,
            windows=options.windows,
            limits=options.limits,
            report=report,
        )
        if seen.n_long and options.windows is None:
            seen.found.warnings.append(windows_suggestion(seen.n_long, seen.longest_seconds))
        return seen
    finally:
        source.close()


def preview_as_dict(found: Preview) -> dict[str, Any]:
    return asdict(found) | {"labels": dict(found.labels), "splits": dict(found.splits)}


def import_media(store: Store, request: ImportRequest, report: Report) -> tuple[str, ImportReport]:
    """Import the source. Returns the name of the project and a report; a cancelled import reports what it imported."""
    options = request.options
    source = open_source(Path(request.source), options.source_limits(), locator(store), options.reading)
    try:
        project = _project(store, request.project)
        if project is None:
            check_source(source, options)  # otherwise an invalid source would leave an empty project behind
            kind = request.kind or find_media_kind(source)
            guidelines = WINDOW_GUIDELINES if options.windows is not None else ""
            project = create_project(store, request.project, kind, guidelines=guidelines)
        return project.name, run_import(store, project.id, source, options, report)
    finally:
        source.close()


def import_error(done: ImportReport) -> WinnowError | None:
    """The error of an import that was cancelled or imported nothing. None if it found at least one usable file."""
    if done.status == "cancelled":
        return Cancelled(IMPORT_CANCELLED)
    if not done.imported + done.already + done.n_duplicates:
        return InvalidInput(f"Nothing was imported from {done.source}: {done.sentence()}")
    return None


def export_labels(store: Store, request: ExportRequest, report: Report) -> ExportReport:
    """Write the export to the request's target."""
    return export_project(store, request.project_id, Path(request.target), request.options, report)


def export_summary(store: Store, request: SummaryRequest, report: Report) -> dict[str, Any]:
    """Summarize the labeled items and, if there is a target, export the summary. The target is checked first."""
    from app.jobs.summarize import summarize_project  # loads torch; imports and exports start without it

    target = None if request.target is None else Path(request.target)
    if target is not None:
        check_target(target, request.options.overwrite)
    found = summarize_project(store, request.project_id, request.summary, report)
    result: dict[str, Any] = dict(found.about)
    if target is not None:
        done = export_project(store, request.project_id, target, request.options, report, weights=found)
        result |= {"target": done.target, "rows": done.rows, "media_missing": done.media_missing}
    return result


def export_round_model(store: Store, request: ModelRequest, report: Report) -> dict[str, Any]:
    """Write the model of a round. The target is checked first."""
    from app.jobs.model_export import export_model  # loads torch; imports and exports start without it

    target = check_target(Path(request.target), request.overwrite)
    return export_model(store, request.project_id, target, request.round, overwrite=request.overwrite, report=report)


def predict(store: Store, request: PredictionRequest, report: Report) -> dict[str, Any]:
    """Write a table of predictions."""
    from app.jobs.prediction_jobs import run_prediction  # loads torch; imports and exports start without it

    return run_prediction(store, request, report)


def keep_embeddings(store: Store, request: EmbeddingsRequest, report: Report) -> dict[str, Any]:
    """Add the embeddings as an encoder. The result names the first items that have no row."""
    from app.jobs.embeddings import add_embeddings  # loads onnxruntime; imports and exports start without it

    project = get_project(store, request.project_id)
    found = add_embeddings(store, project, Path(request.source), request.name, report=report)
    return found | {"n_missing": len(found["missing"]), "missing": found["missing"][:MISSING_NAMED]}


def run_audition(store: Store, request: AuditionRequest, report: Report) -> dict[str, Any]:
    """Compare the encoders of a project."""
    from app.jobs.audition import audition  # loads torch; imports and exports start without it

    return audition(store, get_project(store, request.project_id), report)


def _project(store: Store, name: str) -> ProjectRow | None:
    try:
        return get_project(store, name)
    except NotFound:
        return None
