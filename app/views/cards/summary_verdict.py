"""A verdict on a summary: whether it is better than a random subset of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from app.views.text import count

Verdict = Literal["better", "no better", "worse"]
FEW_LABELS = 100  # with fewer labels, a summary is often no better than a random subset


def verdict(result: Mapping[str, Any]) -> tuple[Verdict, str]:
    """The verdict and a sentence. It is based on the model with the smallest advantage: "worse" below the mean of the
    random draws, "better" from one standard deviation above it."""
    least = min(result["accuracy"], key=lambda worth: worth["summary"] - worth["uniform_mean"], default=None)
    if least is None:
        return "no better", "This summary was not measured."
    mean, deviation = least["uniform_mean"], least["uniform_deviation"]
    drawn = f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
    against = f"{100 * least['summary']:.1f} % against {drawn} on {result.get('n_test', 0):,} items"
    if least["summary"] < mean:
        return "worse", (
            f"This summary is worse than a random subset of the same size: {against}. Do not train on it alone. Ask "
            "for a larger one, label more items, or export all labels."
        )
    if least["summary"] <= mean + deviation:
        return "no better", f"This summary is not clearly better than a random subset of the same size: {against}."
    return "better", f"This summary is better than a random subset of the same size: {against}."


def few_labels(n_labeled: int) -> str:
    """A warning to show before a summary is started. Empty if there are enough labels."""
    if n_labeled >= FEW_LABELS:
        return ""
    return (
        f"With {count(n_labeled, 'label')} (fewer than {FEW_LABELS}), a summary is often no better than a random "
        "subset of the same size. Label more items first, or export all labels."
    )
