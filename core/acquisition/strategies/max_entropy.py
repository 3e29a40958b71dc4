"""The items whose prediction, averaged over two augmented views, has the largest entropy."""

from __future__ import annotations

from torch import Tensor

from core.acquisition import catalog
from core.acquisition.pool_view import is_cold, on_device
from core.acquisition.ranking import entropy, take_highest
from core.acquisition.strategies import uniform
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore

VIEWS = catalog.entry("max_entropy").prediction_views


def scores(view_probabilities: Tensor) -> Tensor:
    """(n,) entropy of the mean prediction over views (V, n, C)."""
    return entropy(view_probabilities.mean(0))


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    if is_cold(request):
        return uniform.without_model(request, config, "max_entropy")
    if request.view_probabilities is None:
        note = (
            "There are no predictions on augmented views. The entropy is that of the prediction without augmentation."
        )
        return take_highest(request, "max_entropy", scores(on_device(request.probabilities).unsqueeze(0)), (note,))
    return take_highest(request, "max_entropy", scores(on_device(request.view_probabilities[:VIEWS])))
