"""Which package may import which (docs/architecture.md), no cycles, and limits on the size of modules and folders."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("core", "storage", "app")
LIGHT_CORE = (
    "core.types",
    "core.errors",
    "core.config",
    "core.atomic_files",
    "core.module_processes",
    "core.kernel_names",
    "core.stored_config",
    "core.limits",
    "core.rows",
    "core.version",
    "core.encoders.built_in",
    "core.encoders.description",
    "core.encoders.folders",
)
# Modules of core that a page may import: they load numpy and nothing heavier.
PAGE_CORE = (
    *LIGHT_CORE,
    "core.acquisition.catalog",
    "core.media.audio",
    "core.media.images",
    "core.rounds.simulation_plan",
    "core.rounds.stage_names",
)
HEAVY = ("torch", "torchaudio", "onnx", "onnxruntime", "librosa", "numba", "umap")
WITHOUT_STREAMLIT = ("app.worker", "app.rounds", "app.simulation", "app.jobs", "app.live", "app.cli", "app.views")
FORBIDDEN_NAMES = {"utils", "helpers", "misc", "common", "manager", "base"}
SQL_CALLS = {"exec_driver_sql", "execute", "scalars"}
MOST_MODULES = 15  # of a folder
MOST_LINES = 400  # of a module

# Imports inside functions are harder to find, so they are allowed only for start-up cost. (module, imported, reason)
DEFERRED_IMPORTS = (
    ("app.cli.*", "*", "a command loads only what it needs, so that --help and --version answer at once"),
    ("app.live.process", "app.live.head", "it loads scipy, which a store without rounds never needs"),
    ("app.live.process", "core.labels.errors", "it loads scipy, which a store without rounds never needs"),
    ("app.jobs.operations", "app.jobs.summarize", "it loads torch; imports and exports start without it"),
    ("app.jobs.operations", "app.jobs.model_export", "it loads torch; imports and exports start without it"),
    ("app.jobs.operations", "app.jobs.embeddings", "it loads onnxruntime; imports and exports start without it"),
    ("app.jobs.operations", "app.jobs.audition", "it loads torch; imports and exports start without it"),
    ("app.jobs.operations", "app.jobs.prediction_jobs", "it loads torch; imports and exports start without it"),
    (
        "core.learning.standalone_predict",
        "*",
        "a model of pictures runs without soundfile, one of audio without Pillow",
    ),
    ("app.rounds.distributed_training", "*", "rank 0 runs in a worker that has torch loaded; the others load it here"),
    ("app.simulation.local_runner", "*", "the command plans and reports without torch; its children load it"),
    ("app.simulation.settings", "core.*", "pages read settings without torch"),
    ("app.simulation.trial_process", "*", "the thread counts are set before torch is loaded"),
    (
        "app.web.server",
        "app.web.screens.label",
        "loaded while the server starts, so that the first visitor does not wait",
    ),
    ("app.worker.worker", "*", "the command line imports this module without torch and the engine"),
    (
        "core.learning.calibration",
        "sklearn.*",
        "it loads pandas too, which takes a second; rounds with few labels, and most processes, do without it",
    ),
    ("app.views.measuring", "scipy.*", "half a second of every start of the page server; only groups need a quantile"),
    ("core.kernels.ntk", "core.kernels.fused", "numba takes seconds to load; the torch path does without it"),
    ("core.rounds.embedding_map", "umap.*", "umap takes seconds to load"),
    ("core.rounds.embedding_map", "core.numba_compilation", "numba, which umap loads, takes a third of a second"),
    ("storage.exporting.*", "pyarrow*", "pyarrow is needed for Parquet alone"),
    (
        "core.encoders.predicting.standalone_predict",
        "*",
        "a model of pictures runs without soundfile, one of audio without Pillow",
    ),
    ("core.encoders.embeddings", "pyarrow*", "pyarrow is needed for Parquet alone"),
    ("storage.importing.tables.parquet_table", "pyarrow*", "pyarrow is needed for Parquet alone"),
    ("storage.importing.zip_reader", "numpy", "every command that imports loads this module; only archives need numpy"),
    ("core.limits", "core.config", "every process that examines files loads this module at its start"),
    ("storage.media.windows", "*", "plain samples are cut without a decoder"),
    ("storage.media.probe", "*", "a probe process loads the decoder of the file at hand alone"),
)

# Groups of modules that import each other, imports in functions and under TYPE_CHECKING included. To be emptied: a
# group that no longer exists is removed from this list, and no new one is added.
KNOWN_CYCLES: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Imported:
    name: str  # the module, if it is one of Winnow's; otherwise the name as written
    in_function: bool


@cache
def modules() -> dict[str, Path]:
    found = {}
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports_of(module: str) -> tuple[Imported, ...]:
    """Every import statement, anywhere in the file: at the top, in functions, under TYPE_CHECKING."""
    return tuple(_imports_in(ast.parse(modules()[module].read_text()), in_function=False))


def _imports_in(node: ast.AST, *, in_function: bool) -> Iterator[Imported]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Imported(alias.name, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0 and child.module, "imports are absolute"
            for alias in child.names:
                full = f"{child.module}.{alias.name}"
                yield Imported(full if full in modules() else child.module, in_function)
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports_in(child, in_function=inside)


def belongs(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def forbidden_for(module: str) -> tuple[str, ...]:
    if belongs(module, *LIGHT_CORE):
        return (*HEAVY, "sqlalchemy", "streamlit", "dbos", "storage", "app", "scipy", "sklearn")
    if belongs(module, "core"):
        shared = ("storage", "app", "streamlit", "sqlalchemy", "dbos", "starlette")
        runs_onnx = belongs(module, "core.encoders", "core.learning.standalone_predict")
        return shared if runs_onnx else (*shared, "onnxruntime")
    if belongs(module, "storage"):
        return (*HEAVY, "streamlit", "dbos", "starlette", "app")
    if belongs(module, "app.web"):
        return (*HEAVY, "dbos")
    if module == "app.cli.supervisor":  # app.web.server_command is the command that it starts; no Streamlit in there
        return ("streamlit",)
    return ("streamlit", "app.web") if belongs(module, *WITHOUT_STREAMLIT) else ()


def broken_imports(module: str) -> list[str]:
    """The imports of `module` that its package may not have."""
    named = {imported.name for imported in imports_of(module)}
    broken = sorted(name for name in named if belongs(name, *forbidden_for(module)))
    of_core = {name for name in named if belongs(name, "core") and name != "core"}
    if belongs(module, "storage") or belongs(module, *LIGHT_CORE):
        broken += sorted(name for name in of_core if not belongs(name, *LIGHT_CORE))
    if belongs(module, "app.web"):
        broken += sorted(name for name in of_core if not belongs(name, *PAGE_CORE))
    return broken


# One test for all modules, not one per module: over a thousand tests took longer to start than to run.
def test_a_module_imports_only_what_its_package_may():
    broken = {module: names for module in modules() if (names := broken_imports(module))}
    assert not broken, f"Forbidden imports: {broken}"


def test_an_import_inside_a_function_has_a_reason():
    unexplained = sorted(
        f"{module} imports {imported.name}"
        for module in modules()
        for imported in imports_of(module)
        if imported.in_function and not any(explains(entry, module, imported.name) for entry in DEFERRED_IMPORTS)
    )
    assert not unexplained, f"Imports inside functions, without a reason in the table: {unexplained}"


def explains(entry: tuple[str, str, str], module: str, imported: str) -> bool:
    return fnmatch(module, entry[0]) and fnmatch(imported, entry[1])


def test_every_reason_for_an_import_inside_a_function_is_still_needed():
    inside = [(module, one.name) for module in modules() for one in imports_of(module) if one.in_function]
    stale = [entry[:2] for entry in DEFERRED_IMPORTS if not any(explains(entry, *pair) for pair in inside)]
    assert not stale, f"Remove these from DEFERRED_IMPORTS: {stale}"


def cycles() -> set[tuple[str, ...]]:
    """Groups of modules that reach each other (strongly connected components of more than one module)."""
    graph = {
        module: {one.name for one in imports_of(module) if one.name in modules() and one.name != module}
        for module in modules()
    }
    reach = {module: reachable(graph, module) for module in graph}
    together = (tuple(sorted(other for other in reach[m] if m in reach[other])) for m in graph if m in reach[m])
    return set(together)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that `start` imports, directly or through others; `start` itself when it is on a cycle."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph[module]
    return found


def test_no_modules_import_each_other():
    """Imports in functions and under TYPE_CHECKING count: they hide a cycle but do not remove it."""
    found, known = cycles(), set(KNOWN_CYCLES)
    assert found == known, f"New cycles: {sorted(found - known)}. Gone, remove from the list: {sorted(known - found)}."


def test_app_builds_no_sql():
    """Queries are named functions of storage. app passes a `Store` on and gets rows, arrays and counts."""
    found = {}
    for module in (name for name in modules() if belongs(name, "app")):
        named = {one.name for one in imports_of(module) if belongs(one.name, "sqlalchemy", "storage.database.schema")}
        tree = ast.parse(modules()[module].read_text())
        named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & SQL_CALLS
        found |= {module: sorted(named)} if named else {}
    assert not found


def test_a_module_is_small_and_named_after_what_it_does():
    unnamed = [module for module, path in modules().items() if path.stem in FORBIDDEN_NAMES]
    assert not unnamed, f"{unnamed}: give the module the name of its concept"
    lines = {module: len(path.read_text().splitlines()) for module, path in modules().items()}
    filled = [module for module, path in modules().items() if path.name == "__init__.py" and path.read_text() != ""]
    assert not filled, f"{filled} must stay empty"
    long = {module: n for module, n in lines.items() if n > MOST_LINES}
    assert not long, f"More than {MOST_LINES} lines: {long}. Divide them."


def test_a_folder_has_few_modules():
    paths = [*modules().values(), *(ROOT / "experiments").rglob("*.py")]
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in paths if path.name != "__init__.py")
    large = {folder: n for folder, n in folders.items() if n > MOST_MODULES}
    assert not large, f"More than {MOST_MODULES} modules: {large}. Group them into packages."


def loaded_after_importing(names: list[str], tmp_path: Path) -> set[str]:
    """The top-level packages that a fresh process has loaded after importing these modules."""
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint(*sys.modules)\n"
    environment = {**os.environ, "WINNOW_HOME": str(tmp_path)}  # app.web.main draws a page when it is imported
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_light_modules_and_the_store_load_without_torch(tmp_path):
    names = [m for m in modules() if belongs(m, *LIGHT_CORE) or (belongs(m, "storage") and "migrations" not in m)]
    assert not loaded_after_importing(names, tmp_path) & {*HEAVY, "streamlit", "dbos"}


def test_the_page_process_loads_neither_torch_nor_the_engine(tmp_path):
    """No screen imports torch or the engine, directly or through other modules."""
    names = [module for module in modules() if belongs(module, "app.web")]
    assert not loaded_after_importing(names, tmp_path) & {*HEAVY, "scipy", "sklearn", "dbos"}


def test_the_command_line_starts_without_torch_and_streamlit(tmp_path):
    assert not loaded_after_importing(["app.cli.main"], tmp_path) & {*HEAVY, "streamlit", "dbos"}


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def packages() -> set[str]:
    """Every package of the tree, as docs/architecture.md writes it: `core/learning/`."""
    return {f"{path.parent.relative_to(ROOT)}/" for path in modules().values() if path.name == "__init__.py"}


def described() -> dict[str, tuple[str, ...]]:
    """The tables of docs/architecture.md: package -> the modules that its row names."""
    rows = re.findall(r"^\| `((?:core|storage|app)/[\w/]*)` \| .+? \| (.*?) ?\|$", ARCHITECTURE, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a package has two rows"
    return {package: tuple(re.findall(r"`(\w+)`", names)) for package, names in rows}


def test_the_architecture_page_names_every_package_and_no_other():
    assert set(described()) == packages()


def test_the_architecture_page_names_the_light_modules_of_core():
    row = next(line for line in ARCHITECTURE.splitlines() if line.startswith("| light modules:"))
    assert re.findall(r"`(core\.[a-z_.]+)`", row) == list(LIGHT_CORE)


def test_every_module_that_the_architecture_page_names_exists():
    named = {f"{package}{module}.py" for package, names in described().items() for module in names}
    named |= set(re.findall(r"\b(?:core|storage|app|benchmarks|tests)/[\w/]+\.(?:py|js)\b", ARCHITECTURE))
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []


def test_every_folder_that_the_architecture_page_names_exists():
    named = set(
        re.findall(r"`((?:core|storage|app|docs|tests|benchmarks|experiments|sample_data)/[\w/]*)`", ARCHITECTURE)
    )
    assert sorted(path for path in named if not (ROOT / path).is_dir()) == []


def test_the_architecture_page_names_every_construction_of_the_coresets_library():
    table = ARCHITECTURE[ARCHITECTURE.index("| module in `core/coresets/library/`") :]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    there = {path.stem for path in (ROOT / "core/coresets/library").glob("*.py") if path.name != "__init__.py"}
    assert named == there
