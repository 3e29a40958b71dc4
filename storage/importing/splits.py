"""Names of splits: which words mean the pool, the validation items and the test items."""

from __future__ import annotations

from typing import Literal, NamedTuple

Split = Literal["", "train", "validation", "test"]

TRAINING = frozenset(("train", "training", "trn", "pool", "unlabeled", "unlabelled", "unsupervised"))
VALIDATION = frozenset(("val", "valid", "validation", "dev", "devel", "development"))
TEST = frozenset(("test", "testing", "tst", "eval", "evaluation", "holdout", "held_out", "held-out"))
HELD_OUT = VALIDATION | TEST
NAMES = TRAINING | HELD_OUT


class GivenSplit(NamedTuple):
    """A split and the source's word for it; both are empty if the source names none."""

    split: Split = ""
    name: str = ""

    @property
    def held_out(self) -> bool:
        return self.split in ("validation", "test")


NO_SPLIT = GivenSplit()


def split_named(name: str) -> GivenSplit | None:
    """The split that a word means; None for a word that is not the name of a split."""
    name = name.strip()
    word = name.casefold()
    if not word:
        return NO_SPLIT
    if word in TEST:
        return GivenSplit("test", name)
    if word in VALIDATION:
        return GivenSplit("validation", name)
    return GivenSplit("train", name) if word in TRAINING else None


class SplitFolders(NamedTuple):
    """Whether sibling folders are splits."""

    are_splits: bool = False
    doubtful: tuple[str, ...] = ()  # named like test splits but beside other folders: a question for the user


def split_folders(siblings: set[str]) -> SplitFolders:
    """Whether these sibling folders are splits.

    They are if all of them have names of splits and at least one is a test split, or if a training and a test split are
    among them. A single `train`, or a `train` beside `car` and `bus`, is an ordinary folder.
    """
    words = {folder.casefold() for folder in siblings}
    held_out, training = words & HELD_OUT, words & TRAINING
    if words <= NAMES:
        return SplitFolders(bool(held_out) or len(training) > 1)
    if held_out and training:
        return SplitFolders(True)
    return SplitFolders(False, tuple(sorted(folder for folder in siblings if folder.casefold() in HELD_OUT)))
