"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket

BELOW_OUTGOING = range(20_000, 32_000)  # the kernel takes ports of outgoing connections from 32,768 on


def free_port() -> int:
    """A free port on loopback that no outgoing connection can get before the server starts."""
    for port in random.SystemRandom().sample(BELOW_OUTGOING, 200):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("There is no free port on loopback.")
