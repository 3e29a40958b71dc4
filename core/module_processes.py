"""The command and environment of Winnow's child processes: `python -m MODULE` with this checkout on the import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def module_command(module: str, *arguments: str) -> list[str]:
    """The command of `python -m MODULE`. The working directory is not on its import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(environment: Mapping[str, str] | None = None, **changes: str) -> dict[str, str]:
    """The environment for `module_command`: that of this process, or `environment`, with ROOT on the import path."""
    values = dict(os.environ if environment is None else environment) | changes
    values["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), values.get("PYTHONPATH"))))
    return values
