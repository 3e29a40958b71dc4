"""Summaries of a project's labeled items: reads the store, calls `core.rounds.summary`, and returns export weights.

This module loads torch, so it runs in the process of the command line or of a job, never in the page process. Settings,
landmarks and model are those of the newest finished round, so features that the round computed are reused. Before the
first round, the project's settings are used, and landmarks are drawn from its items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.jobs.requests import SummaryOptions
from app.rounds.requests import round_config
from app.rounds.stored_round import find_artifact, last_landmarks
from core.config import RoundConfig, from_stored
from core.encoders.choice import encoder_of
from core.errors import InvalidInput
from core.learning.training import TrainedModel, load_model, predict
from core.media.inputs import Inputs
from core.rounds.approach.presets import resolve_preset
from core.rounds.candidates import fit_kernel, kernel_features
from core.rounds.context import Previous, StageContext
from core.rounds.encoding import space_rows
from core.rounds.stages import prepare_inputs
from core.rounds.summary import (
    Summary,
    SummaryConfig,
    View,
    check_labels,
    measure_set_aside,
    set_aside,
    summarize,
)
from core.runtime import Runtime
from core.types import UNLABELED, Report, ignore
from storage.database.store import Store
from storage.exporting.weights import ExportWeights
from storage.labeling.pool import Pool
from storage.media import shared as shared_media
from storage.projects.projects import get_project
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.row_cache import FolderRowCache

SHARE_ASIDE = 0.2  # share of the labeled items of each class that is set aside if there are no test items
MOST_ROWS = 20_000  # labeled items that are summarized; more are reduced by a seeded random draw
DIGITS = 6  # decimal places of a weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The snapshot rows that are summarized, the test items for the measurement, and a description of the latter."""

    labeled: NDArray[np.int64]
    test: NDArray[np.int64]
    measured_on: str
    aside: NDArray[np.bool_] | None = None  # rows of `labeled` that measure a second summary; None with test items
    notes: tuple[str, ...] = ()


def summarize_project(store: Store, project_id: int, options: SummaryOptions, report: Report = ignore) -> ExportWeights:
    """Summarize the current labels. Returns weights for an export; their `about` describes the summary."""
    context, newest = _context(store, project_id, report)
    check_labels(context.snapshot.labels[context.snapshot.labeled])
    model = _model(store, context, newest) if options.joint else None
    inputs = prepare_inputs(context)
    split = split_rows(context, inputs.readable, options)
    views = [_encoder_view(context, inputs, split) if inputs.encoder else _kernel_view(context, inputs, split)]
    if model is not None:
        views.append(_network_view(context, inputs, split, model))
    labels = context.snapshot.labels[split.labeled]
    config = SummaryConfig(
        size=options.size(len(labels)),
        weighted=options.weighted,
        penalty=context.config.selection.penalty,
        n_draws=options.n_draws,
        seed=options.seed,
    )
    found = summarize(views, labels, context.snapshot.held_out_labels[split.test], config, report)
    if split.aside is not None:
        found = replace(found, accuracies=measure_set_aside(views, labels, split.aside, config, report))
    return _as_weights(context, split, found, _about(context, options, config, split, newest) | _accuracies(found))


def split_rows(context: StageContext, readable: NDArray[np.bool_], options: SummaryOptions) -> Split:
    """Choose the rows to summarize (all labeled items) and the rows to measure on.

    Accuracy is measured on the test items. Without test items, a fifth of the labeled items is set aside; a second
    summary is made without them and measured on them.
    """
    snapshot = context.snapshot
    labeled = np.flatnonzero(snapshot.labeled & readable)
    check_labels(snapshot.labels[labeled])
    notes: tuple[str, ...] = ()
    if len(labeled) > MOST_ROWS:
        notes = (f"{MOST_ROWS:,} of {len(labeled):,} labeled items, drawn with seed {options.seed}, were summarized",)
        labeled = np.sort(np.random.default_rng(options.seed).choice(labeled, MOST_ROWS, replace=False))
    test = np.flatnonzero(snapshot.held_out & (snapshot.held_out_labels != UNLABELED) & readable)
    if len(test):
        return Split(labeled=labeled, test=test, measured_on=f"{len(test):,} test items", notes=notes)
    groups = snapshot.groups[labeled] if snapshot.groups is not None else None
    aside = set_aside(snapshot.labels[labeled], SHARE_ASIDE, options.seed, groups)
    if not aside.any():
        raise InvalidInput(
            "Every class has only one labeled item, or one group of items, so none can be set aside to measure on. "
            "Label more items."
        )
    if groups is not None:
        n_groups = len(np.unique(groups[groups >= 0]))
        notes += (f"Whole groups were set aside (of {n_groups:,}), so that no group is on both sides",)
    check_labels(snapshot.labels[labeled[~aside]])
    measured_on = (
        f"{int(aside.sum()):,} labeled items set aside ({SHARE_ASIDE:.0%} of each class, drawn with seed "
        f"{options.seed}), with a second summary that is made without them: there are no test items"
    )
    return Split(labeled=labeled, test=test, aside=aside, measured_on=measured_on, notes=notes)


