"""The predictions of a project's live head. The process of the live heads writes them, and pages read them.

    WINNOW_HOME/live/<project>.npz    item ids, probabilities, classes, and which labels were used

The file is replaced atomically, so a reader never sees parts of two fits. It can be removed at any time; the next label
recreates it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.atomic_files import write_file

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFit:
    """Facts about one fit."""

    round_id: int  # the round whose predictions the fit updates
    revision: int  # revision of the project when the labels were read
    n_labels: int
    n_new: int  # labels that are new or different since the previous fit
    n_changed: int  # unlabeled items whose predicted class is different since the previous fit
    n_checked: int = 0  # cross-validated labels; 0 if the features depend on labels
    n_agreeing: int = 0  # cross-validated labels whose prediction is the label
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A label that may be wrong (`core.labels.errors`)."""

    item_id: int
    class_id: int  # class of the label
    predicted: int  # id of the predicted class
    given: float  # probability of the label's class, by a head that was fitted without this label
    probability: float  # probability of the predicted class


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveResult:
    """The content of a project's file of live predictions."""

    fit: LiveFit
    item_ids: NDArray[np.int64]  # (n,) ascending
    probabilities: NDArray[np.float32]  # (n, C)
    class_ids: tuple[int, ...]  # class of each column
    trained: NDArray[np.bool_]  # (n,) items whose labels were used; no prediction is shown for them
    suspects: tuple[Suspect, ...] = ()  # labels that cross-validation contradicts, most suspicious first


def live_path(home: Path, project_id: int) -> Path:
    return home / "live" / f"{project_id}.npz"


def write_result(home: Path, project_id: int, result: LiveResult) -> None:
    """Replace the file of the project."""
    about = {"version": VERSION, "classes": list(result.class_ids), **asdict(result.fit)}
    about["suspects"] = [asdict(one) for one in result.suspects]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        item_ids=result.item_ids,
        probabilities=result.probabilities,
        trained=result.trained,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
    )
    path = live_path(home, project_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, buffer.getvalue())


def read_result(home: Path, project_id: int) -> LiveResult | None:
    """The newest fit. None if there is none. The file is read again only after it was replaced."""
    path = live_path(home, project_id)
    try:
        stat = os.stat(path)
    except OSError:
        return None
    key = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
    with _lock:
        if path in _cached and _cached[path][0] == key:
            return _cached[path][1]
    found = _read(path)
    with _lock:
        _cached[path] = (key, found)
        while len(_cached) > KEPT:
            del _cached[next(iter(_cached))]
    return found


def remove_result(home: Path, project_id: int) -> None:
    live_path(home, project_id).unlink(missing_ok=True)


def _read(path: Path) -> LiveResult | None:
    """Read a result file. None if it is damaged or has another version."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            about: dict[str, Any] = json.loads(stored["about"].tobytes())
            if about.pop("version") != VERSION:
                return None
            classes = tuple(int(one) for one in about.pop("classes"))
            suspects = tuple(Suspect(**one) for one in about.pop("suspects"))
            return LiveResult(
                fit=LiveFit(**about),
                item_ids=stored["item_ids"],
                probabilities=stored["probabilities"],
                class_ids=classes,
                trained=stored["trained"],
                suspects=suspects,
            )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None


_cached: dict[Path, tuple[tuple[int, int, int], LiveResult | None]] = {}
_lock = Lock()
KEPT = 8
