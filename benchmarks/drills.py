"""Injects random faults into a running system while simulated annotators label and rounds run, for five minutes.

    .venv/bin/python -m benchmarks.drills [--seconds 300] [--seed 0] [--database sqlite|postgresql] [--out FILE]
        [--annotators 4] [--pause 0.2] [--between 0.5 3]

Faults: the worker, the page server and PostgreSQL are killed with SIGKILL, the worker is paused, the disk is full for
some seconds (a small separate file system; needs root), connections and uploads are cut, bytes of artifacts and
caches are flipped, the clock jumps by up to ten years. The seed and the fault log are printed.

Last line: one JSON object. `acknowledged` counts the events that the server acknowledged as stored, `lost` those that
are not in the store as they were sent, `doubled` those that are stored twice or that nobody sent (promised: 0 and 0).
`inconsistencies` (promised: none) describes in sentences: a damaged database, projections that differ from the events,
events that were refused or stored in another order, answers that are internal errors, acknowledged uploads with other
bytes, no round that finishes after the faults. SIGTERM ends the faults early. The exit status is an error if a promise
is not kept. The test suite runs this for thirty seconds.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import threading
from pathlib import Path

from tests.drills.drill import Options, run_drill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a random seed, which is printed")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--annotators", type=int, default=Options.n_annotators)
    parser.add_argument("--pause", type=float, default=Options.pause, help="mean seconds between actions")
    parser.add_argument("--between", type=float, nargs=2, default=Options.between_faults, help="seconds between faults")
    parser.add_argument("--out", type=Path, default=None, help="also write the JSON, with the fault log, to this file")
    parser.add_argument("--logs", type=Path, default=None, help="keep the logs of the processes in this folder")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    options = Options(
        seconds=given.seconds,
        seed=seed,
        database=given.database,
        n_annotators=given.annotators,
        between_faults=(given.between[0], given.between[1]),
        pause=given.pause,
        logs=given.logs,
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    result = run_drill(options, lambda line: print(line, flush=True), stop)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1))
    print(json.dumps({name: value for name, value in result.items() if name != "fault_log"}))
    if result["lost"] or result["doubled"] or result["inconsistencies"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
