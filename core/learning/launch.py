"""Training in several processes through torchrun, one per GPU (or several on the CPU), from a process that is alone.

The parent writes the job into a folder and follows it: progress comes back line by line, an error with its text, the
model as a file. When the parent is told to stop, the processes are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from core import errors
from core.config import TrainingConfig
from core.errors import TrainingFailed
from core.learning.job_files import Job, write_job
from core.learning.models import TrainedModel, load_model, save_model
from core.runtime import Runtime
from core.types import Progress, Report

POLL_SECONDS = 0.2
ROOT = Path(__file__).resolve().parents[2]
PROGRESS, FAILURE, MODEL, WARM = "progress.jsonl", "failure.json", "model.safetensors", "warm.safetensors"


def n_processes(config: TrainingConfig, runtime: Runtime) -> int:
    """One per GPU when `processes` is 0; inside a process group always this one alone."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return 1
    return config.processes or (max(1, torch.cuda.device_count()) if runtime.is_cuda else 1)


def train_in_processes(
    job: Job, n: int, runtime: Runtime, warm_start: TrainedModel | None, report: Report
) -> TrainedModel:
    """What `train` gives in one process, from `n` that share every batch."""
    with tempfile.TemporaryDirectory(prefix="winnow-train-") as name:
        folder = Path(name)
        write_job(folder, job, runtime, report)
        if warm_start is not None:
            save_model(warm_start, folder / WARM)
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}",
            "-m", "core.learning.process", str(folder),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // n))}
        with (folder / "output.txt").open("wb") as output:
            running = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            _follow(running, folder / PROGRESS, report)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        if running.returncode != 0:
            raise _failure(folder, running.returncode)
        return load_model(folder / MODEL, runtime)


def _follow(running: subprocess.Popen[bytes], path: Path, report: Report) -> None:
    seen = 0
    while True:
        ended = running.poll() is not None
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for line in lines[seen:]:
            if not line.endswith("\n"):
                break
            seen += 1
            report(Progress(**json.loads(line)))
        if ended:
            return
        if seen == len(lines):
            report(Progress("train", 0, 0, "waiting for the processes") if not seen else _last(lines))
        time.sleep(POLL_SECONDS)


def _last(lines: list[str]) -> Progress:
    return Progress(**{**json.loads(lines[-1]), "metrics": {}})


def _failure(folder: Path, code: int) -> errors.WinnowError:
    if (folder / FAILURE).exists():
        about = json.loads((folder / FAILURE).read_text())
        kind = getattr(errors, about["kind"], TrainingFailed)
        return kind(about["message"])
    tail = (folder / "output.txt").read_text(errors="replace")[-1_500:]
    return TrainingFailed(f"The training processes ended with code {code}. Their last words:\n{tail}")
