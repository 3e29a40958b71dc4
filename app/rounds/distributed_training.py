"""The training stage by several processes: one per GPU, or as many as WINNOW_TRAIN_PROCESSES says.

The worker starts them with torchrun and listens: each line of the leader's output is one progress record. They train
together (`core.learning.distributed`); the leader leaves the model in a file. A cancelled round takes the whole team
with it; the team of a worker that died ends at its next report, when nobody reads it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from core.errors import TrainingFailed
from core.types import Progress, Report

if TYPE_CHECKING:
    from app.rounds.steps import StageContext

MARK = "winnow-progress "


def size() -> int:
    """Processes that train a round's model in this worker."""
    if asked := os.environ.get("WINNOW_TRAIN_PROCESSES"):
        return max(int(asked), 1)
    import torch

    return max(torch.cuda.device_count(), 1) if os.environ.get("WINNOW_DEVICE", "cuda") == "cuda" else 1


def train_together(bench: StageContext, n_processes: int, folder: Path) -> Path:
    """The path of the trained model's file, in `folder`."""
    model = folder / "model.safetensors"
    job = {
        "url": bench.store.url,
        "home": str(bench.store.home),
        "artifacts": bench.store.artifacts_address,
        "project_id": bench.row.project_id,
        "round_id": bench.row.id,
        "parcels": bench.parcels,
        "model": str(model),
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={n_processes}", "-m", "app.rounds.distributed_training", str(folder / "job.json")]
    with open(folder / "errors", "w+b") as errors:
        team = start(command, errors)
        try:
            listen(team, bench.report)
        finally:
            dismiss(team)
    if team.returncode or not model.exists():
        raise TrainingFailed(_cause(folder / "errors", n_processes))
    return model


def start(command: list[str], errors: IO[bytes]) -> subprocess.Popen[str]:
    """In a session of its own, so that all of it can be ended together."""
    root = Path(__file__).resolve().parent.parent.parent
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=root)


def listen(team: subprocess.Popen[str], report: Report) -> None:
    """Pass progress on until the team is done; `report` may raise."""
    assert team.stdout is not None
    for line in team.stdout:
        if line.startswith(MARK):
            report(Progress(**json.loads(line.removeprefix(MARK))))
    team.wait()


def dismiss(team: subprocess.Popen[str]) -> None:
    """Whatever happened, nobody of the team stays behind."""
    if team.poll() is None:
        os.killpg(team.pid, signal.SIGKILL)
        team.wait()
    if team.stdout is not None:
        team.stdout.close()


def _cause(errors: Path, n_processes: int) -> str:
    """The last sentence that one of our own errors left, else that the team failed."""
    for line in reversed(errors.read_text(errors="replace").splitlines()):
        if "core.errors." in line and ": " in line:
            return line.partition(": ")[2] if line.startswith("core.errors") else line.rpartition("core.errors.")[2]
    return f"The {n_processes} training processes ended without a model; the worker's log says more."


def member(job_file: Path) -> None:
    """What each process of the team runs."""
    import dataclasses

    import torch.distributed as dist

    from app.rounds.steps import StageContext
    from core.learning.distributed import World, join
    from core.learning.training import save_model
    from core.rounds import pipeline
    from storage.database.store import Store
    from storage.rounds.log import RoundLog

    job: dict[str, Any] = json.loads(job_file.read_text())
    device = join()
    leads = World.current().leads
    store = Store(job["url"], Path(job["home"]), job["artifacts"])

    def tell(progress: Progress) -> None:
        if leads:
            sys.stdout.write(MARK + json.dumps(dataclasses.asdict(progress)) + "\n")
            sys.stdout.flush()

    bench = StageContext(store, RoundLog(store, job["project_id"]).get(job["round_id"]), job["parcels"], tell)
    work = bench.work()
    work = dataclasses.replace(work, runtime=dataclasses.replace(work.runtime, device=device))
    model = pipeline.learn(work, bench.inputs(work))
    if leads and model is not None:
        save_model(model, Path(job["model"]))
    dist.barrier()
    dist.destroy_process_group()
    store.close()


if __name__ == "__main__":
    member(Path(sys.argv[1]))
