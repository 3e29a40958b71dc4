"""One of the processes that torchrun starts: `python -m torch.distributed.run … -m core.learning.process FOLDER`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch.distributed as dist

from core.errors import WinnowError
from core.learning.distributed import World, join
from core.learning.job_files import read_job
from core.learning.launch import FAILURE, MODEL, PROGRESS, WARM
from core.learning.models import load_model, save_model
from core.learning.training import train
from core.runtime import Runtime
from core.types import Progress, Report, ignore


def reporter(path: Path) -> Report:
    def append(progress: Progress) -> None:
        with path.open("a") as file:
            file.write(json.dumps({**dataclasses.asdict(progress), "metrics": dict(progress.metrics)}) + "\n")

    return append


def main(folder: Path) -> int:
    device = join()
    job = read_job(folder)
    leads = World.current().leads
    runtime = Runtime.create(job.seed, device)
    warm_start = load_model(folder / WARM, runtime) if (folder / WARM).exists() else None
    try:
        model = train(
            job.inputs, job.labels, job.n_classes, job.config, runtime=runtime, checkpoint_dir=job.checkpoint_dir,
            warm_start=warm_start, held_out=job.held_out, report=reporter(folder / PROGRESS) if leads else ignore,
        )  # fmt: skip
    except WinnowError as error:
        if leads:
            (folder / FAILURE).write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}))
        return 1
    if leads:
        save_model(model, folder / MODEL)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
