"""Kernels as loops over buffers: a small layer over TVM's IRBuilder.

:class:`FunctionBuilder` is what kernels of every target begin with; :class:`Kernel` adds what CPU and CUDA
kernels are written in: plain loops with explicit vector accesses (``Ramp`` indices), so nothing depends on
a vectoriser, and register tiles as small ``local`` buffers whose loops are fully unrolled, which is what
lets LLVM keep them in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from hetero_tvm.host.tvm import Buffer, Expr, IRBuilder, PrimFunc, T, s_tir, tirx

Index = Expr | int
"""A position or an extent: known when the kernel is emitted, or an expression of its loops."""

FLOAT = "float32"
LINE_BYTES, LINE_FLOATS = 64, 16
"""Bytes of a cache line, and float32 values in one."""

LAUNCH_FLOPS = 200_000
"""Work of one core in the 2 us that a parallel launch takes, roughly."""

Builder = TypeVar("Builder", bound="FunctionBuilder")


class FunctionBuilder:
    """Collects one PrimFunc while its ``with`` block is open."""

    def __init__(self, name: str = "main"):
        self._name = name
        self._builder = IRBuilder()
        self._frame: Any = None

    def __enter__(self: Builder) -> Builder:
        self._builder.__enter__()
        self._frame = T.prim_func(s_tir=True)
        self._frame.__enter__()
        T.func_name(self._name)
        T.func_attr({"tirx.noalias": True})
        return self

    def __exit__(self, *exc: Any) -> None:
        self._frame.__exit__(*exc)
        self._builder.__exit__(*exc)

    @property
    def function(self) -> PrimFunc:
        """The finished PrimFunc (after the ``with`` block)."""
        return self._builder.get()

    def argument(
        self, name: str, shape: Sequence[Index], dtype: str = FLOAT, scope: str = "global"
    ) -> Buffer:
        """Declare the next parameter, a compact row-major buffer."""
        return T.arg(name, T.buffer(tuple(shape), dtype, scope=scope))

    @contextmanager
    def when(self, condition: Expr | bool) -> Iterator[None]:
        """The body under a condition of the loops; True is no condition."""
        if condition is True:
            yield
            return
        with T.If(condition), T.Then():
            yield


_SHARED: ContextVar[bool | None] = ContextVar("_SHARED", default=None)


@contextmanager
def launches_alike(shared: bool) -> Iterator[None]:
    """Kernels of several sizes that are to have the same loops: whether threads share those whose work is
    known, however much that is."""
    token = _SHARED.set(shared)
    try:
        yield
    finally:
        _SHARED.reset(token)


class Kernel(FunctionBuilder):
    """A kernel of loops and vectors.

    >>> k = Kernel("scale")
    >>> with k:
    ...     x, y = k.argument("x", (64,)), k.argument("y", (64,))
    ...     with k.parallel(4) as i:
    ...         k.store(y, k.load(x, [k.ramp(i * 16, 16)]) * k.splat(2.0, 16), [k.ramp(i * 16, 16)])
    >>> k.function
    """

    def scratch(self, shape: Sequence[int], dtype: str = FLOAT) -> Buffer:
        """A buffer for the enclosing scope: on the stack while small (see ``codegen.pipeline``)."""
        return T.alloc_buffer(tuple(shape), dtype, scope="local")

    def view(self, buffer: Buffer, shape: Sequence[Index]) -> Buffer:
        """``buffer`` under another shape (both compact): the same memory."""
        known = all(isinstance(e, int) or isinstance(e, tirx.IntImm) for e in (*buffer.shape, *shape))
        if known and [int(extent) for extent in buffer.shape] == [int(extent) for extent in shape]:
            return buffer
        return T.decl_buffer(tuple(shape), buffer.dtype, data=buffer.data, elem_offset=buffer.elem_offset)

    def part(self, buffer: Buffer, shape: Sequence[Index], first: Index) -> Buffer:
        """The elements of ``buffer`` (compact) from number ``first`` on, as a buffer of this shape."""
        first = buffer.elem_offset + first
        return T.decl_buffer(tuple(shape), buffer.dtype, data=buffer.data, elem_offset=first)

    def bits_of(self, buffer: Buffer) -> Buffer:
        """``buffer`` of bfloat16 as their bits, uint16."""
        return T.decl_buffer(tuple(buffer.shape), "uint16", data=buffer.data, elem_offset=buffer.elem_offset)

    def bytes_of(self, buffer: Buffer, shape: Sequence[Index]) -> Buffer:
        """``buffer`` of truth values as bytes that are 0 or 1, which vectors are made of."""
        return T.decl_buffer(tuple(shape), "uint8", data=buffer.data)

    # loops -------------------------------------------------------------------------------------
    @contextmanager
    def parallel(self, extent: Index, flops: Index | None = None) -> Iterator[Expr]:
        """Iterations shared among the threads in contiguous, equal pieces.

        A loop of one iteration, or of fewer ``flops`` than waking the other threads costs, stays on
        the calling thread; how many a run-time extent or size has is not known here.
        """
        several = not isinstance(extent, int) or extent > 1
        alike = _SHARED.get()
        worth = several and (
            not isinstance(flops, int) or (flops >= LAUNCH_FLOPS if alike is None else alike)
        )
        with T.parallel(0, extent) if worth else T.serial(0, extent) as i:
            yield i

    def shared_unless(self, alone: Expr | bool, extent: Index, body: Callable[[Expr], None]) -> None:
        """``body(number)`` of all below ``extent``, by all threads, or on the calling one where ``alone``
        holds at the call: by a copy of the loops, unless it is known here."""

        def together() -> None:
            with self.parallel(extent) as number:
                body(number)

        def one_by_one() -> None:
            with self.serial(extent) as number:
                body(number)

        if isinstance(alone, bool):
            (one_by_one if alone else together)()
        else:
            self.branch(alone, one_by_one, together)

    @contextmanager
    def serial(self, extent: Index) -> Iterator[Expr]:
        """Iterations one after the other."""
        with T.serial(0, extent) as i:
            yield i

    @contextmanager
    def unroll(self, extent: int) -> Iterator[Expr]:
        """Iterations written out by LLVM: indices become constants, and small buffers registers."""
        with T.unroll(0, extent) as i:
            yield i

    def branch(
        self, condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None = None
    ) -> None:
        """``if condition: then() else: otherwise()`` at run time."""
        with T.If(condition):
            with T.Then():
                then()
            if otherwise is not None:
                with T.Else():
                    otherwise()

    @contextmanager
    def imported(self, *sources: str) -> Iterator[None]:
        """The body may call functions that ``sources`` define in LLVM IR (see ``codegen.transpose``)."""
        with ExitStack() as stack:
            for source in sources:
                stack.enter_context(T.attr(int32(0), "pragma_import_llvm", source))
            yield

    # data --------------------------------------------------------------------------------------
    def load(self, buffer: Buffer, indices: Sequence[Index]) -> Expr:
        """The element at ``indices``; a vector where the last index is a ramp."""
        return buffer[tuple(indices)]

    def store(self, buffer: Buffer, value: Expr, indices: Sequence[Index]) -> None:
        """Write a value, or a vector where the last index is a ramp."""
        T.buffer_store(buffer, value, list(indices))

    def let(self, value: Expr) -> Expr:
        """Name a value: evaluated here and once, however often the name is used."""
        return T.Bind(value)

    def counted(self, *extents: int) -> list[Expr]:
        """Extents of which the kernel is lifted to those of all sizes, read from memory: as constants they
        would be folded, and then differ by more than their values."""
        place = self.scratch((len(extents),), "int32")
        for n, extent in enumerate(extents):
            self.store(place, int32(extent), [n])
        return [self.let(self.load(place, [n])) for n in range(len(extents))]

    def strips(
        self,
        rows: Expr,
        columns: Expr,
        lanes: int,
        vectors: int,
        alone: Expr | bool,
        body: Callable[[Expr, Expr, int], None],
    ) -> None:
        """``body(row, first, width)`` of strips of ``vectors`` vectors of all rows, by all threads unless
        ``alone``; the last strip of a row comes by vectors, then column by column."""
        wide = vectors * lanes
        # Where no call can have so few elements that it runs alone, TVM would know in that branch that there
        # are none, and divide by 0 as it simplifies what is divided by their number.
        strips = self.named(tirx.truncdiv(columns + (wide - 1), int32(wide)))

        def strip(item: Expr) -> None:
            row = self.let(tirx.truncdiv(item, strips))
            first = self.let((item - row * strips) * wide)
            left = self.let(columns - first)

            def narrow() -> None:
                whole = self.let(tirx.truncdiv(left, int32(lanes)))
                with self.serial(whole) as n:
                    body(row, first + n * lanes, lanes)
                with self.serial(left - whole * lanes) as n:
                    body(row, first + whole * lanes + n, 1)

            self.branch(left >= wide, lambda: body(row, first, wide), narrow)

        self.shared_unless(alone, self.let(rows * strips), strip)

    def named(self, value: Index) -> Index:
        """Keep a value that is computed here and once: TVM writes one that is only bound out at every use,
        and looks at both sides of a choice in it each time.

        Buffers whose extents it tells must be made without it.
        """
        if isinstance(value, int | tirx.IntImm):
            return value
        place = self.scratch((1,), "int32")
        self.store(place, value, [0])
        return T.Bind(self.load(place, [0]))

    def address(self, buffer: Buffer, indices: Sequence[Index]) -> Expr:
        """Pointer to one element."""
        return tirx.call_intrin("handle", "tirx.address_of", buffer[tuple(indices)])

    def call(self, name: str, *args: Expr) -> None:
        """Call a C function that returns int32, which is dropped."""
        T.evaluate(tirx.call_extern("int32", name, *args))

    def prefetch(
        self, buffer: Buffer, indices: Sequence[Index], into: int = 2, to_write: bool = False
    ) -> None:
        """Ask for the cache line of one element, as :func:`prefetch` does."""
        T.evaluate(prefetch(self.address(buffer, indices), into, to_write))

    @staticmethod
    def ramp(base: Index, lanes: int) -> Expr:
        """Index of ``lanes`` consecutive elements from ``base``."""
        return tirx.Ramp(as_index(base), int32(1), lanes) if lanes > 1 else as_index(base)

    @staticmethod
    def splat(value: Expr | float, lanes: int, dtype: str = FLOAT) -> Expr:
        """``value`` in every lane; a number as ``dtype``."""
        scalar = constant(value, dtype) if isinstance(value, (int, float)) else value
        return tirx.Broadcast(scalar, lanes) if lanes > 1 else scalar


def for_graph(function: PrimFunc, flops: int = 0) -> PrimFunc:
    """A finished kernel as a function that Relax's passes carry along: they look for a root block, and fuse
    nothing with what is opaque (8).  Its work must be told: TVM's estimate knows no vectors."""
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", function.body))
    named = function.without_attr("global_symbol").with_body(root)
    return named.with_attr({"op_pattern": 8, "estimated_flops": flops})


