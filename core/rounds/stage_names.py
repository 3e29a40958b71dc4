"""The names and titles of a round's stages, in their order. Imports nothing, so that any process may read it.

Names are stored with rounds (progress, seconds for each stage) and never change. Titles are shown to people. The worker
adds two steps around the stages of `core.rounds.stages`: "snapshot" before them and "finish" after them.
"""

from __future__ import annotations

TITLES: dict[str, str] = {
    "snapshot": "Snapshot",
    "encode": "Encode",
    "decide": "Decide",
    "prepare": "Prepare",
    "check": "Check labels",
    "train": "Train",
    "refine": "Refine",
    "predict": "Predict",
    "propagate": "Propagate",
    "features": "Features",
    "select": "Select",
    "map": "Map",
    "rival": "Second model",
    "finish": "Finish",
}
NAMES: tuple[str, ...] = tuple(TITLES)
UNDER_WAY: dict[str, str] = {  # in "Round 3 is running (training)."
    "snapshot": "taking a snapshot",
    "encode": "encoding",
    "decide": "choosing the approach",
    "prepare": "preparing",
    "check": "checking labels",
    "train": "training",
    "refine": "refining the model",
    "predict": "predicting",
    "propagate": "propagating labels",
    "features": "computing features",
    "select": "selecting",
    "map": "drawing the map",
    "rival": "training a second model",
    "finish": "finishing",
}
ABOUT: dict[str, str] = {  # one sentence for display
    "snapshot": "Freezes the labels and items that this round uses.",
    "encode": "Computes the features of new items with the encoder.",
    "decide": "Chooses between the encoder and training from scratch.",
    "prepare": "Turns the media into inputs for the network.",
    "check": "Looks for labels that may be wrong.",
    "train": "Trains the model on the labels.",
    "refine": "Trains the model further, on labels passed on to similar clips or on patches of photographs.",
    "predict": "Predicts the class of every item.",
    "propagate": "Passes labels on to very similar items.",
    "features": "Computes how similar items are to each other.",
    "select": "Picks the items of the next batch.",
    "map": "Places similar items close together.",
    "rival": "Trains the approach that was not chosen, to compare the two.",
    "finish": "Stores the results.",
}


def title_of(name: str) -> str:
    """The title of a stage; the capitalized name for one that this version does not have."""
    return TITLES.get(name, name.capitalize())
