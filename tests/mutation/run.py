"""Mutation testing of the modules on which the guarantees depend.

    .venv/bin/python -m tests.mutation.run [MODULE ...] [--sample 40] [--seed 0] [--out mutation.json]

Each mutant (`tests.mutation.mutants`) is imported instead of the module in a forked process, which runs the module's
test files (`tests.mutation.modules`) until the first failure. A mutant is `noticed` when a test fails or the time is
over, `survived` when all tests pass. Files are not changed. Processes that the tests start themselves import the
unchanged module, so only what the test process executes counts.

Results are added to the JSON file after each mutant, under the module, the hash of its source and the name of the
mutant; a second run continues where the first one ended. `--again` repeats the survivors, after tests were added.
`--match` runs the mutants whose name contains a text, such as a line number. The output of the last tests is in
MUTATION_LOG, if that is set. Tests marked `postgres`, `slow` or `browser` are left out unless `--marks` is given.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.mutation.modules import TESTS
from tests.mutation.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent.parent
PRELOADED = ("torch", "scipy.sparse", "sklearn.cluster", "numba", "pytest", "hypothesis", "storage.labeling.pool")
OURS = ("core", "storage", "app", "tests")
FASTEST = "not postgres and not slow and not browser"


class MutatedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed code."""

    def __init__(self, module: str, path: Path, code: CodeType) -> None:
        self.module, self.path, self.code = module, path, code

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def preload() -> None:
    """Import slow packages once, before processes are forked. Winnow's modules are imported again in each process."""
    for name in PRELOADED:
        importlib.import_module(name)
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS and not name.startswith("tests.mutation"):
            del sys.modules[name]


def run_tests(path: str, code: CodeType | None, marks: str) -> int:
    """In a forked process: the exit code of pytest over the module's test files."""
    import pytest

    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # few plugins: a quicker start
    if code is not None:
        sys.meta_path.insert(0, MutatedModule(path.removesuffix(".py").replace("/", "."), ROOT / path, code))
    output = os.open(os.environ.get("MUTATION_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-m", marks]
    options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*options, *TESTS[path]]))


def verdict_of(path: str, code: CodeType | None, marks: str, seconds: float) -> tuple[str, float]:
    """`noticed`, `timeout` or `survived`, and the seconds it took."""
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        status = 99
        try:
            status = run_tests(path, code, marks)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    while (taken := time.monotonic() - start) < seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return ("survived" if os.waitstatus_to_exitcode(status) == 0 else "noticed"), taken
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)  # the forked process and what its tests started
    os.waitpid(child, 0)
    return "timeout", taken


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def sampled(source: str, size: int, seed: int) -> list[Mutant]:
    mutants = mutants_of(source)
    chosen = random.Random(seed).sample(mutants, size) if 0 < size < len(mutants) else mutants
    return sorted(chosen, key=lambda mutant: (mutant.line, mutant.name))


def mutate(path: str, options: argparse.Namespace, results: dict[str, Any]) -> None:
    source = (ROOT / path).read_text()
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    record = results.setdefault(path, {})
    if record.get("source") != digest:
        record.clear()
        record |= {"source": digest, "made": len(mutants_of(source)), "verdicts": {}}
    verdict, seconds = verdict_of(path, None, options.marks, options.timeout)
    if verdict != "survived":
        sys.exit(f"The tests of {path} do not pass without a mutant ({verdict}).")
    limit = max(20.0, 6 * seconds)
    say(f"{path}: {record['made']} mutants, {seconds:.1f} s for its tests")
    for mutant in sampled(source, options.sample, options.seed):
        if options.match not in mutant.name:
            continue
        known = record["verdicts"].get(mutant.name)
        if known is not None and not (options.again and known == "survived"):
            continue
        verdict, taken = verdict_of(path, compile(mutant.tree(source), path, "exec"), options.marks, limit)
        record["verdicts"][mutant.name] = verdict
        options.out.write_text(json.dumps(results, indent=1))
        if verdict == "survived" or options.show:
            say(f"  {verdict} ({taken:.1f} s)  {mutant.name}")
    survivors = sum(verdict == "survived" for verdict in record["verdicts"].values())
    say(f"{path}: {len(record['verdicts'])} run, {survivors} survived")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", metavar="MODULE", default=[])
    parser.add_argument("--sample", type=int, default=0, help="mutants for each module, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests without a mutant")
    parser.add_argument("--marks", default=FASTEST)
    parser.add_argument("--again", action="store_true", help="repeat the survivors")
    parser.add_argument("--match", default="", help="only mutants whose name contains this text")
    parser.add_argument("--show", action="store_true", help="print every mutant, not only survivors")
    parser.add_argument("--out", type=Path, default=Path("mutation.json"))
    options = parser.parse_args()
    if unknown := set(options.modules) - set(TESTS):
        parser.error(f"No tests are listed for {', '.join(sorted(unknown))}. Known: {', '.join(TESTS)}")
    preload()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for path in options.modules or TESTS:
        mutate(path, options, results)


if __name__ == "__main__":
    main()
