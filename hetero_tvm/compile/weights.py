"""Large constants apart from the virtual machine's code.

In an executable of TVM's the constants are in memory, are copied into the bytes that are exported, and
three times when these are loaded.  The executable gets stand-ins instead: small tensors that say which
constant they stand for.  Each entry function begins with a call of ``hetero_tvm_constants`` on all of them,
which gives them their values: in this process from here, in an exported library from a segment of the file
(``runtime/cpp/constants.cc``).
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import math
import struct
import sys
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hetero_tvm.host import mapped
from hetero_tvm.host.constants import SHARED, array_of
from hetero_tvm.host.expanded import origin_of
from hetero_tvm.host.tvm import IRModule, RelaxFunction, relax, tvm, tvm_ffi
from hetero_tvm.runtime.library import LOAD

FUNCTION = "hetero_tvm_constants"
_LEAST = 4096
"""Smallest constant in bytes that is worth a stand-in."""
_ALIGNMENT = 64
_NUMBER = struct.Struct("<QQ")
_HEAD, _ENTRY, _EXPANSION = struct.Struct("<QQQQQ"), struct.Struct("<QQQ"), struct.Struct("<QQQQQQQ")
"""Head, entry and expansion of a segment, as ``constants.cc`` has them."""
_OBJECT = 24
"""Size of the header of tvm_ffi's objects."""

