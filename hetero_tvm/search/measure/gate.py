"""Gate of the measuring server: connections are looked at before TVM reads a byte of them.

TVM's server greets one client after another, and waits for each as long as it likes to take: one that says
nothing keeps all others out, and one that announces a name of 2 GB is believed.  Here each connection has a
few seconds to say who it is, beside the others, and only those that know the token are handed on.
"""

from __future__ import annotations

import errno
import hmac
import queue
import select
import socket
import struct
import threading
import time
from typing import Any

SECONDS = 10.0
"""Time in which a connection has to say who it is."""
MOST_WAITING = 64
"""Connections that may be looked at at once; more are closed."""
LONGEST_NAME = 4096
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
_HEAD = struct.Struct("<ii")  # TVM's magic number, length of what the client says of itself


class Gate:
    """A listening socket for TVM's server that lets through who knows ``token``.

    Parameters
    ----------
    codes : ``tvm.rpc.base``, which has the numbers of the protocol.
    seconds : time in which a connection has to say who it is.
    """

    def __init__(self, listening: socket.socket, token: str, codes: Any, seconds: float = SECONDS):
        self._listening, self._codes, self._seconds = listening, codes, seconds
        self._expected = f"client:{token}".encode()
        self._passed: queue.SimpleQueue[tuple[socket.socket, Any] | None] = queue.SimpleQueue()
        self._places = threading.BoundedSemaphore(MOST_WAITING)
        threading.Thread(target=self._listen, name="hetero_tvm-gate", daemon=True).start()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that may speak, with everything that it said still to be read.

        Raises :class:`RuntimeError` once the gate is closed: TVM's loop tries again after any OSError.
        """
        found = self._passed.get()
        if found is None:
            self._passed.put(None)
            raise RuntimeError("the server is closed")
        return found

    def close(self) -> None:
        """End the thread that listens; ``close`` alone would leave it, and the port with it."""
        try:
            self._listening.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed by somebody else
            pass

    def _listen(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError as error:
                if error.errno in _PASSING:
                    time.sleep(0.1)  # connections that end make room
                    continue
                self._passed.put(None)
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            name = f"hetero_tvm-gate {address}"
            threading.Thread(target=self._look, args=(connection, address), name=name, daemon=True).start()

    def _look(self, connection: socket.socket, address: Any) -> None:
        try:
            connection.setblocking(False)
            if self._knows(connection):
                connection.setblocking(True)
                self._passed.put((connection, address))
            else:
                connection.close()
        except OSError:
            connection.close()
        finally:
            self._places.release()

    def _knows(self, connection: socket.socket) -> bool:
        """Whether a client says the token in time; who says another one is told so."""
        deadline = time.monotonic() + self._seconds
        head = self._peek(connection, _HEAD.size, deadline)
        if head is None:
            return False
        magic, length = _HEAD.unpack(head)
        if magic != self._codes.RPC_MAGIC or not 0 < length <= LONGEST_NAME:
            return False
        said = self._peek(connection, _HEAD.size + length, deadline)
        if said is None:
            return False
        try:
            words = said[_HEAD.size :].decode().split()
        except UnicodeDecodeError:
            return False
        # In a time that does not tell how much of it was right.
        if words and hmac.compare_digest(words[0].encode(), self._expected):
            return True
        connection.sendall(struct.pack("<i", self._codes.RPC_CODE_MISMATCH))
        return False

    @staticmethod
    def _peek(connection: socket.socket, size: int, deadline: float) -> bytes | None:
        """The first bytes of what a client says, which stay to be read; None when they do not come."""
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([connection], [], [], left)[0]:
                return None
            data = connection.recv(size, socket.MSG_PEEK)
            if len(data) == size:
                return data
            if not data:
                return None
            time.sleep(0.01)  # a part of it is readable at once, and nothing tells when there is more
        return None
