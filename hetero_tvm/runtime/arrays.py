"""Arrays in and out of a library, without copies where that is safe.

In: kernels assume dense rows and the alignment that the manifest names (16 bytes, NumPy's own, on a CPU).
An input that offers both is lent to the library; any other is copied into a buffer that belongs to the
input and is used again.
Out: results are memory of the library that nobody else holds, owned by the NumPy array from
then on; what the library still refers to (an input, a constant) is copied.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero_tvm.errors import LibraryError
from hetero_tvm.host.install import pip_command
from hetero_tvm.runtime.signature import TensorSpec
from hetero_tvm.runtime.tvm_runtime import TVMRuntime

# Below this size a copy costs no more than asking whether it can be avoided.
_ALWAYS_COPY = 16 * 1024
# Owners of a result right after a call: the result itself, and the virtual machine's register.
_FRESH_REFERENCES = 2
_HOST = 1  # DLPack's number of it
_reference_count = ctypes.c_uint32.from_address  # the first field of every object of TVM's FFI


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a manifest's dtype name.

    Raises :class:`LibraryError` for ``bfloat16`` and ``float8`` without the package ml_dtypes.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise LibraryError(f"NumPy has no dtype {name!r}", hint=pip_command("ml_dtypes")) from None


class InputSlot:
    """Conversion of one input: checks what is given and turns it into a tensor of the runtime."""

    def __init__(self, runtime: TVMRuntime, spec: TensorSpec, alignment: int = 64):
        self.spec, self._alignment = spec, alignment
        self.dtype = numpy_dtype(spec.dtype)
        self._runtime = runtime
        self._shape = spec.shape if spec.static else None
        self._plain = not self.dtype.metadata and self.dtype.kind in "biuf"  # what DLPack can carry
        self._buffer: tuple[Any, np.ndarray, tuple[int, int]] | None = None
        self.span = (0, 0)
        self._always_copy = (
            self._shape is not None and math.prod(spec.shape) * self.dtype.itemsize <= _ALWAYS_COPY
        )

    def check(self, value: Any) -> tuple[np.ndarray | None, str | None]:
        """Check an argument: (array, None), or (None, what is wrong)."""
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self._shape:
            return value, None
        try:
            array = self._as_array(value)
        except (TypeError, ValueError, OverflowError, RuntimeError, BufferError) as error:
            return None, f"{self.spec.name}: {error}"
        if not self._shape_fits(array.shape):
            given = ", ".join(map(str, array.shape))
            return None, f"{self.spec.name}: the shape is ({given}), expected {_shape_text(self.spec.shape)}"
        return array, None

    def tensor(self, array: np.ndarray) -> Any:
        """A tensor of the runtime with the values of ``array``, valid until the next call.

        Its first and last address are in :attr:`span` afterwards.
        """
        if not self._always_copy and self._plain:
            flags = array.flags
            # A read-only array is copied too: DLPack cannot say so to the runtime.
            if flags.c_contiguous and flags.writeable:
                tensor = self._runtime.ffi.from_dlpack(array)
                start = tensor.data_ptr()
                if start % self._alignment == 0:
                    self.span = (start, start + array.nbytes)
                    return tensor
        if self._buffer is None or self._buffer[1].shape != array.shape:
            self._buffer = allocate(self._runtime, array.shape, self.spec.dtype, self.dtype)
        tensor, staging, self.span = self._buffer
        np.copyto(staging, array)
        return tensor

    def _as_array(self, value: Any) -> np.ndarray:
        if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
            array = np.asarray(value)
        elif hasattr(value, "__dlpack__"):
            array = np.from_dlpack(value)
        else:
            return self._exactly(np.asarray(value))
        if array.dtype != self.dtype:
            raise TypeError(
                f"the dtype is {array.dtype}, expected {self.dtype}; "
                f"convert it with .astype({str(self.dtype)!r})"
            )
        return array

    def _exactly(self, array: np.ndarray) -> np.ndarray:
        """Convert Python numbers and lists, which have no dtype to respect but values that must survive."""
        if array.dtype.kind not in "biuf":
            raise TypeError(f"expected an array of {self.dtype}, got values of type {array.dtype}")
        with np.errstate(all="ignore"):
            result = array.astype(self.dtype)
            to_float = self.dtype.kind not in "biu"
            if array.dtype.kind == "f" and to_float:  # rounding is what a float32 model means
                exact = np.array_equal(np.isfinite(array), np.isfinite(result.astype(np.float64)))
            else:
                exact = np.array_equal(result.astype(array.dtype), array)
        if not exact:
            raise ValueError(f"the values do not fit into {self.dtype}")
        return result

    def _shape_fits(self, shape: tuple[int, ...]) -> bool:
        expected = self.spec.shape
        return len(shape) == len(expected) and all(
            isinstance(want, str) or want == have for want, have in zip(expected, shape, strict=True)
        )


def _shape_text(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def allocate(
    runtime: TVMRuntime, shape: tuple[int, ...], dtype: str, as_dtype: np.dtype, owned: bool = False
) -> tuple[Any, np.ndarray, tuple[int, int]]:
    """An aligned tensor of the runtime, a NumPy view of the same memory (``owned``: that keeps it alive), and
    its addresses."""
    ffi = runtime.ffi
    tensor = runtime.function("runtime.TVMTensorAllocWithScope")(
        ffi.Shape(shape), ffi.dtype(dtype), ffi.device("cpu"), None
    )
    view = _view(tensor, as_dtype, owned)
    start = tensor.data_ptr()
    return tensor, view, (start, start + view.nbytes)


def _view(tensor: Any, dtype: np.dtype, owned: bool = False) -> np.ndarray:
    """The memory of ``tensor`` as an array, which keeps it alive where it is ``owned``."""
    shape = tuple(tensor.shape)
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    if owned:
        memory.owner = tensor  # type: ignore[attr-defined]
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def result_array(tensor: Any, dtype: np.dtype, inputs: Sequence[Any]) -> np.ndarray:
    """``tensor``, just returned by a call with ``inputs`` (which have a ``span``), as an array of its own."""
    if dtype.kind not in "biuf":  # bfloat16 and the like: NumPy's DLPack does not know them
        return _view(tensor, dtype).copy()
    array = np.from_dlpack(tensor)
    owners = _reference_count(tensor.__chandle__()).value - 1  # without the array's
    if owners > _FRESH_REFERENCES or not array.flags.writeable:
        return array.copy()
    address = tensor.data_ptr()
    for slot in inputs:  # a view of an input, from a model that only reshapes, say
        start, stop = slot.span
        if start <= address < stop:
            return array.copy()
    return array


def fetched(tensor: Any) -> np.ndarray:
    """Values of a tensor of the host, without a copy where NumPy's DLPack knows their type."""
    known = numpy_dtype(str(tensor.dtype)).kind in "biuf"
    return np.from_dlpack(tensor) if known else tensor.numpy()


def named_indices(message: str, specs: Sequence[TensorSpec], given: Sequence[Any]) -> str:
    """``message`` about an index outside of a range, with the inputs that hold such numbers, and where.

    ``given`` are the tensors or arrays of a call that has failed; indices that are computed are in none.
    """
    ranged = re.search(r"an index lies outside \[(-?\d+), (\d+)\)$", message)
    if not ranged:
        return message
    found = []
    for spec, tensor in zip(specs, given, strict=True):
        if numpy_dtype(spec.dtype).kind not in "iu" or tensor.__dlpack_device__()[0] != _HOST:
            continue
        array = np.from_dlpack(tensor)
        wrong = (array < int(ranged[1])) | (array >= int(ranged[2]))
        if wrong.any():
            place = np.unravel_index(int(wrong.argmax()), array.shape)
            found.append(f"input {spec.name} holds {array[place]} at {[int(n) for n in place]}")
    return f"{message}: {'; '.join(found)}" if found else message
