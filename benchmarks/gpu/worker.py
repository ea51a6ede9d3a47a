"""The process that runs kernels and PyTorch on the GPU: one request at a time, replaced when it breaks.

Requests: ``{"do": "check" | "time", "section", "label", "point", "small"}`` for a point of a case,
``{"do": "peers", "section", "label"}``, ``{"do": "copy", "nbytes"}``, ``{"do": "roofs"}``,
``{"do": "model", ...}`` (see :mod:`.model_run`).  Answers have a ``status``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hetero_tvm.search.measure.peer import Peer, PeerLost, serve

if TYPE_CHECKING:
    from benchmarks.gpu.case import Case
    from benchmarks.gpu.kernels import Kernel

_MODULE = "benchmarks.gpu.worker"
_L2 = 64 << 20
"""Bytes of the L2 cache, where PyTorch does not tell."""


class Worker:
    """Starter's end of the process: every request is answered, whatever it does to the process.

    Parameters
    ----------
    arch : architecture that kernels are compiled for, as ``sm_90a``.
    environment : variables of the process, on top of this one's.
    """

    def __init__(self, arch: str, environment: Mapping[str, str] | None = None, module: str = _MODULE):
        # What is imported here is imported there, this repository included, wherever that starts.
        paths = os.pathsep.join(path for path in sys.path if path)
        variables = {"PYTHONPATH": paths, **(environment or {})}
        self._peer = Peer(module, {"arch": arch}, variables, start_seconds=240.0)

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """An answer; where there is none ``status`` is ``crash``, ``timeout`` or ``failed``, and ``why``."""
        try:
            self._peer.start()
            if "failed" in self._peer.welcome:
                self._peer.close()
                return {
                    "status": "failed",
                    "why": f"the process does not start: {self._peer.welcome['failed']}",
                }
            reply = self._peer.ask(request, seconds)
        except PeerLost as lost:
            return {"status": "timeout" if lost.hung else "crash", "why": str(lost)[-800:]}
        if "failed" in reply:
            reply = {"status": "failed", "why": reply["failed"][-800:], "broken": True}
        if reply.pop("broken", False):
            self._peer.close()
        return reply

    def close(self) -> None:
        self._peer.close()


class Service:
    """Process's end: one method ``_do_NAME`` per request."""

    def __init__(self, hello: dict[str, Any]):
        import torch

        from benchmarks.gpu import device_info, tensors, timing
        from hetero_tvm.runtime.cuda import devices as cuda_runtime
        from hetero_tvm.targets.registry import parse_target

        self._torch, self._target = torch, parse_target(f"cuda:{hello['arch']}")
        self._clock = None if tensors.EMULATED else timing.Clock()
        self._sensor = device_info.Sensor()
        self._l2 = 0
        if not tensors.EMULATED:
            cuda_runtime.start()
            self._l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", _L2)

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, f"_do_{request['do']}")
        try:
            reply = answer(request)
        except Exception as error:  # whatever a kernel or PyTorch raises is told, and judged there
            text = str(error).strip().splitlines()
            ends = " ... ".join(dict.fromkeys([text[0], text[-1]])) if text else ""
            reply = {"status": "failed", "why": f"{type(error).__name__}: {ends}"[:800]}
        return {**reply, "broken": self._broken()}

    def _broken(self) -> bool:
        if self._clock is None:
            return False
        try:
            self._torch.cuda.synchronize()
            self._torch.cuda.empty_cache()
        except Exception:
            return True
        return False

    def _case(self, request: Mapping[str, Any]) -> Case:
        from benchmarks.gpu.sections import case_named

        return case_named(request["section"], request["label"], bool(request.get("small")))

    def _kernel(self, request: Mapping[str, Any]) -> Kernel:
        from benchmarks.gpu.kernels import Kernel

        case = self._case(request)
        return Kernel(case, case.target(self._target), request["point"], request.get("library"))

    def _do_check(self, request: dict[str, Any]) -> dict[str, Any]:
        kernel = self._kernel(request)
        return {**kernel.check(), "facts": kernel.facts}

    def _do_time(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks.gpu import tensors

        kernel = self._kernel(request)
        found = {**kernel.check(), "facts": kernel.facts}
        if self._clock is None or found["status"] != "ok":
            return found
        seen: dict[str, Any] = {}
        timing = kernel.time(
            tensors.input_sets(kernel.case, self._l2), self._clock, lambda: seen.update(self._sensor.read())
        )
        return {**found, **timing.to_dict(), "sensor": seen}

    def _do_peers(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks.gpu import peers

        case = self._case(request)
        return {"status": "ok", "peers": peers.time_all(case, self._clock, self._l2)}

    def _do_copy(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks.gpu import peers

        return {"status": "ok", "bytes_per_second": peers.copy_rate(request["nbytes"], self._clock, self._l2)}

    def _do_roofs(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks.gpu import peers

        return {"status": "ok", **peers.roofs(self._clock, self._l2), "sensor": self._sensor.read()}

    def _do_model(self, request: dict[str, Any]) -> dict[str, Any]:
        from benchmarks.gpu import model_run

        return model_run.run(request, self._sensor)


def _open(hello: dict[str, Any]) -> tuple[dict[str, Any], Service]:
    return {"ready": True}, Service(hello)


if __name__ == "__main__":
    serve(_open)
