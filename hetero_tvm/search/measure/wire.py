"""Frames between the tuner, its fork server and the candidates: one JSON document per line over a socket.

JSON rather than pickle: a candidate is untrusted code that may scribble over its own memory, so what
it sends is parsed, never executed.
"""

from __future__ import annotations

import json
import select
import socket
from typing import Any


class Channel:
    """End of a stream socket that carries JSON documents."""

    def __init__(self, sock: socket.socket):
        self._socket = sock
        self._buffer = b""
        self.closed = False
        """True once the other end has hung up (everything it sent has been received)."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send one document.  ``OSError`` when the other end is gone."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Any]:
        """The documents that are there; blocks only when called while nothing is readable."""
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            self.closed = True
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, timeout: float | None) -> bool:
        """Whether something is readable within ``timeout`` seconds (None: wait without end)."""
        return bool(select.select([self], [], [], timeout)[0])

    def close(self) -> None:
        self._socket.close()
        self.closed = True
