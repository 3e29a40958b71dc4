"""A training job as files that processes started by torchrun can share: arrays as .npy, memory-mapped, and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.config import MediaConfig, TrainingConfig, from_dict
from core.media.inputs import Inputs, NormalizedRows
from core.media.views import view_bank
from core.rows import ArrayRows
from core.runtime import Runtime
from core.types import Report, Rows

BLOCK = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything `train` needs, apart from where it runs."""

    inputs: Inputs
    labels: NDArray[np.int64]
    n_classes: int
    config: TrainingConfig
    seed: int
    held_out: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    checkpoint_dir: Path | None


class BankOnly:
    """A `RowCache` that knows one thing: the bank of views, which the parent process has made."""

    def __init__(self, bank: Rows | None) -> None:
        self.bank = bank

    def rows(
        self,
        key: str,
        names: Sequence[str],
        compute: Callable[[Sequence[int]], NDArray[Any]],
        report: Callable[[int, int], None] | None = None,
    ) -> Rows:
        if self.bank is None or len(names) != len(self.bank):
            return ArrayRows(compute(range(len(names))))
        return self.bank


def write_rows(path: Path, rows: Rows) -> None:
    """Block by block, so that memory stays bounded."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=rows.dtype, shape=rows.shape)
    for start in range(0, len(rows), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(rows)))
        file[block] = rows.take(block)
    file.flush()


def write_job(folder: Path, job: Job, runtime: Runtime, report: Report) -> None:
    inputs, config = job.inputs, job.config
    write_rows(folder / "sources.npy", inputs.sources)
    if inputs.kind == "audio":
        write_rows(folder / "clean.npy", inputs.clean)
        if config.augment and config.bank_views:
            bank = view_bank(inputs, config.bank_views, device=runtime.device, report=report)
            write_rows(folder / "bank.npy", bank)
    arrays = {"labels": job.labels, "readable": inputs.readable, "mean": inputs.mean, "scale": inputs.scale}
    if job.held_out is not None:
        arrays.update(held_out_rows=job.held_out[0], held_out_labels=job.held_out[1])
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    description = {
        "kind": inputs.kind, "media": dataclasses.asdict(inputs.config), "names": list(inputs.names),
        "notes": list(inputs.notes), "key": inputs.key, "n_classes": job.n_classes, "seed": job.seed,
        "config": dataclasses.asdict(config),
        "checkpoint_dir": None if job.checkpoint_dir is None else str(Path(job.checkpoint_dir).absolute()),
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(description))


def read_job(folder: Path) -> Job:
    about = json.loads((folder / "job.json").read_text())

    def mapped(name: str) -> NDArray[Any]:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    def loaded(name: str) -> NDArray[Any]:
        return np.load(folder / f"{name}.npy")

    sources = ArrayRows(mapped("sources"))
    mean, scale = loaded("mean"), loaded("scale")
    is_audio = about["kind"] == "audio"
    clean: Rows = ArrayRows(mapped("clean")) if is_audio else NormalizedRows(sources, mean, scale)
    has_bank, has_test = (folder / "bank.npy").exists(), (folder / "held_out_rows.npy").exists()
    inputs = Inputs(
        kind=about["kind"], config=from_dict(MediaConfig, about["media"]), clean=clean, sources=sources, mean=mean,
        scale=scale, names=tuple(about["names"]), readable=loaded("readable"), notes=tuple(about["notes"]),
        cache=BankOnly(ArrayRows(mapped("bank")) if has_bank else None), key=about["key"],
    )  # fmt: skip
    return Job(
        inputs=inputs, labels=loaded("labels"), n_classes=about["n_classes"],
        config=from_dict(TrainingConfig, about["config"]), seed=about["seed"],
        held_out=(loaded("held_out_rows"), loaded("held_out_labels")) if has_test else None,
        checkpoint_dir=None if about["checkpoint_dir"] is None else Path(about["checkpoint_dir"]),
    )  # fmt: skip