def prefetch(address: Expr, into: int = 2, to_write: bool = False) -> Expr:
    """Call that asks for the cache line of an address, into L2 and kept there (prefetcht1), or into L1
    (prefetcht0, prefetchw) as well."""
    how = (int32(int(to_write)), int32(4 - into), int32(1))
    return tirx.call_llvm_intrin("void", "llvm.prefetch", address, *how)


def int32(value: int) -> Expr:
    """An int32 constant."""
    return tirx.const(int(value), "int32")


def as_index(value: Index) -> Expr:
    """``value`` as an expression."""
    return int32(value) if isinstance(value, int) else value


def pieces_of(extent: Index, size: int) -> Index:
    """Number of pieces of ``size`` that cover ``extent``."""
    if isinstance(extent, int):
        return -(-extent // size)
    return tirx.truncdiv(extent + (size - 1), int32(size))


def is_single(extent: Index) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, int) and extent == 1


def share(index: Index, total: Index, pieces: Index) -> tuple[Index, Index]:
    """First and count of piece ``index`` when ``total`` are cut into ``pieces``."""
    if isinstance(pieces, int) and pieces == 1:
        return int32(0), total
    first = tirx.floordiv(index * total, pieces)
    return first, tirx.floordiv((index + 1) * total, pieces) - first


