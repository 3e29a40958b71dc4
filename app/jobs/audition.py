"""The audition of a project's encoders. It runs once per set of labels and encoders and is stored with the project."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from app.rounds.requests import next_config
from app.rounds.stored_audition import KEPT, stored_audition
from core.config import to_json
from core.encoders.choice import available, encoder_named
from core.encoders.folders import Encoder
from core.errors import WinnowError
from core.rounds.approach.audition import AuditionRow, best_encoder, run_audition
from core.rounds.context import StageContext
from core.runtime import Runtime
from core.types import PoolSnapshot, Report, ignore
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.projects import projects, roles
from storage.projects.projects import ProjectRow
from storage.rounds.row_cache import FolderRowCache


def audition(store: Store, project: ProjectRow, report: Report = ignore) -> dict[str, Any]:
    """Return the audition table as JSON values. The stored table is returned if labels, encoders and settings are
    unchanged."""
    roles.check(store, project.id, "edit")
    encoders, problems = _encoders(store, project)
    snapshot = Pool(store, project.id).snapshot()
    config = next_config(store, project)
    key = _key(snapshot, encoders, to_json(config.head) + to_json(config.media))
    known = stored_audition(project)
    if known is not None and known["key"] == key:
        return known
    context = StageContext(
        snapshot=snapshot,
        config=config,
        read=shared_media.reader(store, project.id),
        cache=FolderRowCache(store.home / "cache" / "rows"),
        runtime=Runtime.create(config.seed),
        report=report,
    )
    rows = run_audition(context, encoders)
    best = best_encoder(rows)
    found = {
        "key": key,
        "n_labels": int(snapshot.labeled.sum()),
        "label_sequence": snapshot.label_sequence,
        "best": best.name if best is not None else "",
        "identity": best.identity if best is not None else "",
        "rows": [_shown(row) for row in (*rows, *problems)],
    }
    extra = projects.get_project(store, project.id).settings.extra
    projects.change_settings(store, project.id, {"extra": {**extra, KEPT: found}})
    return found


def _encoders(store: Store, project: ProjectRow) -> tuple[list[Encoder], list[AuditionRow]]:
    """The encoders for this kind of media, and table rows for encoders that cannot be opened."""
    found: list[Encoder] = []
    problems = []
    for name in available(store.home, project.kind):
        try:
            found.append(encoder_named(store.home, name, project.kind))
        except WinnowError as problem:
            problems.append(AuditionRow(name=name, title=name, problem=str(problem)))
    return found, problems


def _shown(row: AuditionRow) -> dict[str, Any]:
    low, high = row.interval
    return dataclasses.asdict(row) | {"low": low, "high": high}


def _key(snapshot: PoolSnapshot, encoders: Sequence[Encoder], settings: str) -> str:
    labeled = [(snapshot.hashes[row], int(snapshot.labels[row])) for row in np.flatnonzero(snapshot.labeled)]
    of = [labeled, list(snapshot.class_names), [one.identity for one in encoders], len(snapshot.hashes), settings]
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()
