"""Measuring on another machine, over TVM's RPC.

The machine with the device runs ``python -m hetero_tvm.serve``: TVM's RPC server with three functions
of this module in it.  They keep a measuring process there, the same as on this machine, so that a
candidate that crashes or hangs costs neither the connection nor the server.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero_tvm.errors import TuningError, UsageError, last_line
from hetero_tvm.host.install import extra_command
from hetero_tvm.search.measure.device_client import DEVICE_MODULE, DeviceClient
from hetero_tvm.search.measure.peer import Peer, PeerLost

_OPEN, _ASK, _RESTART = (f"hetero_tvm.device.{name}" for name in ("open", "ask", "restart"))
_NETWORK_SECONDS = 60.0
"""Seconds that a message may take on top of the work that it asks for."""
TOKEN_VARIABLE = "HETERO_TVM_RPC_TOKEN"


def install() -> str:
    """Command that installs what measuring on other machines needs."""
    return extra_command("rpc")


@dataclass(frozen=True)
class Address:
    """``TOKEN@HOST:PORT`` of a server, or ``HOST:PORT:KEY`` of a tracker that knows servers under a key.

    The token may stand in the environment variable ``HETERO_TVM_RPC_TOKEN`` instead, where other users of
    this machine do not see it.
    """

    host: str
    port: int
    key: str | None = None
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """:class:`UsageError` when the text is of another form."""
        token, at, place = text.rpartition("@")
        parts = place.split(":", 2)
        if len(parts) < 2 or not parts[0] or not parts[1].isdigit() or not 0 < int(parts[1]) < 65536:
            raise UsageError(
                f"--rpc {text} is no address",
                hint="--rpc TOKEN@HOST:PORT for a server, --rpc HOST:PORT:KEY for a device of a tracker",
            )
        token = token if at else os.environ.get(TOKEN_VARIABLE, "")
        return cls(parts[0], int(parts[1]), parts[2] if len(parts) > 2 else None, token)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" + (f":{self.key}" if self.key else "")


class RemoteDevice(DeviceClient):
    """A device of another machine.

    Parameters
    ----------
    address : of a server or a tracker.
    device : ``module:Class`` of the device, as the other machine imports it.
    environment : of the measuring process there.
    """

    def __init__(self, address: Address, device: str, environment: Mapping[str, str] | None = None):
        super().__init__()
        self._address, self._device_type, self._environment = address, device, dict(environment or {})
        self._session: Any = None
        self._functions: dict[str, Any] = {}
        self._number = 0

    def open(self) -> dict[str, Any]:
        if self._session is None:
            self._session = _connect(self._address)
            try:
                self._functions = {name: self._session.get_function(name) for name in (_OPEN, _ASK, _RESTART)}
            except Exception as error:
                self._session = None
                raise TuningError(
                    f"{self._address} is a plain RPC server of TVM",
                    problems=[last_line(error)],
                    hint="start it on that machine with: python -m hetero_tvm.serve",
                ) from error
            hello = json.dumps({"device": self._device_type, "environment": self._environment})
            reply = self._call(_OPEN, hello, seconds=180.0)
            if "failed" in reply:
                self.close()
                raise TuningError(f"{self._address} cannot use its device: {reply['failed']}")
            self.device = reply["device"]
        return self.device

    def close(self) -> None:
        self._functions, self._session = {}, None  # hangs up

    def restart(self) -> None:
        if self._session is not None:
            self._call(_RESTART, "", seconds=30.0)

    def _generation(self) -> int:
        return self._number

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        reply = self._call(_ASK, json.dumps({"message": message, "seconds": seconds}), seconds=seconds)
        self._number = reply["generation"]
        if "lost" in reply:
            raise PeerLost(reply["lost"], reply["hung"])
        return reply["reply"]

    def _ship(self, library: Path) -> str:
        self._guarded(lambda: self._session.upload(str(library), library.name), 0.0)
        return library.name

    def _discard(self, library: str) -> None:
        self._guarded(lambda: self._session.remove(library), 0.0)

    def _call(self, name: str, text: str, seconds: float) -> dict[str, Any]:
        return json.loads(str(self._guarded(lambda: self._functions[name](text), seconds)))

    def _guarded(self, call: Any, seconds: float) -> Any:
        """A call over the network.

        Raises
        ------
        TuningError : the connection is lost, or nothing came back in time.
        """
        result: list[Any] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                result.append(call())
            except Exception as error:
                errors.append(error)

        if self._session is None:
            raise self._lost("it is closed")
        # In a thread of its own: a socket whose other end has vanished may block without end.
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(seconds + _NETWORK_SECONDS)
        if thread.is_alive():
            raise self._lost(f"no answer within {seconds + _NETWORK_SECONDS:g} s")
        if errors:
            raise self._lost(last_line(errors[0]))
        return result[0]

    def _lost(self, why: str) -> TuningError:
        self._session = None
        return TuningError(
            f"the connection to {self._address} is lost: {why}",
            hint="what was measured is recorded: see that `python -m hetero_tvm.serve` runs there, and run "
            "the same command again to go on",
        )


def _connect(address: Address) -> Any:

    try:
        from hetero_tvm.host.tvm import rpc
    except ImportError as error:
        raise TuningError(f"TVM's RPC cannot be imported: {error}", hint=install()) from error
    try:
        if address.key is None:
            return rpc.connect(address.host, address.port, key=address.token)
        tracker = rpc.connect_tracker(address.host, address.port)
        free = tracker.summary()["queue_info"].get(address.key)
        if free is None:
            keys = ", ".join(sorted(tracker.summary()["queue_info"])) or "none"
            raise TuningError(
                f"the tracker {address.host}:{address.port} knows no server with key {address.key!r}",
                hint=f"its keys: {keys}; start one: python -m hetero_tvm.serve --tracker "
                f"{address.host}:{address.port} --key {address.key}",
            )
        return tracker.request(address.key)
    except TuningError:
        raise
    except Exception as error:
        if address.key is None and "matches key" in str(error):
            raise TuningError(
                f"{address} refuses the token" if address.token else f"{address} asks for a token",
                hint=f"--rpc TOKEN@{address}, or {TOKEN_VARIABLE}, with the token that `serve` printed there",
            ) from error
        what = "server" if address.key is None else "tracker"
        start = "hetero_tvm.serve" if address.key is None else "tvm.exec.rpc_tracker"
        raise TuningError(
            f"no {what} answers at {address.host}:{address.port}: {last_line(error)}",
            hint=f"start it there: python -m {start} --host 0.0.0.0 --port {address.port}",
        ) from error


# --- in the server -------------------------------------------------------------------------------
_peer: Peer | None = None


def register() -> None:
    """Make the functions known to the RPC server of this process."""
    from hetero_tvm.host.tvm import tvm_ffi

    tvm_ffi.register_global_func(_OPEN, _open, override=True)
    tvm_ffi.register_global_func(_ASK, _answer, override=True)
    tvm_ffi.register_global_func(_RESTART, _restart, override=True)


def _open(text: Any) -> str:
    global _peer
    hello = json.loads(str(text))
    _peer = Peer(DEVICE_MODULE, {"device": hello["device"], "scratch": os.getcwd()}, hello["environment"])
    try:
        _peer.start()
    except PeerLost as lost:
        return json.dumps({"failed": f"the measuring process does not start: {lost}"})
    return json.dumps(_peer.welcome)


def _answer(text: Any) -> str:
    request = json.loads(str(text))
    message = request["message"]
    # Uploads land in the session's folder, which is the working directory.
    message["libraries"] = [str(Path.cwd() / name) for name in message.get("libraries", ())]
    try:
        reply = {"reply": _peer.ask(message, request["seconds"])}
    except PeerLost as lost:
        reply = {"lost": str(lost), "hung": lost.hung}
    # The next process knows no task.
    return json.dumps({**reply, "generation": _peer.generation + (not _peer.running)})


def _restart(_: Any) -> str:
    _peer.close()
    return "{}"


def describe(address: Address, device: str) -> dict[str, Any]:
    """Description of the device behind an address."""
    client = RemoteDevice(address, device)
    try:
        return client.open()
    finally:
        client.close()
