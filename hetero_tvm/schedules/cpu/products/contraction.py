"""Matrix products without a contract: a user's ``te`` expression or TensorIR, an einsum that no rule took.

A function whose one nest sums the products of two operands, each read at linear places, is a
:class:`~hetero_tvm.ops.batch_matmul.BatchMatmul`: it gets the kernel of that space's default.  So are sums of
other terms of two operands, the squared or absolute differences of distances between all pairs of rows: the
register tile reads each operand once for many of them, as it does for products.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, TensorLoad, tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.programs.linear import flat_access
from hetero_tvm.schedules.emit import Kernel
from hetero_tvm.schedules.nests.nest import Nest
from hetero_tvm.schedules.nests.program import nests_of


def emit(function: PrimFunc, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that is a product of its two inputs; None for others."""
    found, space = contraction_of(function), BatchMatmulSpace()
    if found is None or space.refuses(found.op, machine) is not None:
        return None
    if found.is_product:
        kernel = space.emit(found.op, space.default(found.op, machine), machine)
    else:
        kernel = space.emit_terms(found.op, machine, found.term, found.declare)
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    given = {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}
    return kernel.with_attr({**given, "tirx.noalias": True})


class Contraction:
    """Sums of terms of A and B, two parameters of a function; others are single numbers.

    Parameters
    ----------
    function, op : the function; extents and places, as of the product of A and B.
    value : what is summed up, and the loads of A and B in it.
    """

    def __init__(self, function: PrimFunc, op: BatchMatmul, value: Expr, left: TensorLoad, right: TensorLoad):
        self.op, self._function, self._value, self._left, self._right = op, function, value, left, right
        self._numbers: list[tuple[TensorLoad, Expr]] = []
        sides = [value.a, value.b] if isinstance(value, tirx.Mul) else []
        plain = len(sides) == 2 and all(isinstance(side, TensorLoad) for side in sides)
        self.is_product = plain and left.source.same_as(function.params[0]) and len(function.params) == 3
        """Whether it is the product of its first and second parameter, as the space emits it."""

    def declare(self, k: Kernel) -> tuple[Buffer, Buffer, Buffer]:
        """Declare the parameters in the function's order, and load the numbers; gives A, B and the result."""
        params = list(self._function.params)
        buffers = [k.argument(p.name, [int(e) for e in p.shape], str(p.dtype)) for p in params]
        own = dict(zip(params, buffers, strict=True))
        for load in _distinct(self._value):
            if _is_number(load.source):
                place = [0] * len(load.source.shape)
                self._numbers.append((load, k.let(k.load(own[load.source], place))))
        return own[self._left.source], own[self._right.source], buffers[-1]

    def term(self, a: Expr, b: Expr) -> Expr:
        """The term of vectors of A and B that is summed up, in a kernel whose parameters are declared."""
        lanes = tvm.DataType(str(a.ty.dtype)).lanes
        numbers = [(load, Kernel.splat(value, lanes)) for load, value in self._numbers]
        return _valued(self._value, [(self._left, a), (self._right, b), *numbers])


def contraction_of(function: PrimFunc) -> Contraction | None:
    """The sums of terms of two of its parameters that a function writes to its last one."""
    nests = nests_of(function)
    if nests is None or nests.empty or len(nests.nests) != 1:
        return None
    nest, (*_, result) = nests.nests[0], function.params
    large = [param for param in function.params if not _is_number(param)]
    value = _value_of(nest)
    loads = [] if value is None else [load for load in _distinct(value) if not _is_number(load.source)]
    if len(loads) != 2 or len(large) != 3 or not nest.buffer.same_as(result) or not large[2].same_as(result):
        return None
    if not loads[0].source.same_as(large[0]):
        loads.reverse()
    if not (loads[0].source.same_as(large[0]) and loads[1].source.same_as(large[1])):
        return None
    dtypes = {str(buffer.dtype) for buffer in function.params}
    if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
        return None
    shape = tuple(int(extent) for extent in result.shape)
    own = [
        isinstance(i, tirx.Var) and i.same_as(v) for i, (v, _) in zip(nest.indices, nest.axes, strict=False)
    ]
    if not all(own) or shape != tuple(extent for _, extent in nest.axes):
        return None
    axes = (*nest.axes, *nest.reduced)
    a, b = (flat_access(load.source, load.indices, axes) for load in loads)
    if b is not None and not b.steps[len(shape) - 1]:  # columns of results are those of B
        a, b = b, a
        loads.reverse()
    if a is None or b is None or min(a.base, b.base, *a.steps, *b.steps) < 0:
        return None
    inner = _one_axis([extent for _, extent in nest.reduced], a.steps[len(shape) :], b.steps[len(shape) :])
    kinds = [_kind(x, y) for x, y in zip(a.steps[: len(shape)], b.steps[: len(shape)], strict=True)]
    if inner is None or None in kinds or (kinds.count("m"), kinds.count("n")) != (1, 1) or kinds[-1] != "n":
        return None
    lead = [n for n, kind in enumerate(kinds) if kind == "batch"]
    ranks = [*lead, kinds.index("m"), kinds.index("n")]
    k, a_step, b_step = inner
    op = BatchMatmul(
        tuple(shape[n] for n in lead),
        m=shape[ranks[-2]],
        n=shape[ranks[-1]],
        k=k,
        left=tuple(int(extent) for extent in loads[0].source.shape),
        left_at=(a.base, *(a.steps[n] for n in ranks[:-1]), a_step),
        right=tuple(int(extent) for extent in loads[1].source.shape),
        right_at=(b.base, *(b.steps[n] for n in lead), b_step, b.steps[ranks[-1]]),
        order=tuple(ranks.index(n) for n in range(len(shape))),
        dtype=dtypes.pop(),
    )
    return Contraction(function, op, value, *loads)


