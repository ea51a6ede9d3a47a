"""Elementwise chains, broadcasts, casts, slices, concatenations, padding and gathers on a GPU.

Loop structure::

    blockIdx.x, threadIdx.x over vectors of the result, in memory order
      16-byte loads of what lies side by side, one load of what is the same for the vector
      the expression, element by element, in registers
      one 16-byte store; the last thread does an odd rest one by one

Memory sees each operand once and full lines only, which is all there is to gain.  Where a vector can only
come from one side of a concatenation (or lies inside, or outside, of a padding), that side is chosen
once for the vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetero_tvm.host.tvm import Call, Expr, PrimFunc, T, TensorLoad, tirx, tvm_ffi
from hetero_tvm.machines.gpu import GpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.cuda.tensor_program.neighbours import Neighbours
from hetero_tvm.schedules.cuda.tensor_program.plain import (
    PlainKernel,
    distinct,
    step_of,
    store_vector,
    vector,
    widest,
)
from hetero_tvm.schedules.emit import int32
from hetero_tvm.schedules.nests.nest import (
    Nest,
    Nests,
    is_conditional,
    loads_of,
    offset,
    substitute,
    unflatten,
)
from hetero_tvm.schedules.nests.program import program_nests

THREADS = (256, 128, 512)
_MOST_SIDES = 8
"""Most conditions that are chosen once for a vector."""


class CudaElementwiseSpace(DesignSpace):
    """Operators without reductions: generic kernels, activations, rotary embeddings, layouts.

    Knobs: ``width``, elements of a vector at most; ``threads``.
    """

    name = "cuda.pointwise"

    def refuses(self, op: FusedOp, machine: GpuModel) -> str | None:
        nests = program_nests(op)
        return nests if isinstance(nests, str) else refuses(nests)

    def knobs(self, op: FusedOp, machine: GpuModel) -> tuple[Knob, ...]:
        widest = max(width_of(nest) for nest in program_nests(op).nests)
        widths = tuple(width for width in (8, 4, 2, 1) if width <= widest)
        return (Knob("width", widths), Knob("threads", THREADS))

    def default(self, op: FusedOp, machine: GpuModel) -> Point:
        return default(program_nests(op), machine)

    def emit(self, op: FusedOp, point: Point, machine: GpuModel) -> PrimFunc:
        return emit(program_nests(op), point["width"], point["threads"])

    def features(self, op: FusedOp, point: Point, machine: GpuModel) -> list[float]:
        size = max(nest.size for nest in program_nests(op).nests)
        blocks = size / point["width"] / point["threads"]
        return [math.log2(point["width"]), math.log2(point["threads"]), blocks / machine.sms]


def default(nests: Nests, machine: GpuModel) -> Point:
    """Widest vectors; smaller blocks, and then narrower vectors, where multiprocessors would be idle."""
    full = [nest for nest in nests.nests if nest.size]
    width, size = (max(map(of, full), default=1) for of in (width_of, lambda nest: nest.size))
    while width > 2 and size < width * machine.sms * 128:
        width //= 2
    return {"width": width, "threads": 256 if size >= width * 256 * machine.sms else 128}


def refuses(nests: Nests) -> str | None:
    """Reason why these nests are no elementwise kernel; None when they are."""
    if nests.temporary:
        return "a step cannot be written into the next"
    if any(nest.reduced for nest in nests.nests):
        return "it reduces"
    return None


def emit(nests: Nests, width: int, threads: int) -> PrimFunc:
    """The function, with a kernel for each nest.

    Parameters
    ----------
    width : elements of a vector at most; narrower where operands do not lie side by side.
    """
    kernel = PlainKernel(nests)
    with kernel.arguments():
        full = [nest for nest in nests.nests if nest.size]  # a launch of no threads is an error
        for nest in full:
            _nest(kernel, nest, min(width, width_of(nest)), threads)
        if not full:
            T.evaluate(int32(0))
    return kernel.function


def width_of(nest: Nest) -> int:
    """The widest vector for which every large operand is contiguous, or the same."""
    width = widest(nest)
    while width > 1:
        near = Neighbours(nest.size // width, width, nest.index_dtype)
        if nest.size >= width and _fits(nest, near):
            return width
        width //= 2
    return 1


def _fits(nest: Nest, near: Neighbours) -> bool:
    """Whether vectors of the nest's result, and of every large operand, lie side by side."""
    place = offset(nest.buffer, nest.indices)
    if near.step(lambda index: substitute(place, unflatten(nest.axes, index))) != 1:
        return False
    return _all_move_together(nest, nest.value, near)


