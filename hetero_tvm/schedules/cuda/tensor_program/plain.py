"""Emission of kernels from nests: buffers as flat memory, expressions with loads replaced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, T, TensorLoad, Var, tirx, tvm_ffi
from hetero_tvm.schedules.cuda.tensor_program.neighbours import Neighbours
from hetero_tvm.schedules.cuda.values import VECTOR_BYTES, bytes_of
from hetero_tvm.schedules.emit import Kernel, int32
from hetero_tvm.schedules.nests.nest import (
    Nest,
    Nests,
    loads_of,
    offset,
    substitute,
    unflatten,
)

Known = Sequence[tuple[TensorLoad, Expr]]
"""Loads whose values are there already, and these values."""


class PlainKernel:
    """One kernel function in the making, with the arguments of the function that it stands for."""

    def __init__(self, nests: Nests):
        self.nests, self.k = nests, Kernel("main")
        self._flat: dict[Buffer, Buffer] = {}

    @contextmanager
    def arguments(self) -> Iterator[None]:
        """Open while the kernels are written."""
        with self.k:
            made = [
                (buffer, self.k.argument(buffer.name, tuple(map(int, buffer.shape)), str(buffer.dtype)))
                for buffer in self.nests.function.params
            ]
            for buffer, argument in made:
                self._flat[buffer] = self.k.view(argument, (math.prod(map(int, buffer.shape)),))
            yield

    @property
    def function(self) -> PrimFunc:
        """The finished function, under the attributes of the old one."""
        made, old = self.k.function.without_attr("global_symbol"), self.nests.function.attrs
        for name in old.keys() if old else ():
            if name not in ("global_symbol", "op_pattern"):
                made = made.with_attr(str(name), old[name])
        return made

    def flat(self, buffer: Buffer) -> Buffer:
        """The memory of a buffer of the nests, as one row of elements."""
        return self._flat[buffer]

    def value(self, nest: Nest, expression: Expr, index: Expr, known: Known = ()) -> Expr:
        """An expression of the nest's axes at a flat index; ``known`` loads have values already."""
        return substitute(self.with_loads(expression, known), unflatten(nest.axes, index))

    def with_loads(self, expression: Expr, known: Known = ()) -> Expr:
        """The expression over flat memory; ``known`` loads have values already."""

        def replace(load: TensorLoad) -> Expr:
            for one, value in known:
                if tvm_ffi.structural_equal(one, load):
                    return value
            buffer = self._flat.get(load.source)
            return load if buffer is None else buffer[offset(load.source, load.indices)]

        return tvm_ffi.structural_map(expression, (TensorLoad, replace), order="pre")

    def launch(self, blocks: int, threads: int, dtype: str) -> AbstractContextManager[tuple[Var, Var]]:
        """See :func:`launch`."""
        return launch(blocks, threads, dtype)

    def place(self, nest: Nest, index: Expr) -> Expr:
        """Offset in memory of the nest's result at a flat index."""
        return substitute(self.with_loads(offset(nest.buffer, nest.indices)), unflatten(nest.axes, index))


@contextmanager
def launch(blocks: int, threads: int, dtype: str) -> Iterator[tuple[Var, Var]]:
    """A grid of one axis: opens with the index of the block and of the thread."""
    with (
        T.launch_thread("blockIdx.x", tirx.const(blocks, dtype)) as block,
        T.launch_thread("threadIdx.x", tirx.const(threads, dtype)) as thread,
    ):
        yield block, thread


def step_of(near: Neighbours, nest: Nest, load: TensorLoad) -> int | None:
    """Step of a load from neighbour to neighbour of the nest's flat index (see :meth:`Neighbours.step`)."""
    place = offset(load.source, load.indices)
    return near.step(lambda index: substitute(place, unflatten(nest.axes, index)))


def distinct(loads: list[TensorLoad]) -> list[TensorLoad]:
    """The loads, structurally equal ones once."""
    found: list[TensorLoad] = []
    for load in loads:
        if not any(tvm_ffi.structural_equal(load, other) for other in found):
            found.append(load)
    return found


def widest(nest: Nest) -> int:
    """Elements of 16 bytes of the narrowest operand; 1 where an operand has a type without vectors."""
    kinds = {str(nest.buffer.dtype), *(str(load.source.dtype) for load, _ in loads_of(nest.value))}
    if "bool" in kinds or any(bytes_of(kind) > 8 for kind in kinds):
        return 1
    return VECTOR_BYTES // max(2, min(map(bytes_of, kinds)))


def vector(k: Kernel, buffer: Buffer, source: Buffer, origin: Expr, width: int, dtype: str) -> None:
    """``buffer[0:width] = source[origin:origin + width]`` in accesses of up to 16 bytes."""
    part = min(width, VECTOR_BYTES // bytes_of(dtype))
    for at in range(0, width, part):
        k.store(buffer, k.load(source, [k.ramp(origin + at, part)]), [k.ramp(int32(at), part)])


def store_vector(k: Kernel, target: Buffer, origin: Expr, buffer: Buffer, width: int, dtype: str) -> None:
    """``target[origin:origin + width] = buffer[0:width]``."""
    part = min(width, VECTOR_BYTES // bytes_of(dtype))
    for at in range(0, width, part):
        k.store(target, k.load(buffer, [k.ramp(int32(at), part)]), [k.ramp(origin + at, part)])
