"""The model of a finished round, with everything that is needed to predict with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from app.rounds.stored_round import StoredRound, open_round_inputs
from core.config import RoundConfig
from core.encoders.predicting.file_predictor import EncodedFilePredictor
from core.learning.file_predictor import FilePredictor
from core.learning.models import TrainedModel, load_model
from core.learning.onnx_graph import InputSettings
from core.types import PoolSnapshot, Report, ignore
from storage.database.store import Store
from storage.projects import class_rows
from storage.projects.class_rows import ClassRow
from storage.rounds.log import RoundLog, RoundRow
from storage.rounds.model_rounds import find_model_round
from storage.rounds.names import round_names


@dataclass(frozen=True)
class RoundModel:
    """One finished round that trained a model."""

    of: StoredRound
    name: str  # the name that users gave to the round; may be empty
    model: TrainedModel

    @property
    def row(self) -> RoundRow:
        return self.of.row

    @property
    def snapshot(self) -> PoolSnapshot:
        return self.of.start.snapshot

    @property
    def config(self) -> RoundConfig:
        """The settings of the round, with the preset resolved."""
        return self.of.start.config

    @cached_property
    def classes(self) -> list[ClassRow]:
        """The class of each output, with its name at the time of the request."""
        with self.of.store.read() as connection:
            rows = class_rows.rows_as_of(connection, self.row.project_id, self.row.class_event)
        return [row for row in rows if row.active]

    @cached_property
    def input_settings(self) -> InputSettings:
        """The input settings of the round. For rounds of older versions, which did not store the normalization of
        pictures, it is computed again from their items."""
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
    def predictor(self) -> FilePredictor | EncodedFilePredictor:
        """A predictor for files that gives the same predictions as the exported model. It includes the round's encoder,
        if any."""
        encoder = self.of.context.encoder
        if encoder is not None:
            return EncodedFilePredictor(self.model, encoder, self.of.context.runtime)
        return FilePredictor(model=self.model, settings=self.input_settings, runtime=self.of.context.runtime)


def open_round_model(store: Store, project_id: int, wanted: str | None = None, report: Report = ignore) -> RoundModel:
    """Open the model of the round with the number or name `wanted`. The default is the newest round with a model."""
    row = find_model_round(store, project_id, wanted)
    of = StoredRound(store, row, {}, report)
    model = load_model(RoundLog(store, project_id).file(row.id, "model"), of.context.runtime)
    return RoundModel(of=of, name=round_names(store, project_id).get(row.id, ""), model=model)
