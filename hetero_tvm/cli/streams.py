"""Standard streams of a command: closed ones (``>&-``), readers that have gone, disks that are full."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hetero_tvm.cli.failures import DEBUG_VARIABLE
from hetero_tvm.host.files import NO_ROOM


def with_streams(command: Callable[[], int]) -> int:
    """Exit status of a command whose standard streams may be closed, full or without a reader.

    An OSError that leaves it counts as one of standard output; with HETERO_TVM_DEBUG=1 it leaves this, too.
    """
    _open_closed()
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `... | head`: nobody reads any more
        _discard_output()
        return 1
    except OSError as error:
        if os.environ.get(DEBUG_VARIABLE) == "1":
            raise
        _discard_output()
        room = "free some space there, or " if error.errno in NO_ROOM else ""
        print(f"error: cannot write standard output: {error.strerror}", file=sys.stderr)
        print(f"What to do: {room}send it elsewhere (> FILE)", file=sys.stderr)
        return 1


def is_of_output(error: Exception) -> bool:
    """Whether an error is one of standard output; the system does not say which file it could not write."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    try:
        os.write(sys.stdout.fileno(), b"\n")  # no line is worth the bytes that Python has thrown away
    except (OSError, ValueError) as again:
        return getattr(again, "errno", None) == error.errno
    return False


def _open_closed() -> None:
    """Give ``/dev/null`` to standard streams that are closed.

    Python has None in their place, and the next files that are opened would get their numbers, so that what C
    code prints would be written into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")


def _discard_output() -> None:
    """Send what is still printed nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
