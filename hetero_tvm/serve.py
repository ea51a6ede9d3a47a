"""``python -m hetero_tvm.serve``: let other machines measure on this one."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence

from hetero_tvm.cli import common as cli_common
from hetero_tvm.errors import UsageError


def main(argv: Sequence[str] | None = None) -> int:
    return cli_common.run(_run, _parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hetero_tvm.serve",
        allow_abbrev=False,
        description="Serve this machine's CPU and GPUs to `python -m hetero_tvm.tune --rpc HOST:PORT`. "
        "Whoever reaches the port can run code here: keep it inside a trusted network.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1; 0.0.0.0 for all)"
    )
    parser.add_argument("--port", type=cli_common.positive, default=9090, help="default: 9090")
    parser.add_argument(
        "--tracker",
        metavar="HOST:PORT",
        help="announce this machine to a tracker (python -m tvm.exec.rpc_tracker)",
    )
    parser.add_argument("--key", help="the name under which the tracker knows this kind of machine")
    parser.set_defaults(precision=None, shape=[])  # what every command line is checked for
    return parser


def _run(options: argparse.Namespace) -> int:
    from hetero_tvm.search.measure import remote

    tracker = None
    if options.tracker is not None:
        address = remote.Address.parse(options.tracker)
        tracker = (address.host, address.port)
        if not options.key:
            raise UsageError("--tracker needs --key", hint="for example --key h100")

    try:
        from hetero_tvm.host.tvm import rpc_server as server
    except ImportError as error:
        raise UsageError(f"TVM's RPC server cannot be imported: {error}", hint=remote.INSTALL) from error
    remote.register()
    multiprocessing.set_start_method("fork", force=True)  # a session inherits the functions just made known
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    say = f"serving on {options.host}:{options.port}"
    if tracker is not None:
        say += f", known to {options.tracker} as {options.key!r}"
    try:
        while True:
            # In this process: TVM's own wrapper would start a second one that outlives this.
            try:
                made = server.PopenRPCServerState(
                    options.host, options.port, options.port + 1, tracker_addr=tracker, key=options.key or ""
                )
            except (OSError, ValueError) as error:
                raise UsageError(f"cannot listen on {options.host}:{options.port}: {error}") from error
            if say:
                print(f"{say}; Ctrl-C ends it", flush=True)
                for line in _devices():
                    print(line, flush=True)
                say = ""
            made.thread.join()  # ends when a session's process died of more than a candidate
            made.sock.close()
    except KeyboardInterrupt:
        _leave()
    return 0


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
