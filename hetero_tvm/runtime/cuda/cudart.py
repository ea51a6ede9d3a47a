"""CUDA's run-time library, as far as streams, events, graphs and pinned memory need it.

Kernels run through TVM; what TVM does not offer to Python is called here, in the same context.  Every
function raises :class:`CudaError` with CUDA's own text.  Errors of work that was queued earlier show up
in whatever call comes next.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime.cuda import devices as cuda_runtime

TO_DEVICE, TO_HOST = 1, 2
_NON_BLOCKING, _DISABLE_TIMING, _THREAD_LOCAL = 1, 2, 1
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudaSetDevice": (c_int,),
    "cudaDeviceSynchronize": (),
    "cudaGetLastError": (),
    "cudaMallocHost": (c_void_p, c_size_t),
    "cudaFreeHost": (c_void_p,),
    "cudaMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "cudaStreamCreateWithFlags": (c_void_p, c_uint),
    "cudaStreamDestroy": (c_void_p,),
    "cudaStreamSynchronize": (c_void_p,),
    "cudaStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cudaStreamBeginCapture": (c_void_p, c_int),
    "cudaStreamEndCapture": (c_void_p, c_void_p),
    "cudaGraphInstantiate": (c_void_p, c_void_p, c_ulonglong),
    "cudaGraphLaunch": (c_void_p, c_void_p),
    "cudaGraphDestroy": (c_void_p,),
    "cudaGraphExecDestroy": (c_void_p,),
    "cudaEventCreateWithFlags": (c_void_p, c_uint),
    "cudaEventDestroy": (c_void_p,),
    "cudaEventRecord": (c_void_p, c_void_p),
    "cudaEventSynchronize": (c_void_p,),
    "cudaEventQuery": (c_void_p,),
    "cudaEventElapsedTime": (c_void_p, c_void_p, c_void_p),
}


class CudaError(LibraryError):
    """A call of CUDA failed; ``code`` is CUDA's."""

    def __init__(self, function: str, code: int, text: str):
        super().__init__(f"{function}: {text} ({code})")
        self.code = code


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """The run-time library, with the types of its functions."""
    cuda_runtime.start()
    # By its name: the one that TVM's runtime has loaded, wherever it lies.
    library = ctypes.CDLL("libcudart.so.13")
    for name, types in _SIGNATURES.items():
        getattr(library, name).argtypes = types
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library.  :class:`CudaError` when it fails."""
    code = getattr(_library(), name)(*arguments)
    if code:
        raise CudaError(name, code, (_library().cudaGetErrorString(code) or b"?").decode())


def use(device: int) -> None:
    """Make a GPU the one that this thread's events and memory belong to."""
    call("cudaSetDevice", device)


def synchronize() -> None:
    """Wait until the device has done everything; raises the error of whatever went wrong on it."""
    call("cudaDeviceSynchronize")


class Stream:
    """A new stream; it and the default stream do not wait for each other."""

    def __init__(self, device: int = 0):
        call("cudaSetDevice", device)
        handle = c_void_p()
        call("cudaStreamCreateWithFlags", byref(handle), _NON_BLOCKING)
        self.handle: int = handle.value or 0

    def wait(self, event: Event) -> None:
        """Hold work that is queued after this until ``event`` has happened."""
        wait(self.handle, event)

    def synchronize(self) -> None:
        call("cudaStreamSynchronize", self.handle)

    def copy(self, to: int, source: int, nbytes: int, kind: int) -> None:
        """Queue a copy between addresses; host memory must be pinned for it to overlap."""
        copy(self.handle, to, source, nbytes, kind)

    def __del__(self) -> None:
        _quietly("cudaStreamDestroy", getattr(self, "handle", 0))


class Event:
    """A place in a stream's order of work."""

    def __init__(self, timing: bool = False):
        handle = c_void_p()
        call("cudaEventCreateWithFlags", byref(handle), 0 if timing else _DISABLE_TIMING)
        self.handle: int = handle.value or 0

    def record(self, stream: int) -> None:
        call("cudaEventRecord", self.handle, stream)

    def synchronize(self) -> None:
        """Block this thread until the event has happened."""
        call("cudaEventSynchronize", self.handle)

    def has_happened(self) -> bool:
        """Whether everything before the event is done."""
        return _library().cudaEventQuery(self.handle) == 0

    def seconds_since(self, earlier: Event) -> float:
        """Seconds between two timed events that have happened."""
        milliseconds = c_float()
        call("cudaEventElapsedTime", byref(milliseconds), earlier.handle, self.handle)
        return milliseconds.value / 1e3

    def __del__(self) -> None:
        _quietly("cudaEventDestroy", getattr(self, "handle", 0))


def copy(stream: int, to: int, source: int, nbytes: int, kind: int) -> None:
    """Queue a copy between addresses on ``stream`` (a handle)."""
    call("cudaMemcpyAsync", to, source, nbytes, kind, stream)


def wait(stream: int, event: Event) -> None:
    """Hold work that is queued on ``stream`` (a handle) after this until ``event`` has happened."""
    call("cudaStreamWaitEvent", stream, event.handle, 0)


class Graph:
    """Work captured from a stream, launched again as one."""

    def __init__(self, stream: Stream, work: Callable[[], Any]):
        """``work`` queues on ``stream`` only; what it needs has been loaded by an earlier run."""
        call("cudaStreamBeginCapture", stream.handle, _THREAD_LOCAL)
        graph, handle = c_void_p(), c_void_p()
        try:
            work()
        except BaseException:
            _quietly("cudaStreamEndCapture", stream.handle, byref(graph))
            _library().cudaGetLastError()  # the failed capture must not be blamed on later calls
            raise
        call("cudaStreamEndCapture", stream.handle, byref(graph))
        try:
            call("cudaGraphInstantiate", byref(handle), graph, 0)
        finally:
            _quietly("cudaGraphDestroy", graph.value)
        self._handle = handle.value

    def launch(self, stream: Stream) -> None:
        call("cudaGraphLaunch", self._handle, stream.handle)

    def __del__(self) -> None:
        _quietly("cudaGraphExecDestroy", getattr(self, "_handle", None))


class Pinned:
    """Page-locked host memory: copies from and to it run beside kernels."""

    def __init__(self, nbytes: int):
        pointer = c_void_p()
        call("cudaMallocHost", byref(pointer), max(1, nbytes))
        self.address: int = pointer.value or 0
        self.nbytes = nbytes

    def __del__(self) -> None:
        _quietly("cudaFreeHost", getattr(self, "address", 0))


def _quietly(name: str, handle: Any, *more: Any) -> None:
    """Call a function of the library in clean-up, where an error (a context that is gone) helps nobody."""
    if handle:
        try:
            getattr(_library(), name)(handle, *more)
        except Exception:  # the interpreter may be on its way out
            pass
