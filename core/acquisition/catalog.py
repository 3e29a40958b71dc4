"""The strategies by name, with what people read about them. No torch: any process may list them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.errors import InvalidInput

Need = Literal["model", "embeddings", "features", "views"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy as shown to people. `needs` says what it reads; without it the stated fallback applies."""

    name: str
    title: str
    description: str
    needs: tuple[Need, ...] = ()


ENTRIES = (
    Entry(
        "bico",
        "Bilevel coreset",
        "The items whose labels would lower the loss on the whole pool most, on a proxy of the model.",
        ("model", "features", "views"),
    ),
    Entry("uniform", "Random", "A uniform draw: the yardstick."),
    Entry("max_entropy", "Most uncertain", "Predictions with the largest entropy, over two views.", ("model",)),
    Entry("margin", "Smallest margin", "Items whose two most probable classes are closest.", ("model",)),
    Entry("k_center", "Farthest first", "Items farthest from everything labeled or chosen so far.", ("embeddings",)),
    Entry("consistency", "Least consistent", "Predictions that change most under augmentation.", ("model", "views")),
    Entry(
        "badge", "BADGE", "Diverse items with large gradients: unsure, and unlike each other.", ("model", "embeddings")
    ),
    Entry("k_means", "Cluster centers", "The central item of each of as many clusters as picks.", ("embeddings",)),
    Entry("typiclust", "TypiClust", "The most typical item of each cluster that has no label yet.", ("embeddings",)),
    Entry("prob_cover", "ProbCover", "Items whose surroundings cover most of the pool.", ("embeddings",)),
    Entry("max_herding", "MaxHerding", "Items that together are similar to most of the pool.", ("embeddings",)),
    Entry(
        "uncertainty_herding",
        "Uncertainty herding",
        "Items that are similar to most of what the model is unsure about.",
        ("model", "embeddings"),
    ),
)
_BY_NAME = {entry.name: entry for entry in ENTRIES}


def names() -> tuple[str, ...]:
    return tuple(_BY_NAME)


def entry(name: str) -> Entry:
    if name not in _BY_NAME:
        raise InvalidInput(f"There is no strategy {name!r}. Choose one of {', '.join(_BY_NAME)}.")
    return _BY_NAME[name]