def largest(first: Index, *others: Index) -> Index:
    """The largest of several extents."""
    for other in others:
        known = isinstance(first, int) and isinstance(other, int)
        first = max(first, other) if known else tirx.max(as_index(first), as_index(other))
    return first


def smallest(first: Index, other: Index) -> Index:
    """The smaller of two extents."""
    known = isinstance(first, int) and isinstance(other, int)
    return min(first, other) if known else tirx.min(as_index(first), as_index(other))


def constant(value: float, dtype: str = FLOAT) -> Expr:
    """A constant, float32 unless said otherwise."""
    return tirx.const(value, dtype)


def ordered_bits(value: Expr, lanes: int = 1) -> Expr:
    """float32 numbers, not NaN, as int32 that grow as they do; -0.0 is 0.0."""

    def of(number: int) -> Expr:
        return Kernel.splat(int32(number), lanes)

    bits = tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", value)
    number = bits ^ ((bits >> of(31)) & of(0x7FFFFFFF))
    return tirx.Select(number == of(-1), of(0), number)


def reduced(reduction: str, so_far: Expr, value: Expr) -> Expr:
    """Result of a scatter's ``reduction`` (update, add, mul, max, min) of a value, or of vectors of them."""
    if reduction in ("max", "min"):
        # The operator gives its second operand when either is NaN, so that only ``value`` needs a test.
        extreme = (tirx.max if reduction == "max" else tirx.min)(value, so_far)
        return tirx.Select(tirx.isnan(value), value, extreme) if "float" in str(value.ty.dtype) else extreme
    return {"update": lambda: value, "add": lambda: so_far + value, "mul": lambda: so_far * value}[
        reduction
    ]()


