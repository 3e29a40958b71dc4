"""The process of one job: `python -m app.jobs.process FOLDER LOCK`, started by `app.jobs.jobs`."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from app.jobs import operations, requests
from app.jobs.folder import JobFolder
from app.processes.explain import explain
from app.processes.messages import Message, error_message
from core.errors import Cancelled, WinnowError
from storage.database.store import Store
from storage.projects import roles


def main(path: Path, lock: int) -> int:
    """Carry out the request in the folder `path` and write its result there. `lock` is held until this process ends."""
    os.set_inheritable(lock, False)
    folder = JobFolder(path)
    job = folder.read_job() or {}
    message = _run(folder, job)
    folder.send(message)
    if message.kind == "result" and job["uses"]:
        Path(job["uses"]).unlink(missing_ok=True)
    return 0 if message.kind == "result" else 1


def _run(folder: JobFolder, job: dict[str, object]) -> Message:
    """Run the job. Returns its last message."""
    try:
        if folder.is_cancelled():
            raise Cancelled
        request = requests.from_dict(job["request"])  # type: ignore[arg-type]
        actor = job.get("actor")  # None: the operator
        acting = roles.acting_as(None if actor is None else roles.Actor(**actor))  # type: ignore[arg-type]
        with Store.open() as store, acting:
            outcome = operations.run(store, request, folder.reporter())
    except Exception as problem:
        if not isinstance(problem, WinnowError):
            traceback.print_exception(problem)
        return error_message(problem, explain(problem)[0])
    if outcome.error is not None:
        return error_message(outcome.error, result=outcome.result)
    return Message("result", outcome.result)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
