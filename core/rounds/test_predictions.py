"""The network alone on all test items, labeled or not: a test item may get its label after the round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.learning.models import TrainedModel
from core.learning.prediction import predict
from core.media.inputs import Inputs
from core.rounds.context import StageContext

ITEMS, PROBABILITIES = "test_item_ids", "test_predictions"  # kinds of artifacts; they never change


def predict_test_items(context: StageContext, inputs: Inputs, model: TrainedModel | None) -> dict[str, NDArray[Any]]:
    """(k,) ids of the readable test items and (k, C) inductive probabilities, by kind; empty without a model or test
    items. The labels of test items are not read."""
    rows = np.flatnonzero(context.snapshot.held_out & inputs.readable)
    if model is None or not len(rows):
        return {}
    found = predict(model, inputs, rows, runtime=context.runtime)
    return {ITEMS: context.snapshot.item_ids[rows], PROBABILITIES: found.probabilities}
