"""`python -m app summarize`: a small set with weights, what it is worth, and its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.cli.output import progress_bar, show
from app.jobs.summarize import Wish, summarize_project
from storage.database.store import Store
from storage.exporting.rows import ExportOptions
from storage.exporting.run import check_target, export_project


def run_summary(
    store: Store, project_id: int, target: Path | None, wish: Wish, options: ExportOptions, as_json: bool
) -> None:
    """Summarize and, with a target, export; the target is looked at before anything is computed."""
    if target is not None:
        check_target(target, options)
    with progress_bar("Summarizing") as report:
        found = summarize_project(store, project_id, wish, report)
        told: dict[str, Any] = dict(found.about)
        if target is not None:
            done = export_project(store, project_id, target, options, report, weights=found)
            told |= {"target": done.target, "rows": done.rows, "media_missing": done.media_missing}
    show(told, as_json, lambda: words(told))


def words(told: dict[str, Any]) -> str:
    """The result as lines of text."""
    kind = "weighted" if told["weighted"] else "unweighted"
    lines = [f"{told['items']:,} of {told['n_labeled']:,} labeled items ({kind}), measured on {told['measured_on']}."]
    lines += [f"  {sentence(worth)}" for worth in told["accuracy"]]
    lines += [f"Note: {note}." for note in (*told["notes"], *told["solver_notes"])]
    if "target" in told:
        lines.append(f"{told['rows']:,} rows in {told['target']}.")
    return "\n".join(lines)


def sentence(worth: dict[str, Any]) -> str:
    spread = f"{100 * worth['uniform_mean']:.1f} ± {100 * worth['uniform_deviation']:.1f} %"
    return (
        f"{worth['model']}: {worth['summary']:.1%} with the summary, {spread} with a random "
        f"subset of the same size ({len(worth['uniform'])} draws), {worth['everything']:.1%} with all."
    )
