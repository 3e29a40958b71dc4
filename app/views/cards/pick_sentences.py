"""The reason why an item was picked, as one sentence in plain words. The pick itself contains the numbers."""

from __future__ import annotations

from app.views.strategy_names import strategy_title

# `{it}` is the item ("clip"), `{them}` the plural ("clips"). For batch strategies, a sentence says what the pick adds.
SENTENCES = {
    "bico": "Its label is expected to help the model most with all the other {them}.",
    "uniform": "It was chosen at random.",
    "max_entropy": "The model is least sure about it.",
    "margin": "The model cannot decide between two classes.",
    "k_center": "It differs most from everything that is labeled so far.",
    "consistency": "The prediction changes when the {it} is altered slightly.",
    "badge": "The model is unsure about it, and it differs from the other picks.",
    "k_means": "It is in the middle of a group of similar {them}.",
    "typiclust": "It is typical of a group of similar {them} that has no label yet.",
    "prob_cover": "It is close to many {them} that have no labeled {it} nearby yet.",
    "max_herding": "Together with the other picks, it represents the whole pool.",
    "uncertainty_herding": "It represents {them} about which the model is unsure.",
    "drop_query": "The prediction changes when parts of what the model measures are left out.",
    "tcm": "It is typical of a group of similar {them}, or the model cannot decide between two classes.",
}


def second_look_sentence(kind: str) -> str:
    """A sentence about a pick that already has a label."""
    it = "clip" if kind == "audio" else "picture"
    return (
        f"A second look: this {it} has a label that may be wrong, and checking it is expected to help more "
        f"than a new {it}. Your answer counts either way."
    )


def pick_sentence(strategy: str, kind: str, stands_for: int | None = None) -> str:
    """A sentence about a pick. If it represents several items, a second sentence says so."""
    it, them = ("clip", "clips") if kind == "audio" else ("picture", "pictures")
    sentence = SENTENCES.get(strategy, f"It was chosen by the strategy {strategy_title(strategy)}.")
    sentence = sentence.replace("{it}", it).replace("{them}", them)
    if stands_for is None or stands_for < 2 or strategy == "uniform":
        return sentence
    return f"{sentence} It stands for {stands_for:,} similar {them}."
