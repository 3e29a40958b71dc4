"""Several processes train one model, as on a machine with several GPUs, here on the CPU."""

from __future__ import annotations

import os
import sys
import time

import pytest

from app.processes.child import PipedChild
from app.processes.messages import encode, error_message, progress_message
from app.rounds import distributed_training, steps
from app.rounds import requests as round_requests
from app.rounds.stored_round import StoredRound
from core.errors import Cancelled, TrainingFailed
from core.learning.training import load_model
from core.runtime import Runtime
from core.types import Progress, ignore
from tests.app.worker_processes import quick_config
from tests.round_pools import draw_project


@pytest.mark.slow
def test_two_processes_started_by_torchrun_leave_one_model(sqlite_store, tmp_path, monkeypatch):
    drawn = draw_project(sqlite_store, n_items=24)
    drawn.label(drawn.item_ids[:9])
    row = round_requests.request_round(sqlite_store, drawn.project_id, config=quick_config())
    results = {"snapshot": steps.take_snapshot(StoredRound(sqlite_store, row, {}, ignore)).to_dict()}
    for stage in ("encode", "prepare", "check"):
        results[stage] = steps.perform(stage, StoredRound(sqlite_store, row, results, ignore)).to_dict()
    seen: list[Progress] = []
    of = StoredRound(sqlite_store, row, results, seen.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("WINNOW_DEVICE", "cpu")
    model = load_model(distributed_training.train_together(of, 2, tmp_path), Runtime.create(0, "cpu"))
    assert model.metrics["step"] == 8 and model.shape.n_classes == 3
    assert [progress.done for progress in seen if progress.stage == "train"][-1] == 8


def test_cancelling_ends_all_training_processes(tmp_path):
    """Every process of the training ends when the round is cancelled."""
    line = encode(progress_message(Progress("train", 1, 9)))
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    leader = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], stdout=open({str(tmp_path / 'pid')!r}, 'w'))\n"
        f"while not open({str(tmp_path / 'pid')!r}).read().endswith('\\n'): time.sleep(0.02)\n"
        f"print({line!r}, flush=True)\n"
        "time.sleep(600)"
    )

    def report(progress: Progress) -> None:
        raise Cancelled("stop")

    with pytest.raises(Cancelled), PipedChild([sys.executable, "-c", leader]) as team:
        distributed_training.follow(team, report)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 120
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid) and team.process.returncode is not None


def test_the_error_of_a_training_process_reaches_the_worker():
    """With its type and its message, regardless of other output of the processes."""
    line = encode(error_message(TrainingFailed("The loss was not a number.")))
    code = f"print('a library prints this'); print({line!r}); raise SystemExit(1)"
    with (
        pytest.raises(TrainingFailed, match=r"^The loss was not a number\.$"),
        PipedChild([sys.executable, "-c", code]) as processes,
    ):
        distributed_training.follow(processes, ignore)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_number_of_training_processes_is_as_set(monkeypatch):
    monkeypatch.setenv("WINNOW_TRAIN_PROCESSES", "3")
    assert distributed_training.size() == 3
    monkeypatch.delenv("WINNOW_TRAIN_PROCESSES")
    monkeypatch.setenv("WINNOW_DEVICE", "cpu")
    assert distributed_training.size() == 1
    assert os.environ["WINNOW_DEVICE"] == "cpu"
