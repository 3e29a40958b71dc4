"""A TCP proxy on loopback that cuts connections: before the request, before the response, or in the middle of one.

The cut before the response matters most: the server has stored the labels, and the browser gets no acknowledgment.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

BLOCK = 1 << 16
MAX_CONNECTIONS = 64
CUTS = ("before the request", "before the response", "in the response")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset instead of an orderly end


class CuttingProxy:
    """Forwards to `target` on loopback; `cut_for(seconds)` makes it cut about half of the connections for a while."""

    def __init__(self, target: int, seed: int) -> None:
        self.target = target
        self._chance, self._until = random.Random(seed), 0.0
        self._live: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_for(self, seconds: float) -> None:
        """Cut all live connections now, and about half of the new ones for `seconds`."""
        self._until = time.monotonic() + seconds
        with self._lock:
            live = list(self._live)
        for one in live:
            self._close(one)

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            live = list(self._live)
        for one in live:
            self._close(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    crowded = len(self._live) >= 2 * MAX_CONNECTIONS
                if crowded:
                    self._close(client)
                    continue
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _plan(self) -> str:
        with self._lock:
            harmful = time.monotonic() < self._until and self._chance.random() < 0.5
            return self._chance.choice(CUTS) if harmful else ""

    def _serve(self, client: socket.socket) -> None:
        plan = self._plan()
        if plan:
            self.cuts += 1
        if plan == "before the request":
            self._close(client)
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            self._close(client)  # the server is down
            return
        with self._lock:
            self._live |= {client, server}
        answers = threading.Thread(target=self._pump, args=(server, client, plan), daemon=True)
        answers.start()
        self._pump(client, server, "")
        answers.join()
        self._close(client)
        self._close(server)

    def _pump(self, source: socket.socket, sink: socket.socket, plan: str) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(120)
            while block := source.recv(BLOCK):
                if plan:
                    if plan == "in the response":
                        sink.sendall(block[: len(block) // 2])
                    self._close(sink)
                    self._close(source)
                    return
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    def _close(self, one: socket.socket) -> None:
        with self._lock:
            self._live.discard(one)
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.shutdown(socket.SHUT_RDWR)
        one.close()
