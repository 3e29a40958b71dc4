"""The process of one job (`app.jobs`): runs its command line with progress, result and end written to its folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from app import cli, cli_output, jobs


def main(folder: Path) -> int:
    with jobs.held(folder):
        (folder / "began").touch()
        asked = json.loads((folder / "job.json").read_text())
        os.environ[cli_output.PROGRESS_FOLDER] = str(folder)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = cli.main([*asked["arguments"], "--json"])
        _put(folder / "result.json", printed.getvalue() or "null")
        _put(folder / "ended.json", json.dumps({"code": code}))
        return code


def _put(path: Path, text: str) -> None:
    draft = path.with_suffix(".part")
    draft.write_text(text)
    os.replace(draft, path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
