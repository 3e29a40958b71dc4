"""What the command line says: results on stdout, progress and problems on stderr, one sentence for each problem."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core.errors import Cancelled, WinnowError
from core.types import Progress, Report
from storage.system.atomic_files import write_file

PROGRESS_FOLDER = "WINNOW_PROGRESS_FOLDER"  # set for jobs that a page started: progress goes to files
PROGRESS_SECONDS = 0.5


def show(result: dict[str, Any] | list[Any], as_json: bool, sentence: str | Callable[[], str]) -> None:
    """The result of a command: one JSON document, or words."""
    if as_json:
        text = json.dumps(result, ensure_ascii=False, default=str)
    else:
        text = sentence if isinstance(sentence, str) else sentence()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tell(sentence: str) -> None:
    """A remark beside the result."""
    sys.stderr.write(sentence + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Report]:
    """A bar on stderr that follows a `Report`; nothing at all when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if folder := os.environ.get(PROGRESS_FOLDER):
        yield folder_report(Path(folder))
        return
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


def folder_report(folder: Path) -> Report:
    """Progress as a file, at most twice a second; a file named `cancel` beside it ends the work."""
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last < PROGRESS_SECONDS and progress.done != progress.total:
            return
        last = time.monotonic()
        if (folder / "cancel").exists():
            raise Cancelled("The job was cancelled.")
        told = {"stage": progress.stage, "done": progress.done, "total": progress.total, "note": progress.note}
        write_file(folder / "progress.json", json.dumps(told))

    return report


def explain(problem: BaseException) -> tuple[str, int]:
    """(one sentence, exit code) for anything that ended a command."""
    if isinstance(problem, KeyboardInterrupt | Cancelled):
        return "Cancelled. Finished work is kept.", 130
    if isinstance(problem, WinnowError):
        return _one_line(str(problem)), 1
    if isinstance(problem, OSError):
        place = f" ({problem.filename})" if problem.filename else ""
        return _one_line(f"{problem.strerror or problem}{place}. Check the path and its permissions."), 1
    if isinstance(problem, ModuleNotFoundError):
        return f"The package {problem.name} is missing. Install the requirements: make setup.", 1
    kind = type(problem).__name__
    text = _one_line(f"Unexpected error ({kind}: {problem}). Set WINNOW_DEBUG=1 to see the traceback.")
    return text, 1


def _one_line(text: str) -> str:
    return " ".join(text.split())


def complain(problem: BaseException) -> int:
    """Write the sentence (and with WINNOW_DEBUG the trace) to stderr; returns the exit code."""
    if os.environ.get("WINNOW_DEBUG"):
        traceback.print_exception(problem)
    sentence, code = explain(problem)
    tell(sentence)
    return code
