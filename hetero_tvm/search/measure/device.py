"""Devices as the process that measures candidates sees them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm import host
from hetero_tvm.runtime.arrays import fetched
from hetero_tvm.search.measure import timing

Kernel = tuple[Callable[..., None], Sequence[Sequence[Any]]]
"""A compiled candidate, and sets of arguments to be used in turn."""


class MeasuredDevice(ABC):
    """Device of this process.

    A subclass is constructed with the number of the device; errors of the constructor say what is
    missing (:class:`hetero_tvm.errors.HeteroTVMError`).
    """

    cache: int = 0
    """Bytes that argument sets together must overflow, for each call to find its operands in memory."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """``kind``, ``name`` (of the product; records are filed under it), ``arch``, and what else it has."""

    @abstractmethod
    def place(self, array: np.ndarray) -> Any:
        """A tensor on the device with the array's values."""

    @abstractmethod
    def copy(self, tensor: Any) -> Any:
        """Another tensor on the device with the same values."""

    @abstractmethod
    def fetch(self, tensor: Any) -> np.ndarray:
        """The values of a tensor, once everything queued before has been done."""

    @abstractmethod
    def run(self, kernel: Kernel) -> None:
        """Call a kernel once, on the first set; what goes wrong on the device may show later."""

    @abstractmethod
    def times(self, kernels: Sequence[Kernel], budget: float, limit: float | None) -> list[float]:
        """Seconds per call of each kernel, in alternation (see ``search/measure/timing.py``)."""

    def broken(self) -> bool:
        """Whether this process can no longer use the device, because of what a kernel did."""
        return False


class CpuDevice(MeasuredDevice):
    """The cores of this machine.  The size of the thread pool is ``$HETERO_TVM_THREADS``."""

    def __init__(self, index: int = 0):
        from hetero_tvm.host.tvm import tvm

        self._tvm = tvm
        self._host = host.detect()
        self.cache = self._host.l2 * int(os.environ.get("HETERO_TVM_THREADS", len(self._host.cores)))

    def describe(self) -> dict[str, Any]:
        here = self._host
        return {
            "kind": "cpu",
            "name": here.microarchitecture,
            "arch": here.microarchitecture,
            "features": sorted(here.features),
            "cores": len(here.cores),
        }

    def place(self, array: np.ndarray) -> Any:
        return self._tvm.runtime.tensor(array)

    def copy(self, tensor: Any) -> Any:
        return self._tvm.runtime.tensor(tensor.numpy())

    def fetch(self, tensor: Any) -> np.ndarray:
        return fetched(tensor)

    def run(self, kernel: Kernel) -> None:
        function, sets = kernel
        function(*sets[0])

    def times(self, kernels: Sequence[Kernel], budget: float, limit: float | None) -> list[float]:
        before = timing.threads_now()
        calls = [timing.bound(function, sets) for function, sets in kernels]
        for call in calls:
            call()
        timing.pin_threads(timing.threads_now() - before, host.available_cores())
        return [found.seconds for found in timing.measure(calls, budget=budget, limit=limit)]
