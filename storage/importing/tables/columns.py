"""The columns of a table that hold the path, the label and the split, found by usual names or named by the user."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import InvalidInput
from storage.importing.reading import ReadingOptions
from storage.importing.splits import NAMES as SPLIT_NAMES
from storage.importing.tables.finders import InvalidRow
from storage.importing.tables.rows import IN_TABLE

PATHS = (
    "path", "file_path", "filepath", "file_name", "filename", "file", "fname", "image_path", "img_path", "audio_path",
    "image_file", "audio_file", "image_filename", "image_name", "img_name", "slice_file_name", "clip_path",
    "audio_name", "image", "img", "audio", "picture", "photo", "wav", "clip", "recording", "image_id", "img_id",
    "audio_id", "clip_id", "imageid", "recording_id", "id",
)  # fmt: skip
LABELS = (
    "label", "label_name", "class", "class_name", "classname", "category", "category_name", "target", "target_name",
    "choice", "labels", "class_label", "class_id", "classid", "label_id", "target_label", "ground_truth", "tag",
)  # fmt: skip
SPLITS = ("split", "subset", "set", "partition", "phase", "fold")
GROUPS = ("group", "group_id")
STARTS, ENDS = ("start", "start_seconds", "start_time"), ("end", "end_seconds", "end_time")
ALWAYS_SPLITS = ("split", "subset")  # a value here that is not the name of a split is an error in its row
_MEDIA_NAME = re.compile(
    r".*\.(wav|flac|ogg|mp3|m4a|aac|aiff?|png|jpe?g|webp|bmp|gif|tiff?|heic|avif)\Z", re.IGNORECASE
)
_NUMBER = re.compile(r"[+-]?\d+(\.0*)?\Z")


@dataclass(slots=True)
class Columns:
    """Names of the columns; "" where the table has none."""

    path: str = ""
    label: str = ""
    split: str = ""
    group: str = ""  # items of one group stay together in random splits
    start: str = ""  # seconds in the recording, as `end`
    end: str = ""
    class_names: dict[str, str] = field(default_factory=dict)  # value of the label column -> class name
    warnings: list[str] = field(default_factory=list)

    def label_of(self, values: Mapping[str, Any]) -> str:
        given = text_of(values.get(self.label), self.label) if self.label else ""
        return self.class_names.get(given, given)

    def path_of(self, values: Mapping[str, Any]) -> str:
        value = values.get(self.path) if self.path else None
        if isinstance(value, dict):  # a media cell of Hugging Face datasets
            value = value.get("path")
        return text_of(value, self.path)

    def group_of(self, values: Mapping[str, Any]) -> str:
        return text_of(values.get(self.group), self.group).strip() if self.group else ""

    def split_of(self, values: Mapping[str, Any]) -> str:
        return text_of(values.get(self.split), self.split).strip() if self.split else ""


def find_columns(names: Sequence[str], sample: Sequence[Mapping[str, Any]], options: ReadingOptions) -> Columns:
    """The columns of a table with these names; `sample` are its first rows."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(_form(name), name)
    found = Columns(
        path=_named_column(options.path_column, known, "path") or _path_column(known, sample),
        split=_named_column(options.split_column, known, "split"),
    )
    found.group = _named_column(options.group_column, known, "group") or _first(known, GROUPS)
    _set_span(found, known, sample)
    _set_label(found, known, sample, options)
    if not found.split:
        _set_split(found, known, sample)
    return found


def _set_span(found: Columns, known: Mapping[str, str], sample: Sequence[Mapping[str, Any]]) -> None:
    """Columns for start and end are used only if several rows name the same file. In tables of cut files they state the
    origin of each file."""
    start, end = _first(known, STARTS), _first(known, ENDS)
    if not (found.path and start and end) or "first_frame" in known:
        return
    paths = [path for row in sample if (path := _plain(row.get(found.path)))]
    if len(set(paths)) < len(paths):
        found.start, found.end = start, end
    else:
        found.warnings.append(
            f"The columns {start!r} and {end!r} are not used: every row names a different file. To import parts of "
            "recordings, name the same file in several rows."
        )


def _first(known: Mapping[str, str], names: Sequence[str]) -> str:
    return next((known[name] for name in names if name in known), "")


def _form(name: str) -> str:
    return re.sub(r"[\s\-.]+", "_", name.strip().casefold())


def _named_column(name: str, known: Mapping[str, str], what: str) -> str:
    if not name:
        return ""
    if _form(name) not in known:
        listed = ", ".join(map(repr, known.values())) or "none"
        raise InvalidInput(f"The table has no column {name!r} for the {what}; its columns are {listed}.")
    return known[_form(name)]


def _path_column(known: Mapping[str, str], sample: Sequence[Mapping[str, Any]]) -> str:
    for name, value in sample[0].items() if sample else ():
        if isinstance(value, dict) and value.get(IN_TABLE):
            return name
    for name in PATHS:
        if name in known and name != "id":
            return known[name]
    for name in known.values():  # any other column whose values are names of media files
        values = [row.get(name) for row in sample]
        if values and all(isinstance(value, str) and _names_media(value) for value in values):
            return name
    return known.get("id", "")


def _names_media(value: str) -> bool:
    return value.startswith(("/data/upload/", "/data/local-files/")) or bool(_MEDIA_NAME.match(value))


def _set_label(
    found: Columns, known: Mapping[str, str], sample: Sequence[Mapping[str, Any]], options: ReadingOptions
) -> None:
    asked = _named_column(options.label_column, known, "label")
    present = [known[name] for name in LABELS if name in known and known[name] != found.path]
    if asked or not present:
        found.label = asked
        return
    named = [name for name in present if not _numbers(row.get(name) for row in sample)]
    found.label = (named or present)[0]
    numeric = next((name for name in present if name not in named and name != found.label), "")
    if named and numeric:
        pairs = {_plain(row.get(numeric)): _plain(row.get(found.label)) for row in sample}
        shown = ", ".join(f"{number} = {name}" for number, name in sorted(pairs.items())[:10] if number)
        found.warnings.append(
            f"Class names come from the column {found.label!r}; the numbers in {numeric!r} are not used ({shown})."
        )


def _set_split(found: Columns, known: Mapping[str, str], sample: Sequence[Mapping[str, Any]]) -> None:
    for name in SPLITS:
        if name not in known:
            continue
        values = {_plain(row.get(known[name])).strip() for row in sample} - {""}
        if name in ALWAYS_SPLITS or any(value.casefold() in SPLIT_NAMES for value in values):
            found.split = known[name]
            return
        if values:
            few = ", ".join(sorted(values)[:5])
            found.warnings.append(
                f"The column {known[name]!r} ({few}) names no train or test split; no item becomes a test item by it."
            )


def _numbers(values: Iterable[Any]) -> bool:
    """Whether all non-empty values are whole numbers."""
    texts = [text for value in values if (text := _plain(value))]
    return bool(texts) and all(_NUMBER.match(text) for text in texts)


def _plain(value: Any) -> str:
    """A cell as text; "" for bytes."""
    return "" if isinstance(value, bytes) else text_of(value)


def text_of(value: Any, column: str = "") -> str:
    """A cell as text: "" for an empty one, "7" for 7.0. Bytes are refused because they are never a name."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        raise InvalidRow(f"The column {column!r} holds {len(value):,} bytes where text is expected.")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):  # pandas writes empty cells like this
            return ""
        return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    return str(value)
