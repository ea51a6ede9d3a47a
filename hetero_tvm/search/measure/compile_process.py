"""A process that compiles candidates for a device that it never touches.

Started by :class:`hetero_tvm.search.measure.device_workers.DeviceWorkers`, several at once.  For each
candidate it writes a shared library with one function, ``candidate``.
"""

from __future__ import annotations

import resource
import sys
from typing import Any

from hetero_tvm.records import candidates
from hetero_tvm.search.measure.peer import serve

FUNCTION = "candidate"


class Refused(Exception):
    """A candidate that need not be measured: what its compiled code already says against it."""


class Compiler:
    """Answers ``{"spec", "candidate", "path"}`` with ``{"facts"}`` or ``{"failed": why}``.

    ``hello`` names the function that makes machine code (see ``DeviceDoor``).
    """

    def __init__(self, hello: dict[str, Any]):
        sys.path[:] = hello["sys_path"]
        self._compile = candidates.find_object(hello["compile"])
        with open("/proc/self/statm", encoding="utf-8") as file:
            in_use = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + hello["memory"],) * 2)
        self._tasks: dict[str, Any] = {}

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        from hetero_tvm.search.measure.prepared import Described

        spec = message["spec"]
        key = repr(sorted(spec.items()))
        if key not in self._tasks:
            self._tasks = {key: Described(spec)}  # one at a time: requests come task by task
        task = self._tasks[key]
        function = task.kernel(message["candidate"])
        if hasattr(function, "get_global_vars"):
            (variable,) = function.get_global_vars()
            function = function[variable]
        function = function.with_attr("global_symbol", FUNCTION)
        try:
            facts = self._compile(function, task.machine, message["path"])
        except Refused as refusal:
            return {"failed": str(refusal)}
        return {"facts": facts}


def _open(hello: dict[str, Any]) -> tuple[Any, Any]:
    return {"ready": True}, Compiler(hello)


if __name__ == "__main__":
    serve(_open)
