"""Requests rounds and reads their state. The page process, the command line and workers import it: it loads no torch.

A request writes one row, which a worker starts within a second or two. The displayed state comes only from rows, so it
survives a page reload and a server restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.rounds import media_settings
from app.rounds.artifact_refs import to_dict
from app.rounds.timing import estimates
from app.rounds.timing.time_left import time_left
from app.simulation.settings import apply_changes
from core.config import MediaConfig, RoundConfig, from_dict, from_stored, preset
from core.types import MediaKind, Progress
from storage.database.store import Store, now
from storage.labeling.pool import Pool
from storage.labeling.test_sets import count_waiting_tests
from storage.projects import projects, roles
from storage.projects.projects import ProjectRow, ProjectSettings
from storage.rounds import candidate_buffer, comparisons, workers
from storage.rounds.log import FINISHED, START, ProgressRow, RoundLog, RoundRow, project_of
from storage.rounds.workers import WorkerRow

MOST_PROGRESS = 5_000  # progress records that a view reads
PLAIN = ("preset", "seed")  # settings without a section


def round_config(settings: ProjectSettings, kind: MediaKind) -> RoundConfig:
    """The settings of a round of the project. The preset `auto` is not resolved here: the worker that starts the round
    resolves it for its device, except for settings that the project changes by name."""
    config = preset(settings.preset, seed=settings.seed)
    selection = dataclasses.replace(config.selection, strategy=settings.strategy, batch_size=settings.batch_size)
    kernel = dataclasses.replace(config.kernel, network=settings.kernel_network or config.kernel.network)
    media = from_dict(MediaConfig, {"channels": 3 if kind == "image" else 1} | settings.media)
    chosen = ("kernel.network",) if settings.kernel_network else ()
    labels = config.labels
    if settings.labels_per_item > 1:  # every item gets several labels anyway, so second looks are not needed
        labels = dataclasses.replace(labels, second_looks=False)
    config = dataclasses.replace(config, selection=selection, kernel=kernel, media=media, labels=labels, changed=chosen)
    return apply_changes(config, settings.changes) if settings.changes else config


def next_config(store: Store, project: ProjectRow) -> RoundConfig:
    """The settings that a round requested now would have, including its media settings."""
    config = round_config(project.settings, project.kind)
    return dataclasses.replace(config, media=media_settings.of_project(store, project).config)


def request_round(
    store: Store,
    project_id: int,
    *,
    by: int | None = None,
    config: RoundConfig | None = None,
    changes: Mapping[str, Any] | None = None,
    constraint: Mapping[str, Any] | None = None,
) -> RoundRow:
    """Request the next round of a project, or return the one that already waits or runs.

    `changes` are settings by name for this round only, such as "training.method" or "preset". The first round of a
    project stores media settings derived from its pool. If the project watches a folder, the round selects from the
    current candidate buffer, which is stored with the round, so a replay selects from the same items.
    """
    if config is None:
        project = media_settings.fix(store, project_id)
        config = _changed_config(project, changes or {})
    constraint = dict(constraint or {}) | _candidates(store, project_id)
    return RoundLog(store, project_id).request(config, by=by, constraint=constraint)


def _changed_config(project: ProjectRow, changes: Mapping[str, Any]) -> RoundConfig:
    plain = {name: value for name, value in changes.items() if name in PLAIN}
    settings = from_dict(ProjectSettings, dataclasses.asdict(project.settings) | plain) if plain else project.settings
    others = {name: value for name, value in changes.items() if name not in plain}
    return apply_changes(round_config(settings, project.kind), others)


def _candidates(store: Store, project_id: int) -> dict[str, Any]:
    item_ids = candidate_buffer.candidates(store, project_id)
    return {} if item_ids is None else {"candidates": _kept(store, item_ids)}


def _kept(store: Store, item_ids: NDArray[np.int64]) -> dict[str, Any]:
    return to_dict(store.artifacts.put_array(item_ids))


def region_constraint(store: Store, item_ids: Sequence[int], share: float = 1.0) -> dict[str, Any]:
    """A constraint for `request_round`: the given share of the batch is selected from these items."""
    return {"region": _kept(store, np.asarray(item_ids, np.int64)), "share": float(share)}


def request_replay(store: Store, project_id: int, round_id: int, by: int | None = None) -> RoundRow:
    """Request a replay of a round with the same items, labels, settings and seed. It should give the same picks; the
    replay stores whether it did."""
    log = RoundLog(store, project_id)
    source = log.get(round_id)
    config = source.config
    if settled := source.metrics.get("settings"):
        config = from_stored(RoundConfig, settled)
    return log.request(config, by=by, constraint=source.constraint, replay_of=round_id)


def request_comparison(store: Store, project_id: int, round_id: int, strategies: Sequence[str]) -> None:
    """Request the picks of other strategies in this round. A worker computes them."""
    RoundLog(store, project_id).get(round_id)
    roles.check(store, project_id, "edit")
    comparisons.request(store, round_id, strategies)


def comparison(store: Store, round_id: int) -> comparisons.Comparison | None:
    return comparisons.get(store, round_id)


def cancel_round(store: Store, project_id: int, round_id: int) -> RoundRow:
    """Cancel a round. It stops within a few seconds; the previous model and picks are kept."""
    return RoundLog(store, project_id).cancel(round_id)


def request_if_batch_done(store: Store, project_id: int) -> RoundRow | None:
    """Request the next round if the project has automatic rounds and the last batch is labeled.

    Before the first round, the number of labels must reach the batch size. After a failed or cancelled round, no round
    is requested automatically.
    """
    project = projects.get_project(store, project_id)
    if not project.settings.automatic_rounds or project.archived_at is not None:
        return None
    newest = RoundLog(store, project_id).latest()
    pool = Pool(store, project_id)
    if newest is None:
        counts = pool.counts()
        done = counts.labeled >= project.settings.batch_size
    else:
        batch = pool.batch()
        done = newest.status == "finished" and batch.round_id == newest.id and batch.done == batch.total > 0
    done = done and pool.counts().waiting > count_waiting_tests(store, project_id)
    return request_round(store, project_id) if done else None


_seen: dict[tuple[str, int], int] = {}  # (store, project) -> the last revision that was checked


def request_automatic(store: Store) -> list[RoundRow]:
    """Call `request_if_batch_done` for every project that has changed since the last call in this process."""
    asked = []
    for project in projects.list_projects(store):
        key = (store.url, project.id)
        if _seen.get(key) != project.revision:
            row = request_if_batch_done(store, project.id)
            _seen[key] = project.revision
            asked += [row] if row is not None else []
    return asked


def write_progress(store: Store, round_id: int, progress: Progress) -> None:
    RoundLog(store, project_of(store, round_id)).progress(round_id, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundView:
    """The state of a round for a screen."""

    round: RoundRow
    stage: str  # the current step; empty before a worker has started the round
    done: int  # finished units of the current part of the stage
    total: int
    counted: str  # the name of the current part
    note: str
    stage_seconds_left: float | None  # None before there is an estimate
    seconds_left: float | None  # remaining seconds of the entire round
    stage_is_short: bool  # the stage is too short for an estimate in seconds
    interruptions: int  # how often another worker had to take over
    waiting_for_worker: bool  # no worker has started it
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  # "loss" -> (step, value)
    labels_since: int = 0  # "trained before your last n labels"


def view(store: Store, project_id: int, round_id: int | None = None) -> RoundView | None:
    """The current state of a round, by default of the newest round of the project."""
    log = RoundLog(store, project_id)
    row = log.get(round_id) if round_id is not None else log.latest()
    if row is None:
        return None
    steps = log.progress_of(row.id, limit=MOST_PROGRESS)
    stages = [step for step in steps if step.stage != START]
    newest = stages[-1] if stages else None
    left = time_left(steps, estimates.expected(store, project_id, row.config), now()) if row.unfinished else None
    attended = any(w.round_id == row.id for w in workers.living_workers(store))
    return RoundView(
        round=row,
        stage=left.step if left else "",
        done=left.done if left else 0,
        total=left.total if left else 0,
        counted=left.counted if left else "",
        note=newest.note if newest and newest.note != FINISHED else "",
        stage_seconds_left=left.stage_seconds if left else None,
        seconds_left=left.round_seconds if left else None,
        stage_is_short=left.is_short if left else False,
        interruptions=max(0, sum(step.stage == START for step in steps) - 1),
        waiting_for_worker=row.unfinished and not attended,
        curves=_curves(stages),
        labels_since=Pool(store, project_id).labels_since(row.label_sequence),
    )


def _curves(steps: Sequence[ProgressRow]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {}
    for step in steps:
        for name, value in step.metrics.items():
            if isinstance(value, int | float):
                curves.setdefault(name, []).append((step.done, float(value)))
    return curves


def workers_panel(store: Store) -> list[WorkerRow]:
    """Host, device, stage and age of the last heartbeat of each worker."""
    return workers.list_workers(store)
