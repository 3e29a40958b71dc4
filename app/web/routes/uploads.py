"""Uploads from the browser. They are written directly to disk, not held in memory; file names are never used as paths.

An upload is one zip archive with a random name in `WINNOW_HOME/uploads`. Files are appended until the browser closes
it. The import then reads it with the checks for archives. A single zip file is stored unchanged.

Each file is sent with its position in the upload, and the request that closes the archive with the number of files.
These requests are refused if the archive has a different number of files because the server was restarted or the
archive was deleted in the meantime.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
import zipfile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.web import resources, tickets
from core.errors import Conflict, InvalidInput
from core.limits import limits_from

CHECK_DISK = "Check the server's disk, then choose the files again."
INCOMPLETE = "The server lost a part of this upload, because it was restarted. Choose the files again."
NAME = re.compile(r"[0-9a-f]{32}\Z")
KEPT_SECONDS = 2 * 24 * 3600  # uploads that are not imported are deleted after this time
_lock = threading.Lock()
_growing: dict[str, zipfile.ZipFile] = {}  # uploads in progress; after a restart they must be sent again


def upload_routes() -> list[Route]:
    return [
        Route("/api/uploads/{upload}", receive, methods=["PUT"]),
        Route("/api/uploads/{upload}/done", close, methods=["POST"]),
    ]


def upload_path(upload: str) -> Path:
    """The path of an upload's archive. Raises ValueError for a name that the server cannot have created."""
    if not NAME.fullmatch(upload):
        raise ValueError(f"{upload!r} is not the name of an upload.")
    return upload_folder() / f"{upload}.zip"


def upload_folder() -> Path:
    return resources.locations().home / "uploads"


async def receive(request: Request) -> Response:
    """Add one file. The body contains its bytes, `X-Winnow-Name` its percent-encoded name."""
    if tickets.redeem(resources.key(), request.headers.get("x-winnow-ticket")) is None:
        return _answer(401, "You are signed out. Open Winnow again.")
    upload, limits = request.path_params["upload"], limits_from()
    name = unquote(request.headers.get("x-winnow-name", ""))
    if not NAME.fullmatch(upload) or not name or "\0" in name or len(name.encode(errors="replace")) > 4_096:
        return _answer(422, "The upload has no usable name.")
    target = upload_path(upload)
    target.parent.mkdir(parents=True, exist_ok=True)
    alone = request.headers.get("x-winnow-alone") == "yes"
    most = limits.max_zip_bytes if alone else max(limits.max_file_bytes, limits.max_recording_bytes)
    room = limits.max_zip_bytes - await run_in_threadpool(_received, target)
    try:
        with NamedTemporaryFile(dir=target.parent, prefix="part-", delete=True) as part:
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    return _answer(413, f"{name[:80]} has more than {most:,} bytes, which is the limit.")
                if size > room:
                    sentence = f"All files together have more than {limits.max_zip_bytes:,} bytes. Send fewer files."
                    return _answer(413, sentence)
                part.write(chunk)
            part.flush()
            await run_in_threadpool(_keep, part, target, name, alone, _number(request, "x-winnow-position"))
    except OSError as error:
        return _answer(507, f"{name[:80]} was not stored: {error.strerror or error}. {CHECK_DISK}")
    except Conflict as error:
        return _answer(409, str(error))
    return JSONResponse({"bytes": size}, headers={"Cache-Control": "no-store"})


def add_file(upload: str, stream: IO[bytes], name: str) -> None:
    """Add one file to an upload that this server creates itself."""
    if not name or "\0" in name or len(name.encode(errors="replace")) > 4_096:
        raise InvalidInput("A file of the upload has no usable name.")
    target = upload_path(upload)
    target.parent.mkdir(parents=True, exist_ok=True)
    _received(target)
    _keep(stream, target, name, alone=False, position=None)


def finish_upload(upload: str) -> Path:
    """Complete the upload. Returns the path of its archive."""
    _close(upload, None)
    return upload_path(upload)


def _number(request: Request, header: str) -> int | None:
    """The number in a header, or None."""
    text = request.headers.get(header, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


async def close(request: Request) -> Response:
    """Complete the upload, so that the archive can be read."""
    if tickets.redeem(resources.key(), request.headers.get("x-winnow-ticket")) is None:
        return _answer(401, "You are signed out. Open Winnow again.")
    upload = request.path_params["upload"]
    if not NAME.fullmatch(upload):
        return _answer(404, "There is no such upload.")
    try:
        await run_in_threadpool(_close, upload, _number(request, "x-winnow-files"))
    except OSError as error:
        return _answer(507, f"The upload was not stored: {error.strerror or error}. {CHECK_DISK}")
    except Conflict as error:
        return _answer(409, str(error))
    if not upload_path(upload).exists():
        return _answer(404, "There is no such upload.")
    return JSONResponse({}, headers={"Cache-Control": "no-store"})


def _received(target: Path) -> int:
    """The number of bytes received so far. Before the first file, old uploads that were not imported are deleted."""
    with contextlib.suppress(FileNotFoundError):
        return target.with_suffix(".part").stat().st_size
    for path in target.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                with _lock:
                    archive = _growing.pop(path.stem, None)
                    if archive is not None:
                        archive.close()
                path.unlink()
    return 0


def _keep(part: IO[bytes], target: Path, name: str, alone: bool, position: int | None) -> None:
    """Append the file to the archive under its own name, or make it the archive itself.

    Raises Conflict if the archive does not contain `position` files.
    """
    part.seek(0)
    if alone:
        with target.with_suffix(".part").open("wb") as stream:
            shutil.copyfileobj(part, stream, 1 << 20)
        target.with_suffix(".part").replace(target)
        return
    with _lock:
        archive = _growing.get(target.stem)
        _check_count(archive, position)
        if archive is None:
            archive = _growing[target.stem] = zipfile.ZipFile(target.with_suffix(".part"), "w", zipfile.ZIP_STORED)
        with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as stream:
            shutil.copyfileobj(part, stream, 1 << 20)


def _check_count(archive: zipfile.ZipFile | None, expected: int | None) -> None:
    if expected is not None and expected != (0 if archive is None else len(archive.namelist())):
        raise Conflict(INCOMPLETE)


def _close(upload: str, n_files: int | None) -> None:
    with _lock:
        archive = _growing.pop(upload, None)
        if archive is not None or not upload_path(upload).exists():  # a single zip file is complete already
            _check_count(archive, n_files)
        if archive is not None:
            archive.close()
            upload_path(upload).with_suffix(".part").replace(upload_path(upload))


def _answer(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status, headers={"Cache-Control": "no-store"})
