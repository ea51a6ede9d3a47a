"""The server process: listens, says where, and ends in order."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette

_GRACE = 30
"""Seconds that texts which are being generated have to end, after Ctrl-C or SIGTERM."""


class _Announcing(uvicorn.Server):
    """Says its address once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for one in server.sockets:
                host, port = one.getsockname()[:2]
                host = f"[{host}]" if ":" in host else host
                print(f"listening: http://{host}:{port}/v1 (Ctrl-C ends)", flush=True)


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