def _all_move_together(nest: Nest, expression: Expr, near: Neighbours, depth: int = 0) -> bool:
    """Whether every large operand is contiguous, or the same, on each side that a vector may take."""
    if (node := _uniform_condition(nest, expression, near, depth)) is not None:
        for side in (1, 2):
            with near.assuming(_holds(nest, node, side, near)):
                if not _all_move_together(nest, _chosen(expression, node, side), near, depth + 1):
                    return False
        return True
    for load, guarded in loads_of(expression):
        # A small operand stays in L1 after the first touch.
        small = math.prod(map(int, load.source.shape)) * 4 <= nest.size
        if not small and (guarded or step_of(near, nest, load) is None):
            return False
    return True


def _at(nest: Nest) -> Callable[[Expr, Expr], Expr]:
    """Function from an expression of the nest's axes, and a flat index, to its value there."""
    return lambda expression, index: substitute(expression, unflatten(nest.axes, index))


def _condition(node: Expr) -> Expr:
    """The condition of a conditional value."""
    return node.args[0] if is_conditional(node) else node.condition


def _side(node: Expr, side: int) -> Expr:
    """One side of a conditional value: 1 where its condition holds, 2 where it does not."""
    return node.args[side] if is_conditional(node) else (node.true_value, node.false_value)[side - 1]


def _holds(nest: Nest, node: Expr, side: int, near: Neighbours) -> Expr:
    """The condition that holds for a vector that takes a side."""
    condition = _at(nest)(_condition(node), near.at(0))
    return condition if side == 1 else tirx.Not(condition)


def _uniform_condition(nest: Nest, expression: Expr, near: Neighbours, depth: int) -> Expr | None:
    """A conditional value that takes the same side for a whole vector; None when there is none."""
    found: list[Expr] = []

    def visit(node: Expr) -> None:
        if found or not (is_conditional(node) or isinstance(node, tirx.Select)):
            return
        if loads_of(node) and near.uniform(_condition(node), _at(nest)):
            found.append(node)

    if near.width > 1 and depth < _MOST_SIDES:
        tvm_ffi.structural_walk(expression, ((Call, tirx.Select), visit), order="pre")
    return found[0] if found else None


def _chosen(expression: Expr, node: Expr, side: int) -> Expr:
    """The expression with one side of a condition."""

    def replace(call: Expr) -> Expr:
        return _side(node, side) if tvm_ffi.structural_equal(call, node) else call

    return tvm_ffi.structural_map(expression, ((Call, tirx.Select), replace), order="pre")


def _nest(kernel: PlainKernel, nest: Nest, width: int, threads: int) -> None:
    """Emit the kernel of one nest."""
    k, dtype = kernel.k, nest.index_dtype
    groups, tail = divmod(nest.size, width)
    blocks = -(-(groups + bool(tail)) // threads)
    near = Neighbours(max(1, groups), width, dtype)
    with kernel.launch(max(1, blocks), threads, dtype) as (block, thread):
        group = block * threads + thread

        def whole() -> None:
            _vector(kernel, nest, nest.value, near, group)

        if groups % threads == 0 and not tail:
            whole()
            return
        with k.when(group < groups):
            whole()
        if tail:
            with k.when(tirx.EQ(group, tirx.const(groups, dtype))):
                for e in range(tail):
                    index = tirx.const(groups * width + e, dtype)
                    place = kernel.place(nest, index)
                    k.store(kernel.flat(nest.buffer), kernel.value(nest, nest.value, index), [place])


def _vector(
    kernel: PlainKernel, nest: Nest, expression: Expr, near: Neighbours, group: Expr, depth: int = 0
) -> None:
    """Emit one thread's vector of the result, with conditions that are the same for it chosen once."""
    k, width = kernel.k, near.width
    if (node := _uniform_condition(nest, expression, near, depth)) is not None:

        def take(side: int) -> None:
            with near.assuming(_holds(nest, node, side, near)):
                _vector(kernel, nest, _chosen(expression, node, side), near, group, depth + 1)

        condition = kernel.value(nest, _condition(node), group * width)
        k.branch(condition, lambda: take(1), lambda: take(2))
        return
    target, dtype = kernel.flat(nest.buffer), str(nest.buffer.dtype)
    if width == 1:
        k.store(target, kernel.value(nest, expression, group), [kernel.place(nest, group)])
        return
    known: list[list[tuple[TensorLoad, Expr]]] = [[] for _ in range(width)]
    for load in distinct([load for load, guarded in loads_of(expression) if not guarded]):
        step, kind = step_of(near, nest, load), str(load.source.dtype)
        if step is None or (kind == "bool" and step):
            continue
        origin = kernel.value(nest, offset(load.source, load.indices), group * width, known[0])
        held = k.scratch((width if step else 1,), kind)
        vector(k, held, kernel.flat(load.source), origin, width if step else 1, kind)
        for e in range(width):
            known[e].append((load, k.load(held, [int32(e * step)])))
    out = k.scratch((width,), dtype)
    for e in range(width):
        k.store(out, kernel.value(nest, expression, group * width + e, known[e]), [int32(e)])
    store_vector(k, target, kernel.place(nest, group * width), out, width, dtype)
