"""The process of one job (`app.jobs.jobs`): runs its command line with progress, result and end written to its
folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from app.cli import main as cli
from app.cli import output as cli_output
from core.errors import Cancelled
from storage.system.atomic_files import write_file


def main(folder: Path, lock: int) -> int:
    """`lock` is the descriptor that says this process lives; it stays open until the process ends."""
    os.set_inheritable(lock, False)
    asked = json.loads((folder / "job.json").read_text())
    command, *options = asked["arguments"]
    os.environ[cli_output.PROGRESS_FOLDER] = str(folder)
    printed = io.StringIO()
    if (folder / "cancel").exists():  # before it began: then nothing is done at all
        code = cli_output.complain(Cancelled())
    else:
        with contextlib.redirect_stdout(printed):
            code = cli.main([command, "--json", *options])
    write_file(folder / "result.json", printed.getvalue() or "null")
    write_file(folder / "ended.json", json.dumps({"code": code}))
    if code == 0 and asked["uses"]:
        Path(asked["uses"]).unlink(missing_ok=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
