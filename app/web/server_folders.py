"""Which folders of the server people may import from or watch.

A visitor who may name a path can read what is there, with the rights of the server process. The operator lists the
allowed folders in WINNOW_IMPORT_ROOTS (separated like PATH). Without that setting every folder is allowed as long as
Winnow is used by one person on one machine, and none when others may reach it: an address beyond loopback,
an access token, `[auth]`, or WINNOW_ALLOWED_HOSTS (a proxy in front).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from app.web.access import is_loopback
from core.errors import InvalidInput

SETTING = "WINNOW_IMPORT_ROOTS"


def allowed_roots(host: str, environ: Mapping[str, str], *, token: str | None, sign_in: bool) -> tuple[Path, ...]:
    """The folders, resolved; empty when nothing on the server may be named."""
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

    A path that does not exist and one that is not allowed give the same answer, so that visitors cannot find out what
    is on the server. Nothing outside the roots is touched, unless a link inside them leads there.
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