_tokens = itertools.count(1)
_known: weakref.WeakValueDictionary[int, Weights] = weakref.WeakValueDictionary()
_held: Counter[int] = Counter()
"""Number of builds of this process that have a constant at an address: each call looks for all of its own."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Weights:
    """The constants that an executable has stand-ins for."""

    def __init__(self) -> None:
        self.token = next(_tokens)
        self._stand_ins: list[Any] = []
        self._tensors: list[Any] = []
        self._numbers: dict[tuple[int, str, tuple[int, ...]], list[int]] = {}
        self._replaced: list[tuple[Any, int | None, list[int]]] = []
        _known[self.token] = self

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if ending():  # this module may have lost its names; see below
            return
        self.take_back()
        for value in self._tensors:
            _held[value.data_ptr()] -= 1
            if not _held[value.data_ptr()]:
                del _held[value.data_ptr()]

    def __len__(self) -> int:
        return len(self._tensors)

    def stand_in(self, value: Any) -> tuple[int, Any]:
        """Number of a constant, and a small tensor that stands for it; equal constants have one number."""
        array = array_of(value)
        kind = (zlib.crc32(array.reshape(-1).view(np.uint8)), array.dtype.name, array.shape)
        same = self._numbers.setdefault(kind, [])
        number = next(
            (n for n in same if np.array_equal(_bits(array_of(self._tensors[n])), _bits(array))), None
        )
        if number is None:
            number = len(self._tensors)
            self._tensors.append(value)
            _held[value.data_ptr()] += 1
            same.append(number)
        length = -(-_NUMBER.size // array.dtype.itemsize)
        data = np.zeros(length * array.dtype.itemsize, np.uint8)
        data[: _NUMBER.size] = np.frombuffer(_NUMBER.pack(self.token, number), np.uint8)
        tensor = tvm.runtime.tensor(data.view(array.dtype).reshape((1,) * (array.ndim - 1) + (length,)))
        self._stand_ins.append(tensor)
        return number, tensor

    def give(self, tensors: Sequence[Any]) -> None:
        """Give stand-ins in this process their values; those that have them stay as they are."""
        for tensor in tensors:
            address = tensor.__chandle__() + _OBJECT
            fields = _Tensor.from_address(address)
            if fields.data in _held:
                continue
            _, number = _NUMBER.unpack(ctypes.string_at(fields.data, _NUMBER.size))
            value = self._tensors[number]
            self._replaced.append((tensor, fields.data, list(fields.shape[: fields.ndim])))
            _set(fields, value.data_ptr(), [int(extent) for extent in value.shape])

    def take_back(self) -> None:
        """Make stand-ins of this process what they were: they free their own memory, and are exported."""
        for tensor, data, shape in self._replaced:
            _set(_Tensor.from_address(tensor.__chandle__() + _OBJECT), data, shape)
        self._replaced.clear()

    @contextmanager
    def exported(self) -> Iterator[None]:
        """Keep stand-ins as a library has them: their numbers alone, whichever build of a process it was."""
        self.take_back()
        self._tell(0)
        try:
            yield
        finally:
            self._tell(self.token)

    def _tell(self, token: int) -> None:
        for tensor in self._stand_ins:
            ctypes.c_uint64.from_address(tensor.data_ptr()).value = token

    def segment(self) -> tuple[int, Iterator[Any]]:
        """Size and content, piece by piece, of the segment of an exported library.

        What follows from fewer numbers lies behind everything else in memory, and these in its place in the
        file.
        """
        shapes = [tuple(int(extent) for extent in tensor.shape) for tensor in self._tensors]
        sizes = [
            math.prod(shape) * np.dtype(tensor.dtype).itemsize
            for tensor, shape in zip(self._tensors, shapes, strict=True)
        ]
        origins = [origin_of(tensor) for tensor in self._tensors]
        stored = [n for n, origin in enumerate(origins) if origin is None]
        made = [(n, origin) for n, origin in enumerate(origins) if origin is not None]
        extents = _HEAD.size + _ENTRY.size * len(shapes)
        expansions = extents + 8 * sum(map(len, shapes))
        at = _aligned(expansions + _EXPANSION.size * len(made))
        places, arrays = {}, [_bits(array_of(self._tensors[n])) for n in stored]
        for n in stored:
            places[n], at = at, _end(at, sizes[n])
        direct = memory = source = at
        table = []
        for n, (matrix, plain) in made:
            places[n], memory = memory, _end(memory, sizes[n])
            start, source = source, _end(source, matrix.nbytes)
            table.append(_EXPANSION.pack(places[n], start, source, len(plain), len(matrix), *plain.shape[1:]))
            source = _end(source, plain.nbytes)
            arrays += [_bits(np.ascontiguousarray(matrix)), _bits(plain)]
        head = [_HEAD.pack(len(shapes), memory, direct, len(made), expansions)]
        for n, shape in enumerate(shapes):
            head.append(_ENTRY.pack(places[n], sizes[n], extents))
            extents += 8 * len(shape)
        head += [struct.pack(f"<{len(shape)}q", *shape) for shape in shapes]
        return source, _pieces(b"".join([*head, *table]), arrays)


@atexit.register
def _take_all_back() -> None:
    """Make all stand-ins what they were while that can be done: models that modules hold live until then."""
    for weights in list(_known.values()):
        weights.take_back()


def _pieces(head: bytes, arrays: Sequence[np.ndarray]) -> Iterator[Any]:
    yield head + bytes(_aligned(len(head)) - len(head))
    for data in arrays:
        for start in range(0, data.size, 16 << 20):
            yield data[start : start + (16 << 20)]
        yield bytes(_end(0, data.size) - data.size)
        mapped.touched(data.size)


def _set(fields: _Tensor, data: int | None, shape: Sequence[int]) -> None:
    fields.data = data
    stride = 1
    for axis in reversed(range(fields.ndim)):
        fields.shape[axis] = shape[axis]
        if fields.strides:
            fields.strides[axis] = stride
        stride *= shape[axis]


def _bits(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _end(start: int, size: int) -> int:
    """Place of the next constant; one without elements has a place of its own too, within the segment."""
    return _aligned(start + max(size, 1))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def set_apart(module: IRModule) -> tuple[IRModule, Weights]:
    """Replace the large constants of a lowered module by stand-ins; the last step before code generation."""
    weights = Weights()
    functions = dict(module.functions.items())
    found: dict[int, Any] = {}
    for variable, function in functions.items():
        if isinstance(function, relax.Function):
            functions[variable] = _with_stand_ins(function, weights, found)
    if found:
        load = relax.Function(
            [], relax.SeqExpr([_call(list(found.values()))], relax.Tuple([])), relax.TupleType([])
        )
        functions[tvm.ir.GlobalVar(LOAD)] = load.with_attr("global_symbol", LOAD)
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos), weights


def _with_stand_ins(function: RelaxFunction, weights: Weights, found: dict[int, Any]) -> RelaxFunction:
    own: dict[int, Any] = {}

    def replaced(constant: Any) -> Any:
        value = constant.value
        if not isinstance(value, tvm.runtime.Tensor) or value.dtype not in SHARED or not len(value.shape):
            return constant
        # TVM cannot read an executable whose last constant has no elements.
        if 0 < math.prod(value.shape) * np.dtype(value.dtype).itemsize < _LEAST:
            return constant
        number, tensor = weights.stand_in(value)
        if number not in found:
            found[number] = relax.const(tensor)
        own[number] = found[number]
        return found[number]

    result = tvm_ffi.structural_map(function, (tvm.ir.GenericConst, replaced))
    if not own:
        return function
    body = result.body
    blocks = [_call(list(own.values())), *body.blocks]
    return relax.Function(
        result.params, relax.SeqExpr(blocks, body.body), result.ret_ty, result.is_pure, result.attrs
    )


def _call(stand_ins: Sequence[Any]) -> Any:
    call = relax.Call(relax.ExternFunc(FUNCTION), list(stand_ins), None, [relax.TupleType([])])
    return relax.BindingBlock([relax.VarBinding(relax.Var("constants", relax.TupleType([])), call)])


@tvm_ffi.register_global_func(FUNCTION, override=True)
def _give(*tensors: Any) -> None:
    """The constants of an executable of this process: functions share some, each looks for all of its own."""
    missing = [one for one in tensors if one.data_ptr() not in _held]
    if missing:
        token, _ = _NUMBER.unpack(ctypes.string_at(missing[0].data_ptr(), _NUMBER.size))
        _known[token].give(missing)
