"""The strategies: one entry each, with its texts for screens and the data it reads.

To add a strategy, write `core/acquisition/strategies/NAME.py` with `select(request, config, report) -> Selection`, and
add its `Entry` here. The registry, the forms, the command line and the contract tests follow this list. The module
imports no torch, so any process can list the strategies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.errors import InvalidInput

Need = Literal["predictions", "embeddings", "kernel_features", "view_features", "labels"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy: its stable name, its texts for screens, and the fields of a `SelectionRequest` it reads.

    Strategies that read embeddings use kernel features until there is a model. Strategies that read predictions use
    the fallback in their module's docstring until then, and add a note.
    """

    name: str  # the module in core/acquisition/strategies; stored with rounds, so it never changes its meaning
    title: str
    description: str
    needs: tuple[Need, ...] = ()
    prediction_views: int = 0  # augmented views whose predictions it reads (`SelectionRequest.view_probabilities`)


ENTRIES = (
    Entry(
        "bico",
        "Bilevel coreset",
        "Picks the items whose labels are expected to improve the predictions of the whole pool most.",
        ("predictions", "kernel_features", "view_features", "labels"),
    ),
    Entry("uniform", "Random", "Picks items uniformly at random; the baseline."),
    Entry(
        "max_entropy",
        "Maximum entropy",
        "Picks the items whose predictions are least certain.",
        ("predictions",),
        prediction_views=2,
    ),
    Entry(
        "margin", "Smallest margin", "Picks items with two classes that are about equally probable.", ("predictions",)
    ),
    Entry(
        "k_center",
        "k-center",
        "Picks items that differ most from all labeled and picked items.",
        ("embeddings", "labels"),
    ),
    Entry(
        "consistency",
        "Consistency",
        "Picks items whose predictions change most when the item is changed a little.",
        ("predictions",),
        prediction_views=5,
    ),
    Entry(
        "badge",
        "BADGE",
        "Picks items that are uncertain and differ from each other.",
        ("predictions", "embeddings"),
    ),
    Entry("k_means", "k-means", "Picks the central item of each cluster, with one cluster per pick.", ("embeddings",)),
    Entry(
        "typiclust",
        "TypiClust",
        "Picks the most typical item of each cluster without labels.",
        ("embeddings", "labels"),
    ),
    Entry(
        "prob_cover", "ProbCover", "Picks items whose neighborhoods cover most of the pool.", ("embeddings", "labels")
    ),
    Entry(
        "max_herding",
        "MaxHerding",
        "Picks items that together are similar to most of the pool.",
        ("embeddings", "labels"),
    ),
    Entry(
        "uncertainty_herding",
        "Uncertainty herding",
        "Picks items that are similar to most of the uncertain items.",
        ("predictions", "embeddings", "labels"),
    ),
    Entry(
        "drop_query",
        "DropQuery",
        "Picks items whose prediction changes when features are dropped, one per cluster.",
        ("predictions", "embeddings"),
    ),
    Entry(
        "tcm",
        "TypiClust, then margin",
        "Picks the most typical items while there are few labels, then those with the smallest margin.",
        ("predictions", "embeddings", "labels"),
    ),
)


def names() -> tuple[str, ...]:
    """The names of all strategies, in the order in which forms offer them."""
    return tuple(one.name for one in ENTRIES)


def entry(name: str) -> Entry:
    """The entry of a strategy; `InvalidInput` names the known ones."""
    for one in ENTRIES:
        if one.name == name:
            return one
    raise InvalidInput(f"There is no strategy {name!r}. Choose one of {', '.join(names())}.")
