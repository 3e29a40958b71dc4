"""Uploads from a simulated browser, some of them cut: an upload that was acknowledged has all its files, byte for byte.

As in `app/web/widgets/assets/uploads.js`, a failed request ends the upload, and the person sends all files again under
a new name.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import uuid
import zipfile
from pathlib import Path

TIMEOUT_SECONDS = 20.0
N_FILES = (2, 5)
FILE_BYTES = (2_000, 60_000)


class Uploader(threading.Thread):
    """Uploads small archives one after the other; `cut` makes the next file end in the middle."""

    def __init__(self, port: int, ticket: str, folder: Path, seed: int) -> None:
        super().__init__(daemon=True, name="uploader")
        self.port, self.ticket, self.folder = port, ticket, folder
        self.chance = random.Random(f"{seed} uploads")
        self.cut, self.stopped = threading.Event(), threading.Event()
        self.completed = 0
        self.interrupted = 0
        self.damaged: list[str] = []

    def run(self) -> None:
        while not self.stopped.is_set():
            name, files = uuid.uuid4().hex, self.files()
            try:
                for position, (path, data) in enumerate(files.items()):
                    self.put(name, position, path, data)
                    self.stopped.wait(self.chance.uniform(0.05, 0.5))
                self.request("POST", f"/api/uploads/{name}/done", b"{}", {"X-Winnow-Files": str(len(files))})
            except (OSError, http.client.HTTPException):
                self.interrupted += 1
                self.stopped.wait(self.chance.uniform(0.2, 1.0))
                continue
            self.completed += 1
            self.compare(self.folder / f"{name}.zip", files)
            self.stopped.wait(self.chance.uniform(0.2, 1.5))

    def files(self) -> dict[str, bytes]:
        count = self.chance.randint(*N_FILES)
        return {f"folder/{i}.bin": self.chance.randbytes(self.chance.randint(*FILE_BYTES)) for i in range(count)}

    def put(self, name: str, position: int, path: str, data: bytes) -> None:
        headers = {"X-Winnow-Name": path, "X-Winnow-Alone": "no", "X-Winnow-Position": str(position)}
        if not self.cut.is_set():
            self.request("PUT", f"/api/uploads/{name}", data, headers)
            return
        self.cut.clear()
        lines = [f"PUT /api/uploads/{name} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(data)}"]
        lines += [f"{key}: {value}" for key, value in (headers | {"X-Winnow-Ticket": self.ticket}).items()]
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + data[: len(data) // 2])
        raise ConnectionAbortedError("The upload was cut.")

    def request(self, method: str, path: str, data: bytes, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, data, headers | {"X-Winnow-Ticket": self.ticket, "Connection": "close"})
            response = connection.getresponse()
            response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ConnectionError(f"status {response.status}")

    def compare(self, archive: Path, files: dict[str, bytes]) -> None:
        """An acknowledged archive against what was sent; then it is deleted, as after an import."""
        try:
            with zipfile.ZipFile(archive) as opened:
                found = {name: opened.read(name) for name in opened.namelist()}
        except (OSError, zipfile.BadZipFile) as error:
            self.damaged.append(f"An acknowledged upload cannot be read: {error!r}")
            return
        if found != files:
            self.damaged.append(f"An acknowledged upload has the files {sorted(found)}; sent were {sorted(files)}.")
        archive.unlink(missing_ok=True)

    def stop(self) -> None:
        self.stopped.set()
        self.join()
