"""The bytes of any item: a file as imported, or a window as a small WAV file made from its recording.

A file is compared with its hash whenever it is read. A recording is compared once per process and state of the file
(size, modification time, inode); after that a window costs the read of its own range.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from storage.media.folder import MediaChanged, MediaFolder, MediaMissing, file_state
from storage.media.wav import Sliceable
from storage.media.windows import FileContent, RecordingEnded, Span, cut


class Content(NamedTuple):
    """Where the bytes of an item are."""

    sha256: str
    link_path: str | None = None
    span: Span | None = None  # of a window

    @property
    def stored_sha256(self) -> str:
        """The hash of the file that holds the bytes."""
        return self.sha256 if self.span is None else self.span.recording


def content_of(row: Any) -> Content:
    """The content of a row with the columns sha256, link_path, recording_sha256, first_frame, last_frame of `items`."""
    span = None if row.recording_sha256 is None else Span(row.recording_sha256, row.first_frame, row.last_frame)
    return Content(row.sha256, row.link_path, span)


def read_content(media: MediaFolder, content: Content) -> bytes:
    """The bytes. Raises `MediaMissing` or `MediaChanged` if they are not those that were imported, `InvalidInput` if
    the frames of a window cannot be decoded."""
    if content.span is None:
        return media.read(content.sha256, content.link_path)
    return read_window(media, content.span, content.link_path)


def check_content(media: MediaFolder, content: Content) -> None:
    """Like `read_content`, in constant memory and without decoding."""
    if content.span is None:
        media.check(content.sha256, content.link_path)
    else:
        media.verified(content.span.recording, content.link_path)


def read_window(media: MediaFolder, span: Span, link_path: str | None = None) -> bytes:
    """Frames of a recording as a WAV file."""
    path = media.verified(span.recording, link_path)
    if path is None:
        return _cut(media.read(span.recording), span)
    before = file_state(path)
    with RecordingFile(path) as data:
        found = _cut(data, span)
    if file_state(path) != before:
        raise MediaChanged(f"The file {path} changed while it was read.")
    return found


class RecordingFile:
    """An open file as a `Sliceable`; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1

    def __enter__(self) -> Sliceable:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        except OSError as problem:
            raise MediaMissing(f"The file {self._path} cannot be read: {problem.strerror}.") from problem
        return FileContent(self._descriptor)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _cut(data: Sliceable, span: Span) -> bytes:
    try:
        return cut(data, span.first_frame, span.last_frame)
    except RecordingEnded as problem:
        raise MediaChanged(str(problem)) from problem
