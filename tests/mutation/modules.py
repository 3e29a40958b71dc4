"""The modules that carry the promises, each with the test files that have to notice its mutants."""

from __future__ import annotations

LABELING = "tests/storage/labeling"
PROJECTS = "tests/storage/projects"
EXPORTING = "tests/storage/exporting"
CORESETS = "tests/core/coresets"

TESTS: dict[str, tuple[str, ...]] = {
    "core/similarity/propagation.py": ("tests/core/similarity/test_propagation.py",),
    "core/acquisition/strategies/bico.py": ("tests/core/acquisition/test_bico.py", "tests/core/acquisition"),
    "core/coresets/bilevel.py": (f"{CORESETS}/test_bilevel_records.py", f"{CORESETS}/test_bilevel.py"),
    "storage/labeling/projections.py": (LABELING, f"{PROJECTS}/test_classes.py"),
    "storage/labeling/events.py": (LABELING,),
    "storage/labeling/queue.py": (LABELING,),
    "storage/projects/classes.py": (PROJECTS,),
    "storage/projects/class_rows.py": (PROJECTS, LABELING),
    "storage/exporting/rows.py": (EXPORTING,),
    "storage/exporting/run.py": (EXPORTING,),
    "app/rounds/workflows.py": ("tests/app/rounds",),
}
