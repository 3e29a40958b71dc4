"""Labels of parts of recordings for audio programs: Audacity label tracks and Raven selection tables.

There is one text file per recording. Windows of one class that overlap or adjoin are joined into one span. A clip that
is not a window is one span of its own file, from 0 to its length.

Audacity   start <tab> end <tab> label, in seconds, without a header (File > Import > Labels)
Raven      tab-separated with a header; the columns Selection to High Freq (Hz) are those that Raven requires
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

SpanFormat = Literal["audacity", "raven"]
SPAN_FORMATS: tuple[SpanFormat, ...] = ("audacity", "raven")
SAME_PLACE = 1e-6  # seconds; ends and starts of windows come from frame numbers
RAVEN_COLUMNS = (
    "Selection", "View", "Channel", "Begin Time (s)", "End Time (s)", "Low Freq (Hz)", "High Freq (Hz)", "Begin File",
    "Annotation", "Confidence",
)  # fmt: skip


class LabeledSpan(NamedTuple):
    """A span of a recording with one class."""

    start: float  # seconds
    end: float
    label: str
    confidence: float | None = None  # of a prediction; the mean over the windows of a span


class RecordingKey(NamedTuple):
    """The file that a label track belongs to."""

    name: str
    sha256: str
    sample_rate: int


def merged(spans: Iterable[LabeledSpan]) -> list[LabeledSpan]:
    """Spans in the order of their starts: windows of one class that adjoin or overlap are joined."""
    joined: list[LabeledSpan] = []
    parts: list[list[float]] = []
    newest: dict[str, int] = {}  # label -> position of its last span
    for span in sorted(spans, key=lambda one: (one.start, one.end, one.label)):
        known = newest.get(span.label)
        if known is not None and span.start <= joined[known].end + SAME_PLACE:
            joined[known] = joined[known]._replace(end=max(joined[known].end, span.end))
        else:
            known = newest[span.label] = len(joined)
            joined.append(span)
            parts.append([])
        if span.confidence is not None:
            parts[known].append(span.confidence)
    return [
        one._replace(confidence=sum(part) / len(part)) if part else one for one, part in zip(joined, parts, strict=True)
    ]


def audacity_text(spans: Iterable[LabeledSpan]) -> str:
    return "".join(f"{one.start:.6f}\t{one.end:.6f}\t{_cell(one.label)}\n" for one in merged(spans))


def raven_text(recording: RecordingKey, spans: Iterable[LabeledSpan]) -> str:
    lines = ["\t".join(RAVEN_COLUMNS)]
    for number, one in enumerate(merged(spans), 1):
        certain = "" if one.confidence is None else f"{one.confidence:.6f}"
        cells = [number, "Spectrogram 1", 1, f"{one.start:.6f}", f"{one.end:.6f}", 0, f"{recording.sample_rate / 2:g}"]
        cells += [_cell(recording.name.rpartition("/")[2]), _cell(one.label), certain]
        lines.append("\t".join(map(str, cells)))
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """The text without tabs and line ends, which would start another cell or row."""
    return " ".join(re.split(r"[\t\r\n\v\f\x00\x85\u2028\u2029]+", text)).strip() or "unnamed"


class SpanTables:
    """Collects spans and writes one file per recording."""

    def __init__(self, form: SpanFormat) -> None:
        self._form = form
        self._spans: dict[RecordingKey, list[LabeledSpan]] = {}

    def add(self, recording: RecordingKey, span: LabeledSpan) -> None:
        self._spans.setdefault(recording, []).append(span)

    def add_row(self, values: Mapping[str, Any]) -> None:
        """Add a row of an export; rows without a length (pictures) have no span."""
        if values["end"] is None:
            return
        name, sha256 = values["recording"] or values["name"], values["recording_sha256"] or values["sha256"]
        span = LabeledSpan(float(values["start"]), float(values["end"]), values["label"], values["confidence"])
        self.add(RecordingKey(name, sha256, int(values["sample_rate"] or 0)), span)

    def write(self, folder: Path) -> list[Path]:
        """Write the files, named after the recordings; equal names get the first letters of the hash."""
        folder.mkdir(parents=True, exist_ok=True)
        names: dict[str, int] = {}
        for recording in self._spans:
            names[_safe(recording.name).lower()] = names.get(_safe(recording.name).lower(), 0) + 1
        written = []
        for recording, spans in self._spans.items():
            name = _safe(recording.name)
            if names[name.lower()] > 1:
                name = f"{name}.{recording.sha256[:12]}"
            raven = self._form == "raven"
            path = folder / (f"{name}.Table.1.selections.txt" if raven else f"{name}.txt")
            text = raven_text(recording, spans) if raven else audacity_text(spans)
            path.write_text(text, encoding="utf-8", newline="")
            written.append(path)
        return written


def _safe(name: str) -> str:
    """A file name for a recording: its name with folders joined and unusual characters replaced."""
    plain = re.sub(r"[^\w.\-]+", "_", name.replace("/", "__"))
    return plain.strip("._")[:120] or "recording"
