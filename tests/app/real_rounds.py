"""Rounds that really train, run in this process, and a project of real sample clips."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.cli.main import main
from app.rounds import requests as round_requests
from app.rounds import steps
from app.rounds.stage_outputs import Stored
from app.rounds.stored_round import StoredRound
from core.config import KernelConfig, MapConfig, MediaConfig, RoundConfig, SelectionConfig, TrainingConfig
from core.types import ignore
from storage.database.store import Store
from storage.rounds.log import RoundLog, RoundRow

ROOT = Path(__file__).resolve().parents[2]
CLIPS = ROOT / "sample_data" / "spoken_digits"
SPEAKERS = ("ada", "bruno", "clara", "dov")
DIGITS = ("0", "1", "2")


def quick_settings(seed: int = 0, steps: int = 12, **media: object) -> RoundConfig:
    """Settings of a round with all stages and little arithmetic."""
    return RoundConfig(
        seed=seed,
        preset="smoke",
        media=MediaConfig(**media),  # type: ignore[arg-type]
        training=TrainingConfig(steps=steps, labeled_batch=6, unlabeled_batch=6, bank_views=0),
        kernel=KernelConfig(network="rbf", n_landmarks=12),
        selection=SelectionConfig(strategy="uniform", batch_size=4, n_views=0),
        map=MapConfig(n_neighbors=500),
    )


def run_round_here(store: Store, project_id: int, config: RoundConfig) -> RoundRow:
    """The steps of a worker, one after the other, without the engine."""
    return run_here(store, project_id, round_requests.request_round(store, project_id, config=config))


def run_here(store: Store, project_id: int, requested: RoundRow) -> RoundRow:
    """The same for a round that was requested."""
    log = RoundLog(store, project_id)
    row = log.start(requested.id)
    results: dict[str, Stored] = {}
    for name in steps.ORDER:
        result = steps.perform(name, StoredRound(store, row, results, ignore))
        results[name] = result.to_dict()
    return log.get(row.id)


@contextmanager
def copied_store(template: Path, home: Path) -> Iterator[Store]:
    """The store in `home`, made as a copy of `template`: tests of a module share a round that is run once."""
    shutil.copytree(template, home)
    with Store.open(home=home) as store:
        yield store


def import_clips(folder: Path, name: str = "digits") -> list[Path]:
    """Import sample clips of three digits as the project `name`; the last speaker's are test items. Gives the files."""
    folder.mkdir()
    paths = []
    with open(folder / "manifest.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "split"])
        for speaker in SPEAKERS:
            for digit in DIGITS:
                for take in (0, 1):
                    path = folder / f"{speaker}-{digit}-{take}.flac"
                    shutil.copy(CLIPS / speaker / f"{digit}-{take}.flac", path)
                    writer.writerow([path.name, digit, "test" if speaker == SPEAKERS[-1] else "train"])
                    paths.append(path)
    assert main(["import", str(folder / "manifest.csv"), "-p", name, "--classes", "add"]) == 0
    return paths
