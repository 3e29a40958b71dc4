"""`python -m app summarize`: selects a small weighted subset, measures its accuracy, and exports it."""

from __future__ import annotations

from typing import Any

from app.cli.output import progress_bar, show
from app.jobs.operations import export_summary
from app.jobs.requests import SummaryRequest
from app.views.cards.summary_verdict import verdict
from app.views.text import count
from storage.database.store import Store


def summarize_and_report(store: Store, request: SummaryRequest, as_json: bool) -> None:
    """Summarize, export if there is a target, and print the accuracy of the summary."""
    with progress_bar("Summarizing") as report:
        result = export_summary(store, request, report)
    show(result, as_json, lambda: words(result))


def words(result: dict[str, Any]) -> str:
    """The result of a summary as lines of text."""
    kind = "weighted" if result["weighted"] else "unweighted"
    lines = [
        f"{result['items']:,} of {result['n_labeled']:,} labeled items ({kind}), measured on {result['measured_on']}."
    ]
    lines += [f"  {sentence(worth)}" for worth in result["accuracy"]]
    lines += [verdict(result)[1]] if result["accuracy"] else []
    lines += [f"Note: {note}." for note in (*result["notes"], *result["solver_notes"])]
    if "target" in result:
        lines.append(f"{count(result['rows'], 'row')} in {result['target']}.")
    return "\n".join(lines)


def sentence(worth: dict[str, Any]) -> str:
    """The accuracy of a summary for one model, as a sentence."""
    spread = f"{100 * worth['uniform_mean']:.1f} ± {100 * worth['uniform_deviation']:.1f} %"
    return (
        f"{worth['model']}: {worth['summary']:.1%} with the summary, {spread} with a random "
        f"subset of the same size ({len(worth['uniform'])} draws), {worth['everything']:.1%} with all."
    )
