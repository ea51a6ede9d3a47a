"""The process that owns a device, and measures compiled candidates on it one after another.

It lives as long as nothing goes wrong: a context, inputs and references are made once.  What a candidate
does to it (a crash, an illegal access, a kernel that never ends) costs that candidate; its starter
replaces the process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_tvm.records import candidates
from hetero_tvm.search.measure import timing
from hetero_tvm.search.measure.compile_process import FUNCTION
from hetero_tvm.search.measure.peer import serve

if TYPE_CHECKING:
    from hetero_tvm.search.measure.prepared import Prepared

_MOST_SETS = 32
_MOST_SET_BYTES = 4 << 30
_MOST_PREPARED_BYTES = 8 << 30


class DeviceProcess:
    """Answers the requests of :class:`hetero_tvm.search.measure.device_client.DeviceClient`."""

    def __init__(self, hello: dict[str, Any]):
        self.device = candidates.find_object(hello["device"])(hello.get("index", 0))
        self._scratch = Path(hello["scratch"]) if hello.get("scratch") else None
        self._tasks: dict[str, Any] = {}
        # Of the candidates measured last: in a context that one of them has broken even freeing memory
        # ends the process, and first the answer must be out.
        self._held: list[Any] = []

    def __call__(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "prepare":
            self._prepare(message["task"], message["spec"])
            return {}
        results = self._measure(message)
        return {"results": results, "broken": self.device.broken()}

    def _prepare(self, name: str, spec: dict[str, Any]) -> None:
        from hetero_tvm.search.measure.prepared import Prepared

        if name not in self._tasks:
            self._tasks[name] = Prepared(spec, self._scratch)
            held = sum(task.nbytes for task in self._tasks.values())
            for old in list(self._tasks)[:-1]:
                if held > _MOST_PREPARED_BYTES:
                    held -= self._tasks.pop(old).nbytes

    def _measure(self, message: dict[str, Any]) -> list[list[Any]]:
        if message["task"] not in self._tasks:  # it was dropped to make room
            self._prepare(message["task"], message["spec"])
        task = self._tasks[message["task"]]
        self._held.clear()
        results: list[list[Any]] = [["run_error", None, "not run"]] * len(message["candidates"])
        kernels, places, written = [], [], []
        for index, (candidate, path) in enumerate(
            zip(message["candidates"], message["libraries"], strict=True)
        ):
            try:
                kernel, outputs = self._kernel(task, candidate, path)
                self.device.run(kernel)
                fault = self._fault(task, [self.device.fetch(output) for output in outputs])
            except Exception as error:  # whatever a candidate raises is its own failure
                results[index] = ["run_error", None, _text(error)]
                continue
            if fault:
                results[index] = ["wrong_result", None, fault]
                continue
            kernels.append(kernel)
            places.append(index)
            written.append(outputs)
        if not kernels:
            return results
        try:
            seconds = self.device.times(kernels, message["budget"], message["limit"])
        except Exception as error:
            for index in places:
                results[index] = ["run_error", None, _text(error)]
            return results
        for index, each, kernel, outputs in zip(places, seconds, kernels, written, strict=True):
            results[index] = self._again(task, kernel, outputs) or ["ok", each, ""]
        return results

    def _again(self, task: Prepared, kernel: Any, outputs: list[Any]) -> list[Any] | None:
        """Failure of a kernel that is right in its first call alone, or in every other; None without one.

        What the last timed call left is compared, and one more call.
        """
        try:
            fault = self._fault(task, [self.device.fetch(output) for output in outputs])
            if fault is None:
                self.device.run(kernel)
                fault = self._fault(task, [self.device.fetch(output) for output in outputs])
        except Exception as error:
            return ["run_error", None, _text(error)]
        return None if fault is None else ["wrong_result", None, f"after the first call: {fault}"]

    @staticmethod
    def _fault(task: Prepared, results: list[np.ndarray]) -> str | None:
        from hetero_tvm.search.measure.prepared import fault_of, joined

        return fault_of(joined(results), task.reference, task.largest, task.tolerance)

    def _kernel(self, task: Prepared, candidate: Any, path: str) -> tuple[Any, list[Any]]:
        """The candidate with as many sets of operands as overflow the cache, and its results."""
        from hetero_tvm.search.measure.prepared import blank, tvm

        function = tvm.runtime.load_module(path)[FUNCTION]
        packed = task.packed(candidate)
        arrays = [packed.get(index, array) for index, array in enumerate(task.arrays)]
        outputs = [self.device.place(blank(*one)) for one in task.outputs]
        operands = [self.device.place(array) for array in arrays]
        nbytes = sum(array.nbytes for array in arrays)
        count = timing.copies_needed(nbytes, self.device.cache, _MOST_SETS)
        count = max(1, min(count, _MOST_SET_BYTES // max(1, nbytes)))
        sets = [[*operands, *outputs]]
        for _ in range(count - 1):  # all write the same results: the next kernel finds them in the cache
            sets.append([*map(self.device.copy, operands), *outputs])
        self._held += sets
        return (function, sets), outputs


def _text(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ends = dict.fromkeys([lines[0], lines[-1]] if lines else [])
    return f"{type(error).__name__}: {' ... '.join(ends)}"[:600]


def open_device(hello: dict[str, Any]) -> tuple[dict[str, Any], DeviceProcess]:
    """Opener for :func:`hetero_tvm.search.measure.peer.serve`: the device's description, and what answers."""
    if "sys_path" in hello:
        sys.path[:] = hello["sys_path"]
    process = DeviceProcess(hello)
    return {"device": process.device.describe()}, process


if __name__ == "__main__":
    serve(open_device)
