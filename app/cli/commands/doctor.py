"""`python -m app doctor`: checks the installation and prints advice for each problem. Nothing is changed."""

from __future__ import annotations

import platform
import re
import shutil
import socket
import webbrowser
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from app.cli.options import Json
from app.cli.output import show

if TYPE_CHECKING:
    from storage.database.locations import Locations

ROOT = Path(__file__).resolve().parents[3]
LITTLE_DISK = 5 * 2**30
SETUP = "Install the pinned versions: make setup"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` is empty if there is nothing to do."""

    subject: str
    status: Literal["ok", "warning", "problem"]
    found: str
    advice: str = ""


def doctor(as_json: Json = False) -> int:
    """Check the installation, device, encoders, store, disk, port, workers and browser. Exit code 1 if there is a
    problem."""
    findings = examine()
    marks = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}
    lines = [f"{marks[one.status]}  {one.subject}: {one.found}" for one in findings]
    lines = [
        line + (f"\n         → {one.advice}" if one.advice else "") for line, one in zip(lines, findings, strict=True)
    ]
    show([asdict(one) for one in findings], as_json, "\n".join(lines))
    return 1 if any(one.status == "problem" for one in findings) else 0


def examine() -> list[Finding]:
    """Run all checks. An unexpected error of a check is reported as a finding and does not stop the others."""
    found = []
    checks: tuple[Callable[[], Finding], ...] = (
        python, packages, device, encoders, store, disk, port, workers, browser,
    )  # fmt: skip
    for check in checks:
        try:
            found.append(check())
        except Exception as problem:
            sentence = f"{type(problem).__name__}: {problem}"
            found.append(Finding(check.__name__, "problem", sentence, "Correct this, then run doctor again."))
    return found


def python() -> Finding:
    version = platform.python_version()
    return Finding("Python", "ok", f"{version} on {platform.system()} {platform.machine()}")


def packages() -> Finding:
    """Compare the pins of requirements.txt with the installed versions. Build suffixes (2.13.0+cpu) are ignored."""
    wrong, n_pins = [], 0
    for name, wanted in pins((ROOT / "requirements.txt").read_text()):
        n_pins += 1
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        if installed.split("+")[0] != wanted:
            wrong.append(f"{name} is {installed} instead of {wanted}")
    if not wrong:
        return Finding("packages", "ok", f"all {n_pins} pinned packages are installed")
    missing = any("missing" in one for one in wrong)
    return Finding("packages", "problem" if missing else "warning", "; ".join(wrong), SETUP)


def pins(text: str) -> list[tuple[str, str]]:
    """(name, version) for each pinned requirement."""
    return re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s#;]+)", text, re.MULTILINE)


def device() -> Finding:
    """Report the device that rounds would use, and check that the torch build fits the machine."""
    import torch

    from core.runtime import default_device

    chosen, build = default_device(), f"torch {torch.__version__}"
    if chosen.type == "cuda":
        return Finding("device", "ok", f"{torch.cuda.get_device_name(chosen)}, {build}")
    if torch.version.cuda is not None and not torch.cuda.is_available():
        advice = "Without a GPU the CPU build is smaller: make run TORCH=cpu. With one, check its driver: nvidia-smi"
        return Finding("device", "warning", f"{chosen}, {build} with CUDA libraries, but no GPU was found", advice)
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "Install the CUDA build: make run TORCH=cuda"
        return Finding("device", "warning", f"{chosen}, {build}; this machine has an NVIDIA driver", advice)
    return Finding("device", "ok", f"{chosen}, {build}, {torch.get_num_threads()} threads")


def encoders() -> Finding:
    """Report the encoders of this store, and check that each can be read."""
    from core.encoders.built_in import BUILT_IN
    from core.encoders.folders import Encoder, installed

    there = dict(installed(_place().home))
    broken = [f"{name}: {one}" for name, one in there.items() if not isinstance(one, Encoder)]
    if broken:
        advice = "Add it again: python -m app encoders add FOLDER. Or remove it: python -m app encoders remove NAME"
        return Finding("encoders", "problem", "; ".join(broken), advice)
    own = [name for name in there if name not in BUILT_IN]
    return Finding("encoders", "ok", f"built in: {', '.join(BUILT_IN)}; added: {', '.join(own) or 'none'}")


def store() -> Finding:
    """Check that the store can be opened, and report the number of its projects."""
    from core.errors import StoreUnusable
    from storage.database.locations import shown
    from storage.database.store import Store

    place = _place()
    if not place.home.exists():
        return Finding("store", "ok", f"none yet; it will be created in {place.home}")
    try:
        with Store.open(migrate=False) as opened:
            from storage.projects.projects import list_projects

            n_projects, warnings = len(list_projects(opened, include_archived=True)), opened.warnings
    except StoreUnusable as problem:
        return Finding("store", "problem", str(problem), "An older store is migrated by: python -m app run")
    about = f"{shown(place.database_url)}, {n_projects} projects"
    if warnings:
        return Finding("store", "warning", f"{about}. {' '.join(warnings)}", "Follow the advice in the warning.")
    return Finding("store", "ok", about)


def disk() -> Finding:
    """Report the free space of the disk that contains the store."""
    home = _place().home
    there = next(path for path in (home, *home.parents) if path.exists())
    usage = shutil.disk_usage(there)
    about = f"{usage.free / 2**30:,.1f} of {usage.total / 2**30:,.1f} GiB free at {there}"
    if usage.free < LITTLE_DISK:
        advice = "See what can be removed: python -m app clean. Or set WINNOW_HOME to a folder on another disk."
        return Finding("disk", "problem" if usage.free < LITTLE_DISK // 10 else "warning", about, advice)
    return Finding("disk", "ok", about)


def port() -> Finding:
    """Check that the port is free or used by Winnow."""
    from app.cli.supervisor import healthy

    place = _place()
    where = f"{place.host}:{place.port}"
    with socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((place.host, place.port))
        except OSError as problem:
            if healthy(place.host, place.port):
                return Finding("port", "ok", f"Winnow is running at {where}")
            advice = f"Use another port: python -m app run --port {place.port + 1}"
            return Finding("port", "problem", f"{where} cannot be used: {problem.strerror}", advice)
    return Finding("port", "ok", f"{where} is free")


def workers() -> Finding:
    """Report the running workers of the store."""
    from storage.database.store import Store
    from storage.rounds.workers import living_workers

    if not _place().home.exists():
        return Finding("workers", "ok", "none; python -m app run starts one")
    with Store.open(migrate=False) as opened:
        living = living_workers(opened)
    if not living:
        return Finding("workers", "ok", "none is running; python -m app run starts one")
    return Finding("workers", "ok", ", ".join(f"{row.host} ({row.device})" for row in living))


def browser() -> Finding:
    """Check that a browser can be opened on this machine."""
    try:
        return Finding("browser", "ok", webbrowser.get().name)
    except webbrowser.Error:
        advice = "Open the printed address in a browser on your own machine. For access from there set WINNOW_HOST."
        return Finding(
            "browser", "warning", "none can be opened from here: none is installed, or there is no display", advice
        )


def _place() -> Locations:
    from storage.database.locations import from_environment

    return from_environment()
