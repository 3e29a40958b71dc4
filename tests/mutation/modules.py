"""The modules on which the guarantees depend, each with the test files that should detect its mutants, fastest
first."""

from __future__ import annotations

LABELING = "tests/storage/labeling"
PROJECTS = "tests/storage/projects"
EXPORTING = "tests/storage/exporting"
CORESETS = "tests/core/coresets"
# Tests that take seconds and detect no mutants beyond those that the others detect.
NOT_MANY_PROCESSES = f"--deselect={LABELING}/test_queue.py::test_three_processes_never_get_the_same_item"

TESTS: dict[str, tuple[str, ...]] = {
    "core/similarity/propagation.py": ("tests/core/similarity/test_propagation.py",),
    "core/acquisition/strategies/bico.py": (
        "tests/core/acquisition/test_head_proxy.py",
        "tests/core/acquisition/test_bico.py",
        "tests/core/acquisition/test_constraints.py",
        "tests/core/acquisition/test_rivals.py",
    ),
    "core/coresets/bilevel.py": (f"{CORESETS}/test_bilevel_records.py", f"{CORESETS}/test_bilevel.py"),
    "core/labels/trust.py": ("tests/core/labels/test_trust.py", "tests/core/rounds/test_checking.py"),
    "core/labels/clip_trust.py": ("tests/core/labels/test_clip_trust.py", "tests/core/rounds/test_checking.py"),
    "core/labels/earlier_predictions.py": ("tests/core/labels/test_earlier_predictions.py",),
    "core/labels/influence.py": ("tests/core/labels/test_influence.py", "tests/core/rounds/test_checking.py"),
    "core/labels/second_looks.py": ("tests/core/labels/test_influence.py", "tests/core/rounds/test_checking.py"),
    "storage/labeling/projections.py": (
        f"{LABELING}/test_projection_rules.py",
        LABELING,
        f"{PROJECTS}/test_classes.py",
        NOT_MANY_PROCESSES,
    ),
    "storage/labeling/events.py": (LABELING, f"{PROJECTS}/test_roles.py", NOT_MANY_PROCESSES),
    "storage/labeling/queue.py": (f"{LABELING}/test_queue.py", LABELING, NOT_MANY_PROCESSES),
    "storage/projects/classes.py": (
        f"{PROJECTS}/test_classes.py",
        f"{PROJECTS}/test_class_keys.py",
        f"{LABELING}/test_event_limits.py",
    ),
    "storage/projects/class_rows.py": (
        f"{PROJECTS}/test_classes.py",
        f"{PROJECTS}/test_class_keys.py",
        f"{PROJECTS}/test_projects.py",
        f"{LABELING}/test_event_limits.py",
    ),
    "storage/exporting/rows.py": (
        f"{EXPORTING}/test_found_items.py",
        f"{EXPORTING}/test_contested.py",
        f"{EXPORTING}/test_run.py",
        f"{EXPORTING}/test_counts.py",
        f"{LABELING}/test_event_limits.py",
    ),
    "storage/exporting/run.py": (
        f"{EXPORTING}/test_run.py",
        f"{EXPORTING}/test_columns.py",
        f"{EXPORTING}/test_contested.py",
        f"{EXPORTING}/test_datasets.py",
        f"{EXPORTING}/test_recordings.py",
        f"{EXPORTING}/test_weights.py",
        f"{EXPORTING}/test_arrays.py",
        f"{EXPORTING}/test_verify.py",
        f"{EXPORTING}/test_interrupted.py",
    ),
    "app/rounds/workflows.py": ("tests/app/rounds/test_durable_steps.py",),  # the others run it in worker processes
}
