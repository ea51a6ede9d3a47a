"""Calls in flight: the inputs of one are copied while another runs and the results of a third leave.

Each slot has pinned host memory and device memory of its own for one call.  Three streams, tied by
events: copies in, the model, copies out.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.runtime.cuda import cudart
from hetero_tvm.runtime.signature import TensorSpec

MakeTensor = Callable[[TensorSpec], Any]
"""Specification -> a tensor on the device (an object of TVM's runtime)."""

Finish = Callable[[tuple[np.ndarray, ...]], tuple[np.ndarray, ...]]


class Staging:
    """Pinned memory as a NumPy array."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._pinned = cudart.Pinned(self.nbytes)
        self.address = self._pinned.address
        memory = (ctypes.c_ubyte * max(1, self.nbytes)).from_address(self.address)
        self.array = np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)


class Pending:
    """A call that has been submitted."""

    def __init__(self, collect: Callable[[], tuple[np.ndarray, ...]]):
        self._collect: Callable[[], tuple[np.ndarray, ...]] | None = collect
        self._results: tuple[np.ndarray, ...] | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def wait(self) -> np.ndarray | tuple[np.ndarray, ...]:
        """Block until the results are there, and give them as a plain call does.

        Raises :class:`LibraryError` when the device failed.
        """
        self.finish()
        if self._error is not None:
            raise self._error
        return self._results[0] if len(self._results) == 1 else self._results

    def finish(self) -> None:
        """Take the results out of the pinned memory, so that another call may use it."""
        with self._lock:
            if self._collect is None:
                return
            try:
                self._results = self._collect()
            except Exception as error:
                self._error = error
            self._collect = None


class _Slot:
    """Pinned memory, device memory and events of one call in flight."""

    def __init__(self, specs: Sequence[TensorSpec], dtypes: Sequence[np.dtype], make: MakeTensor):
        self.inputs = [Staging(tuple(x.shape), d) for x, d in zip(specs, dtypes, strict=True)]
        self.tensors = [make(spec) for spec in specs]
        self.there, self.done, self.left = cudart.Event(), cudart.Event(), cudart.Event()
        self.outputs: list[Staging] = []
        self.results: list[Any] = []  # device memory that copies still read
        self.pending: Pending | None = None


class Pipeline:
    """Slots and streams of one library.

    Parameters
    ----------
    inputs, outputs : specifications of the model's tensors, all of fixed shape.
    make : a device tensor for a specification.
    run : queues the model on a stream: (stream handle, device tensors) -> device results.
    depth : calls in flight.
    """

    def __init__(
        self,
        device: int,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        make: MakeTensor,
        run: Callable[[int, list[Any]], list[Any]],
        depth: int = 2,
    ):
        self._run = run
        self._in, self._model, self._out = (cudart.Stream(device) for _ in range(3))
        dtypes = [numpy_dtype(spec.dtype) for spec in inputs]
        self._output_dtypes = [numpy_dtype(spec.dtype) for spec in outputs]
        self._slots = [_Slot(inputs, dtypes, make) for _ in range(depth)]
        self._next = 0
        self._lock = threading.Lock()

    def submit(self, arrays: Sequence[np.ndarray], finish: Finish = lambda results: results) -> Pending:
        """Queue a call; the arrays may be changed as soon as this returns.

        ``finish`` makes what the call gives of its results, or raises what they say is wrong.
        """
        with self._lock:
            slot = self._slots[self._next % len(self._slots)]
            self._next += 1
            if slot.pending is not None:
                slot.pending.finish()
            for staging, tensor, array in zip(slot.inputs, slot.tensors, arrays, strict=True):
                np.copyto(staging.array, array)
                self._in.copy(tensor.data_ptr(), staging.address, staging.nbytes, cudart.TO_DEVICE)
            slot.there.record(self._in.handle)
            self._model.wait(slot.there)
            slot.results = self._run(self._model.handle, slot.tensors)
            slot.done.record(self._model.handle)
            self._out.wait(slot.done)
            shapes = [tuple(result.shape) for result in slot.results]
            if [staging.array.shape for staging in slot.outputs] != shapes:
                pairs = zip(shapes, self._output_dtypes, strict=True)
                slot.outputs = [Staging(shape, dtype) for shape, dtype in pairs]
            for staging, result in zip(slot.outputs, slot.results, strict=True):
                self._out.copy(staging.address, result.data_ptr(), staging.nbytes, cudart.TO_HOST)
            slot.left.record(self._out.handle)
            slot.pending = Pending(lambda: finish(_collect(slot)))
            return slot.pending


def _collect(slot: _Slot) -> tuple[np.ndarray, ...]:
    """Copies of a call's results, once they have left the device."""
    try:
        slot.left.synchronize()
    except cudart.CudaError as error:
        raise LibraryError(f"the GPU failed while the model ran: {error.message}") from error
    slot.results = []
    return tuple(staging.array.copy() for staging in slot.outputs)
