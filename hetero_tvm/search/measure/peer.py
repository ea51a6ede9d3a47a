"""A process that answers requests, may die or hang at any of them, and is then replaced.

The other end is a module with a ``main`` that calls :func:`serve`.  Requests and answers are JSON
documents over a socket; what the process prints goes to a log whose end is told when it dies.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.import_path import command_of
from hetero_tvm.search.measure.wire import Channel

_LOG_BYTES = 300


class PeerLost(Exception):
    """The process died (``hung`` is False) or was killed because it did not answer in time (True)."""

    def __init__(self, text: str, hung: bool):
        super().__init__(text)
        self.hung = hung


class Peer:
    """Process that answers requests, started at the first request and again after each loss.

    Parameters
    ----------
    module : module of this package that is run; it gets the number of its socket as an argument.
    hello : sent first after each start; its answer is :attr:`welcome`.
    environment : variables on top of this process's.
    start_seconds : how long imports and the answer to ``hello`` may take.
    """

    def __init__(
        self,
        module: str,
        hello: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
    ):
        self._module, self._hello, self._start_seconds = module, dict(hello), start_seconds
        self._environment = dict(environment or {})
        self._process: subprocess.Popen | None = None
        self._channel: Channel | None = None
        self._log, self._said_before = -1, 0
        self.welcome: dict[str, Any] = {}
        self.generation = 0
        """Starts so far: what an earlier process was told is forgotten."""

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start it unless it runs.  :class:`PeerLost` when it does not come up."""
        if self._process is None:
            self._spawn()
            self.welcome = self._ask(self._hello, self._start_seconds)

    def ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request.  :class:`PeerLost` when there is none within ``seconds``."""
        self.start()
        return self._ask(message, seconds)

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        self._log = os.memfd_create("peer")
        try:
            self._process = subprocess.Popen(
                command_of(self._module, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C in the terminal must not reach it
            )
        finally:
            theirs.close()
        self._channel = Channel(ours)
        self.generation += 1

    def _ask(self, message: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        channel = self._channel
        self._said_before = os.fstat(self._log).st_size
        end = monotonic() + seconds
        try:
            channel.send(message)
            while channel.wait(max(0.0, end - monotonic())):
                answers = channel.receive()
                if answers:
                    return answers[0]
                if channel.closed:
                    raise PeerLost(self._bury(), hung=False)
        except OSError:
            raise PeerLost(self._bury(), hung=False) from None
        self._bury()
        raise PeerLost(f"no answer within {seconds:g} s", hung=True)

    def _bury(self) -> str:
        """End the process and what it started; how it ended and the last that it said."""
        process, self._process = self._process, None
        if process is None:
            return ""
        self._channel.close()
        try:
            process.wait(timeout=0.2)  # one that has died by itself has a status worth telling
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        code = process.wait()
        # The first of it is what matters, the last may be a long backtrace.
        begin, size = self._said_before, os.fstat(self._log).st_size
        head = os.pread(self._log, _LOG_BYTES, begin)
        tail = os.pread(self._log, _LOG_BYTES, max(begin + _LOG_BYTES, size - _LOG_BYTES))
        gap = b" ... " if size - begin > 2 * _LOG_BYTES else b""
        said = (head + gap + tail).decode(errors="replace").strip()
        os.close(self._log)
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exit status {code}"
        return "\n".join(filter(None, [how, said]))

    def close(self) -> None:
        """End the process; a later request starts a new one."""
        self._bury()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(open_service: Callable[[dict[str, Any]], tuple[Any, Callable[[dict[str, Any]], Any]]]) -> None:
    """The other end: answers requests until the starter hangs up, then leaves without ado.

    ``open_service`` takes the hello and returns its answer and the function that answers requests.  What
    either raises is answered as ``{"failed": text}``.
    """
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    answer: Callable[[dict[str, Any]], Any] | None = None
    while not channel.closed:
        for message in channel.receive():
            try:
                if answer is None:
                    reply, answer = open_service(message)
                else:
                    reply = answer(message)
            except HeteroTVMError as error:
                reply = {"failed": str(error)}
            except MemoryError:
                reply = {"failed": "out of memory"}
            except Exception as error:
                traceback.print_exc()
                reply = {"failed": f"{type(error).__name__}: {str(error)[-1500:]}"}
            try:
                channel.send(reply)
            except OSError:
                os._exit(0)
    os._exit(0)  # no destructor of a broken kernel or context may delay the end