def fold_lanes(k: Kernel, sums: Buffer, places: Sequence[Sequence[Index]], lanes: int) -> None:
    """Add up the ``lanes`` of each vector of sums at ``places``, side by side; the result is in the first."""
    width = lanes
    while width > 1:
        width //= 2
        for place in places:
            low, high = (k.load(sums, [*place, k.ramp(at, width)]) for at in (0, width))
            k.store(sums, low + high, [*place, k.ramp(0, width)])


def vector_pieces(extent: int, lanes: int) -> list[tuple[int, int]]:
    """Cut ``extent`` into vectors: ``[(start, width), ...]`` with a power-of-two tail.

    A tail of 13 with 16 lanes becomes widths 8, 4, 1: each is one vector access.
    """
    pieces, start, width = [], 0, lanes
    while start < extent:
        while width > extent - start:
            width //= 2
        pieces.append((start, width))
        start += width
    return pieces


def vector_loop(
    k: Kernel, extent: Index, lanes: int, body: Callable[[Index, int], None], unroll: int = 1
) -> None:
    """``body(start, width)`` over ``extent``: a loop of ``unroll`` full vectors each, then the tail; of an
    extent that is known at run time whole vectors, then shorter and shorter ones."""
    if not isinstance(extent, int):
        whole = k.let(tirx.truncdiv(extent, int32(lanes)))
        steps = k.let(tirx.truncdiv(whole, int32(unroll))) if unroll > 1 else whole
        with k.serial(steps) as step:
            for u in range(unroll):
                body((step * unroll + u) * lanes, lanes)
        if unroll > 1:
            with k.serial(whole - steps * unroll) as step:
                body((steps * unroll + step) * lanes, lanes)
        in_powers_of_two(k, whole * lanes, extent - whole * lanes, lanes, body)
        return
    steps = extent // (lanes * unroll)
    if steps > 1:
        with k.serial(steps) as step:
            for u in range(unroll):
                body((step * unroll + u) * lanes, lanes)
        done = steps * unroll * lanes
    else:
        done = 0
    for start, width in vector_pieces(extent - done, lanes):
        body(done + start, width)


def in_powers_of_two(
    k: Kernel, first: Index, rest: Index, most: int, body: Callable[[Index, int], None]
) -> None:
    """``body(start, size)`` for ``rest`` items from ``first``: fewer than ``most``, counted at run time."""
    size = 1 << (most - 1).bit_length() >> 1
    while size:
        start = first + (rest - tirx.truncmod(rest, int32(2 * size)))
        with k.when(tirx.bitwise_and(rest, int32(size)) != 0):
            body(start, size)
        size //= 2


def strided_position(index: Expr, lead: Sequence[int], place: Sequence[int]) -> Expr:
    """Position of item ``index`` of the ``lead`` extents; ``place``: an offset, then a stride per extent."""
    position = int32(place[0])
    for extent, stride in zip(reversed(lead), reversed(place[1:]), strict=True):
        position = position + tirx.floormod(index, int32(extent)) * stride
        index = tirx.floordiv(index, int32(extent))
    return position


def broadcast_position(index: Expr, lead: Sequence[int], shape: Sequence[int]) -> Expr:
    """Flat position in an operand of ``shape`` that is broadcast to ``lead``, for a flat ``index`` in it."""
    position, below, step = int32(0), 1, 1
    for axis in range(1, len(lead) + 1):
        extent = shape[-axis] if axis <= len(shape) else 1
        if extent != 1:
            position = position + tirx.floormod(tirx.floordiv(index, below), lead[-axis]) * step
        below *= lead[-axis]
        step *= extent
    return position
