"""Windows of examined recordings, as arrivals for the item writer.

A whole file is cut by the options of the import. A row of a table that states start and end, or frames, gives that one
window. A label of a whole recording is not a label of its windows and is not given to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.limits import Limits
from storage.importing.item_writer import Arrival
from storage.importing.sources import Entry
from storage.media.probe_pool import Examined
from storage.media.windows import Span, WindowOptions, span_problem, window_key

WINDOW_TYPE = "audio/wav"  # of the bytes of a window


def is_recording(entry: Entry, examined: Examined) -> bool:
    return examined.measures.n_frames is not None


def problem_of(entry: Entry, examined: Examined, options: WindowOptions | None, limits: Limits) -> str:
    """Why no window is made; "" if there are any."""
    measures = examined.measures
    n_frames, rate = measures.n_frames or 0, measures.sample_rate or 1
    if entry.span is not None:
        span = entry.span.frames(rate)
        if entry.sha256 and entry.sha256 != window_key(Span(examined.sha256, *span)):
            return "Its recording and frames are not those that the manifest names by their hash."
        return span_problem(span, n_frames, rate, limits)
    assert options is not None
    if (n_windows := options.n_windows(n_frames, rate)) > limits.max_windows:
        return (
            f"It has {n_windows:,} windows; the limit is {limits.max_windows:,} (max_windows). Use longer windows or a "
            "larger hop."
        )
    return ""


def windows_of(
    entry: Entry, examined: Examined, link_path: str | None, options: WindowOptions | None
) -> Iterator[Arrival]:
    """One arrival for each window."""
    measures, rate = examined.measures, examined.measures.sample_rate or 1
    recording = Arrival(entry, examined, link_path)
    spans = [entry.span.frames(rate)] if entry.span is not None else None
    for first, last in (
        spans if spans is not None else (options or WindowOptions(seconds=1)).spans(measures.n_frames or 0, rate)
    ):
        span = Span(examined.sha256, first, last)
        found = measures._replace(reason="", media_type=WINDOW_TYPE, seconds=span.n_frames / rate)
        n_bytes = measures.header_bytes + span.n_frames * measures.frame_bytes
        n_bytes += (span.n_frames * measures.frame_bytes) & 1
        name = entry.name if entry.span is not None and entry.sha256 else window_name(entry.name, first, last, rate)
        one = entry._replace(name=name, labels=entry.labels if entry.span is not None else ())
        yield Arrival(one, Examined(found, window_key(span), n_bytes, examined.mtime_ns), link_path, span, recording)


def window_name(name: str, first_frame: int, last_frame: int, sample_rate: int) -> str:
    """The recording's name with the start and the end: "night.flac 00:05:00.000-00:05:05.000"."""
    return f"{name} {clock(first_frame / sample_rate)}-{clock((last_frame + 1) / sample_rate)}"


def clock(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    hours, rest = divmod(milliseconds, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02d}:{minutes:02d}:{rest // 1000:02d}.{rest % 1000:03d}"
