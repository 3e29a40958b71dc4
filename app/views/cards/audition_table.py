"""The audition of encoders as rows and sentences, shared by Train and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.views.durations import duration
from app.views.text import count


def audition_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(encoder, accuracy with its interval, time, note) for each row of an audition."""
    return [
        (str(row["title"]), _accuracy(row), duration(row["seconds"]) if row["n"] else "", _note(row, found))
        for row in found["rows"]
    ]


def _accuracy(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return "—"
    return f"{100 * row['right'] / row['n']:.0f} % ({100 * row['low']:.0f} to {100 * row['high']:.0f})"


def _note(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if row["problem"]:
        return str(row["problem"])
    if not row["identity"]:
        return "a head on the inputs; a network trained from scratch is usually better"
    return "Automatic compares this one with training from scratch" if row["name"] == found["best"] else ""


def about_audition(found: Mapping[str, Any]) -> str:
    """A sentence on what was measured, and on how many labels."""
    n = max((row["n"] for row in found["rows"]), default=0)
    if not n:
        return f"{count(found['n_labels'], 'label is', 'labels are')} too few: a class needs at least two."
    return f"Share of {n:,} labels that a head predicts correctly without using them, with the 95 % interval."


def audition_lines(found: Mapping[str, Any]) -> list[str]:
    """The audition table as lines of text."""
    rows = audition_rows(found)
    widths = [max([len(row[place]) for row in rows], default=0) for place in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    return [about_audition(found), *lines]
