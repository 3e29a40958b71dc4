"""The items whose predictions vary most over augmented views (Gao et al., 2020).

score_i = sum_c Var_v p_v(c | x_i),   v over five augmented views
"""

from __future__ import annotations

from torch import Tensor

from core.acquisition import catalog
from core.acquisition.pool_view import is_cold, on_device
from core.acquisition.ranking import entropy, take_highest
from core.acquisition.strategies import uniform
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore

VIEWS = catalog.entry("consistency").prediction_views


def scores(view_probabilities: Tensor) -> Tensor:
    """(n,) variance over views (V, n, C), V >= 2, summed over classes."""
    return view_probabilities.var(0, unbiased=False).sum(1)


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    if is_cold(request):
        return uniform.without_model(request, config, "consistency")
    views = request.view_probabilities
    if views is None or len(views) < 2:
        note = "Consistency needs predictions on at least two augmented views. Without them, maximum entropy is used."
        return take_highest(request, "consistency", entropy(on_device(request.probabilities)), (note,))
    return take_highest(request, "consistency", scores(on_device(views[:VIEWS])))
