"""The training stage in several processes: one per GPU, or the number set by WINNOW_TRAIN_PROCESSES.

The worker starts them with torchrun as one `app.processes.child.PipedChild`; rank 0 sends progress. They train one
model (`core.learning.distributed`), and rank 0 saves it to a file. Cancelling the round kills all of them. If the
worker is killed, they end at their next report, because the pipe is closed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.processes.channel import Channel
from app.processes.child import PipedChild, explain_exit
from app.processes.messages import error_message
from core.errors import TrainingFailed, WinnowError
from core.module_processes import module_command
from core.types import Progress, Report

if TYPE_CHECKING:
    from app.rounds.stored_round import StoredRound

LOG = logging.getLogger("winnow.worker")
LOG_LENGTH = 20_000


def size() -> int:
    """The number of processes that train a round's model in this worker."""
    if asked := os.environ.get("WINNOW_TRAIN_PROCESSES"):
        return max(int(asked), 1)
    import torch

    return max(torch.cuda.device_count(), 1) if os.environ.get("WINNOW_DEVICE", "cuda") == "cuda" else 1


def train_together(of: StoredRound, n_processes: int, folder: Path) -> Path:
    """Train the model of the round in `n_processes` processes. Returns the path of the model file, in `folder`."""
    model = folder / "model.safetensors"
    job = {
        "url": of.store.url,
        "home": str(of.store.home),
        "artifacts": of.store.artifacts_address,
        "project_id": of.row.project_id,
        "round_id": of.row.id,
        "results": {name: result.to_dict() for name, result in of.results.items()},
        "model": str(model),
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = module_command("torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
    command += [f"--nproc-per-node={n_processes}", "-m", "app.rounds.distributed_training", str(folder / "job.json")]
    with open(folder / "errors", "w+b") as errors, PipedChild(command, stderr=errors) as processes:
        follow(processes, of.report)
        code = processes.process.wait()
    if code or not model.exists():
        LOG.warning("The training processes wrote: %s", (folder / "errors").read_text(errors="replace")[-LOG_LENGTH:])
        raise TrainingFailed(
            f"The {n_processes} training processes ended without a model ({explain_exit(code)}); the worker's log says "
            "more."
        )
    return model


def follow(processes: PipedChild, report: Report) -> None:
    """Forward progress to `report` until all processes have ended. Raises the first error that a process sent, or any
    error of `report`."""
    failure: WinnowError | None = None
    for message in processes.messages():
        if message.kind == "progress":
            report(message.progress())
        elif message.kind == "error":
            failure = failure or message.error()
    if failure is not None:
        raise failure


def member(job_file: Path) -> None:
    """The main function of each training process. A `WinnowError` is sent to the worker."""
    channel = Channel()
    try:
        _train(json.loads(job_file.read_text()), channel)
    except WinnowError as error:
        channel.send(error_message(error))
        raise


def _train(job: dict[str, Any], channel: Channel) -> None:
    import dataclasses

    import torch.distributed as dist

    from app.rounds.stored_round import StoredRound
    from core.learning.distributed import World, join
    from core.learning.training import save_model
    from core.media.inputs import Inputs
    from core.rounds.outputs import LabelTrust
    from core.rounds.round_model import train_model
    from storage.database.store import Store
    from storage.rounds.log import RoundLog

    device = join()
    leads = World.current().leads
    store = Store(job["url"], Path(job["home"]), job["artifacts"])

    def forward(progress: Progress) -> None:
        if leads:
            channel.report(progress)

    of = StoredRound(store, RoundLog(store, job["project_id"]).get(job["round_id"]), job["results"], forward)
    context = dataclasses.replace(of.context, runtime=dataclasses.replace(of.context.runtime, device=device))
    model = train_model(context, of.outputs.get(Inputs), of.outputs.find(LabelTrust)).model
    if leads and model is not None:
        save_model(model, Path(job["model"]))
    dist.barrier()
    dist.destroy_process_group()
    store.close()


if __name__ == "__main__":
    member(Path(sys.argv[1]))
