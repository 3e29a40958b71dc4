"""The command that starts the page server. This module does not import Streamlit: the command line imports it.

The command must run with the repository's root as working directory, which contains `.streamlit/config.toml` and which
`python -m` puts on the import path.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from app.web import tickets
from app.web.access import needs_token

ROOT = Path(__file__).resolve().parent.parent.parent
HEALTH_PATH = "/_stcore/health"


def command(host: str, port: int) -> list[str]:
    """The command that starts the page server on `host` and `port`. Run it in `ROOT` with `environment(...)`."""
    return [
        *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "web" / "server.py")),
        *("--server.address", host, "--server.port", str(port), "--server.headless", "true"),
        *("--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"),
    ]


def environment(host: str, port: int, home: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for `command`: the data folder, the address to listen on, and the token if one is needed."""
    values = dict(os.environ if environ is None else environ)
    values |= {"WINNOW_HOST": host, "WINNOW_PORT": str(port), "WINNOW_HOME": str(home)}
    values.setdefault("STREAMLIT_SERVER_COOKIE_SECRET", tickets.signing_key(home).hex())
    token = access_token(host, home, values)
    if token is not None:
        values["WINNOW_TOKEN"] = token
    return values


def access_token(host: str, home: Path, environ: Mapping[str, str]) -> str | None:
    """The token that visitors must present: WINNOW_TOKEN or the stored one. None on loopback or with `[auth]`."""
    if not needs_token(host, sign_in=sign_in_configured()):
        return environ.get("WINNOW_TOKEN") or None
    return environ.get("WINNOW_TOKEN") or tickets.stored_token(home)


def address(host: str, port: int, token: str | None = None) -> str:
    """The address to print and to open. It contains the token, if any."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def secrets_files() -> tuple[Path, Path]:
    return ROOT / ".streamlit" / "secrets.toml", Path.home() / ".streamlit" / "secrets.toml"


def sign_in_configured(files: tuple[Path, ...] | None = None) -> bool:
    """Whether an identity provider is configured, by an `[auth]` table in Streamlit's secrets."""
    for path in secrets_files() if files is None else files:
        if path.is_file():
            with path.open("rb") as stream:
                if "auth" in tomllib.load(stream):
                    return True
    return False