def _context(store: Store, project_id: int, report: Report) -> tuple[StageContext, RoundRow | None]:
    project, log = get_project(store, project_id), RoundLog(store, project_id)
    newest = log.latest("finished")
    settled = newest.metrics.get("settings") if newest is not None else None
    config = from_stored(RoundConfig, settled) if settled else round_config(project.settings, project.kind)
    runtime = Runtime.create(config.seed)
    context = StageContext(
        snapshot=Pool(store, project_id).snapshot(),
        config=resolve_preset(config, runtime),
        read=shared_media.reader(store, project_id),
        cache=FolderRowCache(store.home / "cache" / "rows"),
        runtime=runtime,
        previous=Previous(load_landmarks=lambda: last_landmarks(log, newest.id if newest else None)),
        encoder=encoder_of(config.encoder, store.home),
        report=report,
    )
    return context, newest


def _model(store: Store, context: StageContext, row: RoundRow | None) -> TrainedModel:
    """The network of the newest finished round."""
    if row is None or find_artifact(RoundLog(store, row.project_id), row.id, "model") is None:
        raise InvalidInput(
            "No finished round has trained a network yet, and a joint summary needs one. "
            "Run a round first, or summarize without the network."
        )
    return load_model(RoundLog(store, row.project_id).file(row.id, "model"), context.runtime)


def _kernel_view(context: StageContext, inputs: Inputs, split: Split) -> View:
    kernel = fit_kernel(context, inputs).kernel
    labeled, test = (kernel_features(context, inputs, kernel, rows) for rows in (split.labeled, split.test))
    return View(name="kernel", labeled=labeled, test=test)


def _encoder_view(context: StageContext, inputs: Inputs, split: Split) -> View:
    """The feature space of the head on the encoder's features. Used if the newest round used an encoder."""
    labeled, test = (space_rows(context, inputs, rows) for rows in (split.labeled, split.test))
    return View(name="encoder", labeled=labeled, test=test)


def _network_view(context: StageContext, inputs: Inputs, split: Split, model: TrainedModel) -> View:
    """The last layer of the network, scaled to a mean squared norm of 1 over the labeled rows."""
    labeled, test = (
        predict(model, inputs, rows, runtime=context.runtime, n_views=0, report=context.report).embeddings
        for rows in (split.labeled, split.test)
    )
    scale = float(np.sqrt(np.square(labeled, dtype=np.float64).sum(1).mean() + 1e-12))
    return View(name="network", labeled=labeled / scale, test=test / scale)


def _about(
    context: StageContext, options: SummaryOptions, config: SummaryConfig, split: Split, newest: RoundRow | None
) -> dict[str, Any]:
    """A description of how the summary was made, for screens and for the manifest of the export."""
    return {
        "size": config.size,
        "n_labeled": len(split.labeled),
        "weighted": options.weighted,
        "joint": options.joint,
        "objective": "mean over the items of weight * cross-entropy, plus penalty / 2 * |W|^2",
        "penalty": config.penalty,
        "kernel": context.config.kernel.network if context.encoder is None else None,
        "encoder": context.encoder.name if context.encoder is not None else None,
        "round": newest.number if newest is not None else None,
        "label_sequence": context.snapshot.label_sequence,
        "measured_on": split.measured_on,
        "n_test": len(split.test) if split.aside is None else int(split.aside.sum()),
        "seed": options.seed,
        "notes": list(split.notes),
    }


def _accuracies(found: Summary) -> dict[str, Any]:
    models = [
        {
            "model": accuracy.model,
            "summary": accuracy.summary,
            "uniform": list(accuracy.uniform),
            "uniform_mean": accuracy.uniform_mean,
            "uniform_deviation": accuracy.uniform_deviation,
            "everything": accuracy.everything,
        }
        for accuracy in found.accuracies
    ]
    return {"accuracy": models, "solver_notes": list(found.notes)}


def _as_weights(context: StageContext, split: Split, found: Summary, about: Mapping[str, Any]) -> ExportWeights:
    snapshot, rows = context.snapshot, split.labeled[found.rows]
    hashes = [snapshot.hashes[row] for row in rows]
    names = [snapshot.class_names[label] for label in snapshot.labels[rows]]
    weights = [float(f"{weight:.{DIGITS}g}") for weight in found.weights]
    kept = {"items": len(hashes), "labels": {name: names.count(name) for name in sorted(set(names))}}
    return ExportWeights(
        weights=dict(zip(hashes, weights, strict=True)),
        labels=dict(zip(hashes, names, strict=True)),
        about=dict(about) | kept,
    )
