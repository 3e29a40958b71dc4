"""An audition: every available encoder, and training without one, compared by cross-validation on the current labels.

The folds are the same for all heads. The row without an encoder is a head on the network's inputs, as in
`core.rounds.approach.evidence`. An encoder that fails has a row with the reason.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from core.encoders.folders import Encoder
from core.encoders.pool import encode_pool
from core.errors import Cancelled, WinnowError
from core.rounds.approach.deciding import as_stage, input_vectors
from core.rounds.approach.evidence import NONE, cross_validated, validation_rows
from core.rounds.context import StageContext
from core.types import Progress

STAGE = "audition"
NO_ENCODER = "none"
Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditionRow:
    """The result of one encoder, or of none, on the labels of a project."""

    name: str
    title: str
    identity: str = ""
    n: int = 0  # labels that were predicted
    right: int = 0
    seconds: float = 0.0  # of encoding items that were not encoded yet, and of the cross-validation
    problem: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval for the share of correct predictions."""
        if not self.n:
            return 0.0, 1.0
        share, n = self.right / self.n, self.n
        middle, half = share + Z**2 / (2 * n), Z * sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
        return max(0.0, (middle - half) / (1 + Z**2 / n)), min(1.0, (middle + half) / (1 + Z**2 / n))


def run_audition(context: StageContext, encoders: Sequence[Encoder]) -> list[AuditionRow]:
    """A row for each encoder in their order, and one for none."""
    rows = []
    for place, encoder in enumerate([*encoders, None]):
        title = encoder.description.shown if encoder is not None else "no encoder"
        context.report(Progress(STAGE, place, len(encoders) + 1, title))
        began = time.perf_counter()
        about = AuditionRow(
            name=encoder.name if encoder is not None else NO_ENCODER,
            title=title,
            identity=encoder.identity if encoder is not None else "",
        )
        try:
            n, right = _counted(context, encoder)
        except Cancelled:
            raise
        except WinnowError as problem:
            rows.append(dataclasses.replace(about, problem=str(problem)))
            continue
        seconds = round(time.perf_counter() - began, 2)
        rows.append(dataclasses.replace(about, n=n, right=right, seconds=seconds))
    context.report(Progress(STAGE, len(encoders) + 1, len(encoders) + 1))
    return rows


def _counted(context: StageContext, encoder: Encoder | None) -> tuple[int, int]:
    """The numbers of predicted labels and of correct predictions. Items without features count as wrong."""
    snapshot = context.snapshot
    rows = validation_rows(snapshot, np.ones(len(snapshot.hashes), np.bool_))
    labels = snapshot.labels[rows]
    if encoder is None:
        features = input_vectors(context, rows)
    else:
        hashes = [snapshot.hashes[row] for row in rows]
        report = as_stage(STAGE, context.report)
        features = encode_pool(hashes, context.read, encoder, context.cache, report).features()
    found = cross_validated(features, labels, snapshot.n_classes, context.config.head)
    scored = found != NONE
    return int(scored.sum()), int((found[scored] == labels[scored]).sum())


def best_encoder(rows: Sequence[AuditionRow]) -> AuditionRow | None:
    """The row of the encoder that was right most often; the first of several. None if no encoder made a prediction."""
    compared = [row for row in rows if row.identity and row.n]
    return max(compared, key=lambda row: row.right, default=None)
