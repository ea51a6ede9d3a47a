"""``python -m hetero_tvm.serve``: let other machines measure on this one."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from hetero_tvm.cli import common as cli_common
from hetero_tvm.cli.parsing import EXITS, command_parser
from hetero_tvm.errors import UsageError
from hetero_tvm.search.measure.gate import Gate
from hetero_tvm.search.measure.remote import TOKEN_VARIABLE


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, make_parser(), argv)


_EXAMPLES = {
    "--host 0.0.0.0 --port 9090": "for all who reach this machine and know the token that is printed",
    "--tracker 10.0.0.1:9190 --key h100": "one of several machines behind a tracker",
}


def make_parser() -> argparse.ArgumentParser:
    text = (
        "Serve this machine's CPU and GPUs to `python -m hetero_tvm.tune --rpc HOST:PORT`. "
        "Whoever reaches the port and knows the token can run code here: keep it inside a trusted network."
    )
    parser = command_parser("serve", text, _EXAMPLES, {**EXITS, 0: "ended by Ctrl-C", 130: "the same"})
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1; 0.0.0.0 for all)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=9090,
        metavar="N",
        help="default: 9090; 0: a free one, which is printed",
    )
    parser.add_argument(
        "--tracker",
        metavar="HOST:PORT",
        help="announce this machine to a tracker (python -m tvm.exec.rpc_tracker)",
    )
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help=f"what clients must know (default: ${TOKEN_VARIABLE}, or a random one that is printed); "
        "the tracker hands out its own",
    )
    parser.add_argument(
        "--key", metavar="NAME", help="name under which the tracker knows this kind of machine"
    )
    return parser


def _port(text: str) -> int:
    """A TCP port that has a successor, which the server tries too, or 0; an argparse type."""
    port = cli_common.count(text)
    if port > 65534:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 1 to 65534, or 0 for any that is free")
    return port


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.search.measure import remote

    tracker = None
    if options.tracker is not None:
        address = remote.Address.parse(options.tracker)
        tracker = (address.host, address.port)
        if not options.key:
            raise UsageError("--tracker needs --key", hint="for example --key h100")

    token = _token(options)
    try:
        from hetero_tvm.host.tvm import rpc_server as server
    except ImportError as error:
        raise UsageError(f"TVM's RPC server cannot be imported: {error}", hint=remote.install()) from error
    remote.register()
    _put_gate(server)
    multiprocessing.set_start_method("fork", force=True)  # a session inherits the functions just made known
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    port, said = options.port or _free_port(options.host), False
    if not cli_common.is_loopback(options.host):
        print(
            f"warning: {options.host} is seen by other machines: the token crosses the network in plain "
            "text, and whoever has it can run code here",
            file=sys.stderr,
            flush=True,
        )
    try:
        while True:
            # In this process: TVM's own wrapper would start a second one that outlives this.
            try:
                made = server.PopenRPCServerState(
                    options.host,
                    port,
                    port + 1,
                    tracker_addr=tracker,
                    key=options.key or token,
                )
            except (OSError, ValueError) as error:
                raise UsageError(f"cannot listen on {options.host}:{port}: {error}") from error
            if not said:
                print(f"{_place(options, token, port)}; Ctrl-C ends it", flush=True)
                for line in _devices():
                    print(line, flush=True)
                said = True
            made.thread.join()  # ends when a session's process died of more than a candidate
            made.sock.close()
    except KeyboardInterrupt:
        _leave()
    return 0


def _free_port(host: str) -> int:
    """A port that is free now; TVM's server takes no 0."""
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, 0), family=family) as listening:
            return int(listening.getsockname()[1])
    except OSError as error:
        raise UsageError(f"cannot listen on {host}: {error}") from error


def _place(options: argparse.Namespace, token: str, port: int) -> str:
    """Address of the server, and what its clients type."""
    place = f"serving on {options.host}:{port}"
    if options.tracker is not None:
        return f"{place}, known to {options.tracker} as {options.key!r}"
    if options.token is None and TOKEN_VARIABLE not in os.environ:
        return f"{place}, for --rpc {token}@HOST:{port}"
    return place


def _put_gate(server: Any) -> None:
    """Let TVM's server look at connections through a gate.  A tracker hands out other tokens: without it."""
    listen = server._listen_loop

    def guarded(listening: Any, port: int, token: str, tracker: Any, *more: Any) -> None:
        if tracker is not None:
            listen(listening, port, token, tracker, *more)
            return
        gate = Gate(listening, token, server.base)
        try:
            listen(gate, port, token, tracker, *more)
        finally:
            gate.close()

    server._listen_loop = guarded


def _token(options: argparse.Namespace) -> str:
    """Token that clients must know: given, of the environment, or a fresh one."""
    token = options.token if options.token is not None else os.environ.get(TOKEN_VARIABLE)
    if token is None:
        return secrets.token_hex(16)  # no letter that a command line takes for an option
    if not token or any(character.isspace() for character in token):
        raise UsageError(
            "a token has at least one character, and no space", hint="leave out --token for a random one"
        )
    return token


def _leave() -> None:
    """End at once, sessions included: the thread that listens would keep the process alive."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def _devices() -> list[str]:
    """Lines on the devices that there are to be served, one per kind, for the start of the log."""
    from hetero_tvm.targets.registry import kinds, target_class

    return [line for kind in kinds() if (line := target_class(kind).devices_served()) is not None]


if __name__ == "__main__":
    sys.exit(main())
