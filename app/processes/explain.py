"""A one-sentence explanation and an exit code for an exception that ended a command or a job."""

from __future__ import annotations

from core.errors import Cancelled, WinnowError


def explain(problem: BaseException) -> tuple[str, int]:
    """Return (one sentence, exit code) for an exception that ended a command."""
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