_BINARY = {tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul, tirx.Div: operator.truediv}


def _is_number(buffer: Buffer) -> bool:
    return all(int(extent) == 1 for extent in buffer.shape)


def _value_of(nest: Nest) -> Expr | None:
    """The terms that a nest sums up from zero, where it is made of few operators."""
    value, init = nest.value, nest.init
    if not nest.reduced or not isinstance(init, tirx.FloatImm) or float(init.value) != 0.0:
        return None
    if not isinstance(value, tirx.Add) or not _is_result(value.a, nest):
        return None
    return value.b if _is_simple(value.b) else None


def _is_simple(node: Expr) -> bool:
    if type(node) in _BINARY:
        return _is_simple(node.a) and _is_simple(node.b)
    return isinstance(node, TensorLoad) or (_is_abs(node) and _is_simple(node.args[0]))


def _is_abs(node: Expr) -> bool:
    return isinstance(node, tvm.ir.Call) and getattr(node.op, "name", "") == "tirx.fabs"


def _distinct(node: Expr) -> list[TensorLoad]:
    """The loads of a term, each once."""
    if isinstance(node, TensorLoad):
        return [node]
    parts = [node.a, node.b] if type(node) in _BINARY else list(node.args)
    found: list[TensorLoad] = []
    for load in (load for part in parts for load in _distinct(part)):
        if not any(_same(load, other) for other in found):
            found.append(load)
    return found


def _same(load: TensorLoad, other: TensorLoad) -> bool:
    return load.source.same_as(other.source) and tvm_ffi.structural_equal(
        list(load.indices), list(other.indices)
    )


def _valued(node: Expr, values: Sequence[tuple[TensorLoad, Expr]]) -> Expr:
    """A term of other values, scalars or vectors, in place of its loads."""
    if isinstance(node, TensorLoad):
        return next(value for load, value in values if _same(node, load))
    if type(node) in _BINARY:
        return _BINARY[type(node)](_valued(node.a, values), _valued(node.b, values))
    return tirx.abs(_valued(node.args[0], values))


def _is_result(node: Expr, nest: Nest) -> bool:
    return (
        isinstance(node, TensorLoad)
        and node.source.same_as(nest.buffer)
        and tvm_ffi.structural_equal(list(node.indices), list(nest.indices))
    )


def _kind(a_step: int, b_step: int) -> str | None:
    """Whether an axis counts rows of A (m), columns of B (n) or products; None where it repeats results."""
    if a_step and b_step:
        return "batch"
    return "m" if a_step else "n" if b_step else None


def _one_axis(
    extents: list[int], a_steps: tuple[int, ...], b_steps: tuple[int, ...]
) -> tuple[int, int, int] | None:
    """The reduced axes as one: its extent and its step in A and in B; None where they do not run on."""
    *outer, (extent, a_step, b_step) = zip(extents, a_steps, b_steps, strict=True)
    length = extent
    for count, a, b in reversed(outer):
        if (a, b) != (length * a_step, length * b_step):
            return None
        length *= count
    return (length, a_step, b_step) if a_step and b_step else None
