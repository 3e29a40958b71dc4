"""The model of a finished round with everything that predicting with it needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.rounds.stored_round import StoredRound, find_artifact, open_round_inputs
from core.config import RoundConfig
from core.errors import InvalidInput
from core.learning.file_predictor import FilePredictor
from core.learning.models import TrainedModel, load_model
from core.learning.onnx_graph import InputSettings
from core.types import PoolSnapshot, Report, ignore
from storage.database.store import Store
from storage.projects import class_rows
from storage.projects.class_rows import ClassRow
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.names import find_round, round_names


@dataclass(frozen=True)
class RoundModel:
    """One finished round that trained a model."""

    of: StoredRound
    name: str  # that people gave to the round; empty without one
    model: TrainedModel

    @property
    def row(self) -> RoundRow:
        return self.of.row

    @property
    def snapshot(self) -> PoolSnapshot:
        return self.of.start.snapshot

    @property
    def config(self) -> RoundConfig:
        """The settings with the preset resolved."""
        return self.of.start.config

    @cached_property
    def classes(self) -> list[ClassRow]:
        """The class of each output, as it was called when the round was requested."""
        with self.of.store.read() as connection:
            rows = class_rows.rows_as_of(connection, self.row.project_id, self.row.class_event)
        return [row for row in rows if row.active]

    @cached_property
    def input_settings(self) -> InputSettings:
        """The round's own settings. Rounds of older versions did not store the normalization of pictures: it is
        computed again from their items."""
        kind, media = self.snapshot.kind, self.config.media
        stored = self.row.metrics.get("normalization")
        if kind == "audio":
            mean, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
        elif stored:
            mean, scale = (np.asarray(stored[name], np.float32) for name in ("mean", "scale"))
        else:
            inputs = open_round_inputs(self.of)
            mean, scale = inputs.mean, inputs.scale
        return InputSettings(kind=kind, media=media, mean=mean, scale=scale)

    @property
    def predictor(self) -> FilePredictor:
        """Predictions for files, as the exported model gives them."""
        return FilePredictor(model=self.model, settings=self.input_settings, runtime=self.of.context.runtime)


def open_round_model(store: Store, project_id: int, wanted: str | None = None, report: Report = ignore) -> RoundModel:
    """The model of the round of this number or name; of the newest round with a model when none is named."""
    log = RoundLog(store, project_id)
    row = _newest_with_model(log) if wanted is None else find_round(store, project_id, wanted)
    if row.status != "finished":
        raise InvalidInput(f"Round {row.number} is {row.status}; only a finished round has a model.")
    if find_artifact(log, row.id, "model") is None:
        raise InvalidInput(
            f"Round {row.number} trained no model: there was nothing to learn from yet. Choose a later round, or label "
            "items of at least two classes and run a round."
        )
    of = StoredRound(store, row, {}, report)
    model = load_model(log.file(row.id, "model"), of.context.runtime)
    return RoundModel(of=of, name=round_names(store, project_id).get(row.id, ""), model=model)


def _newest_with_model(log: RoundLog) -> RoundRow:
    for row in log.list():
        if row.status == "finished" and find_artifact(log, row.id, "model") is not None:
            return row
    raise InvalidInput(
        "No finished round of this project has trained a model. Label items of at least two classes and run a round."
    )
