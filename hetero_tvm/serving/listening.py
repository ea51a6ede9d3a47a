"""The server process: listens, says where, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

_GRACE = 30
"""Seconds that texts which are being generated have to end, after Ctrl-C or SIGTERM."""


_LOG = "uvicorn.error"


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a log record is more than the traceback of an answer that was cut off on purpose."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _is_no_closed_socket(record: logging.LogRecord) -> bool:
    """Whether a log record is more than asyncio's line for each piece that a client no longer takes."""
    return record.getMessage() != "socket.send() raised exception."


class _Announcing(uvicorn.Server):
    """Says its address once it listens, and what it waits for when it is to end."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("asyncio").addFilter(_is_no_closed_socket)
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                print(f"listening: http://{host}:{port}/v1 (Ctrl-C ends)", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger(_LOG).addFilter(_is_news)
        if waiting := len(self.server_state.tasks):
            what = "1 answer has" if waiting == 1 else f"{waiting} answers have"
            print(f"ending: {what} up to {_GRACE} s to end (Ctrl-C again cuts off)", flush=True)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:  # nothing is waited for any more: what breaks off now is no defect
            logging.getLogger(_LOG).disabled = True


def listen(app: Starlette, host: str, port: int) -> bool:
    """Serve until Ctrl-C or SIGTERM; whether it could listen at all.

    Texts that are being generated then have half a minute to end; new ones are refused.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Announcing(config)
    try:
        server.run()
    except KeyboardInterrupt:  # it raises again what it has ended for
        pass
    return server.started
