"""The output of the command line: results on stdout, progress and errors on stderr, one sentence for each error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from app.processes.explain import explain
from core.types import Progress, Report


def show(result: dict[str, Any] | list[Any], as_json: bool, sentence: str | Callable[[], str]) -> None:
    """Print the result of a command, as one JSON document or as text."""
    if as_json:
        text = json.dumps(result, ensure_ascii=False, default=str)
    else:
        text = sentence if isinstance(sentence, str) else sentence()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_note(sentence: str) -> None:
    """Print a sentence on stderr, separate from the result."""
    sys.stderr.write(sentence + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """A progress bar on stderr. Yields the `Report` that updates it. Nothing is shown if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: None
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, note="")

        def report(progress: Progress) -> None:
            description = f"{title}: {progress.stage}" if progress.stage else title
            bar.update(
                task,
                completed=progress.done,
                total=progress.total or None,
                description=description,
                note=progress.note[:60],
            )

        yield report


def print_error(problem: BaseException) -> int:
    """Print the sentence for an error (and with WINNOW_DEBUG the traceback) on stderr. Returns the exit code."""
    if os.environ.get("WINNOW_DEBUG"):
        traceback.print_exception(problem)
    sentence, code = explain(problem)
    print_note(sentence)
    return code
