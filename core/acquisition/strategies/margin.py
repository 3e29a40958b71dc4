"""The items whose two most probable classes are closest."""

from __future__ import annotations

from core.acquisition.pool_view import is_cold, on_device
from core.acquisition.ranking import margin_uncertainty, take_highest
from core.acquisition.strategies import uniform
from core.config import SelectionConfig
from core.types import Report, Selection, SelectionRequest, ignore


def select(request: SelectionRequest, config: SelectionConfig, report: Report = ignore) -> Selection:
    if is_cold(request):
        return uniform.without_model(request, config, "margin")
    return take_highest(request, "margin", margin_uncertainty(on_device(request.probabilities)))
