"""The server's folders that users may import from or watch.

A user who may enter a path can read the files there, with the rights of the server process. The operator lists the
allowed folders in WINNOW_IMPORT_ROOTS (separated like PATH). Without that setting, every folder is allowed if only this
machine can reach the server. No folder is allowed if others may reach it: with an address other than loopback, an
access token, `[auth]`, or WINNOW_ALLOWED_HOSTS (a proxy in front).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from app.web.access import is_loopback
from core.errors import InvalidInput

SETTING = "WINNOW_IMPORT_ROOTS"


def allowed_roots(host: str, environ: Mapping[str, str], *, token: str | None, sign_in: bool) -> tuple[Path, ...]:
    """The allowed folders, resolved. Empty if no folder of the server may be used."""
    if SETTING in environ:
        listed = [Path(part).expanduser() for part in environ[SETTING].split(os.pathsep) if part.strip()]
        for root in listed:
            if not root.is_absolute():
                raise InvalidInput(f"{SETTING} names {str(root)!r}; use absolute paths, separated by {os.pathsep!r}.")
        return tuple(root.resolve() for root in listed)
    shared = not is_loopback(host) or token is not None or sign_in or environ.get("WINNOW_ALLOWED_HOSTS", "").strip()
    return () if shared else (Path("/"),)


def find_on_server(text: str, roots: tuple[Path, ...]) -> Path:
    """The file or folder at an absolute path, with links resolved, if it is below one of `roots`.

    The error is the same for a path that does not exist and for one that is not allowed, so that users cannot find out
    which files are on the server. Paths outside the roots are not accessed, except through a link inside them.
    """
    path = Path(os.path.normpath(Path(text.strip()).expanduser()))
    if "\0" not in text and path.is_absolute() and _within(path, roots):
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError):
            found = None
        if found is not None and _within(found, roots):
            return found
    raise InvalidInput(
        f"{text.strip()[:200]} was not found in a folder that may be imported from. Enter the absolute path of a "
        f"folder, a zip archive or a manifest. {_where(roots)}"
    )


def _within(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(path == root or root in path.parents for root in roots)


def _where(roots: tuple[Path, ...]) -> str:
    if not roots:
        return f"The operator has allowed no folder ({SETTING})."
    if roots == (Path("/"),):
        return ""
    return f"Allowed: {', '.join(map(str, roots))}."
