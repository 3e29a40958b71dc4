"""The predictions of a simulated trial's rounds, for the check of labels (`core.labels.earlier_predictions`).

They are stored in the folder of the trial, so that an interrupted trial can continue.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.atomic_files import write_file
from core.labels.earlier_predictions import EarlierRound
from core.types import PoolSnapshot


class EarlierRounds:
    """The finished rounds of a trial. Without a folder they are in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._rounds: list[EarlierRound] = []

    def newest_first(self) -> tuple[EarlierRound, ...]:
        return tuple(reversed(self._rounds))

    def add(self, snapshot: PoolSnapshot, probabilities: NDArray[np.floating]) -> None:
        """Add the round that has just finished, with its predictions (n, C)."""
        found = EarlierRound(
            class_names=snapshot.class_names,
            item_ids=snapshot.item_ids,
            labels=snapshot.labels,
            load_probabilities=lambda: probabilities,
        )
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.savez(
                content,
                class_names=np.array(found.class_names, np.str_),
                item_ids=found.item_ids,
                labels=found.labels,
                probabilities=probabilities,
            )
            write_file(self._file(len(self._rounds)), content.getvalue())
        self._rounds.append(found)

    def restore(self, n_rounds: int) -> bool:
        """Read the first rounds from the folder. Returns whether all of them were there."""
        files = [self._file(number) for number in range(n_rounds)] if self.folder is not None else []
        if len(files) < n_rounds or not all(file.exists() for file in files):
            return False
        for file in files:
            with np.load(file, allow_pickle=False) as stored:
                self._rounds.append(_round_of({name: stored[name] for name in stored.files}))
        return True

    def _file(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number}.predictions.npz"


def _round_of(stored: dict[str, NDArray[Any]]) -> EarlierRound:
    probabilities = stored["probabilities"]
    return EarlierRound(
        class_names=tuple(str(name) for name in stored["class_names"]),
        item_ids=stored["item_ids"],
        labels=stored["labels"],
        load_probabilities=lambda: probabilities,
    )
