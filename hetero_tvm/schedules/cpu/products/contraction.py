"""Matrix products without a contract: a user's ``te`` expression or TensorIR, an einsum that no rule took.

A function whose one nest sums the products of two operands, each read at linear places, is a
:class:`~hetero_tvm.ops.batch_matmul.BatchMatmul`: it gets the kernel of that space's default.  So are sums of
other terms of two operands, the squared or absolute differences of distances between all pairs of rows: the
register tile reads each operand once for many of them, as it does for products.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, TensorLoad, tirx, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.products.terms import COMBINED, is_product, loads_in, of_vectors, start_of
from hetero_tvm.schedules.cpu.programs.linear import Access, flat_access
from hetero_tvm.schedules.cpu.register_tile import Terms
from hetero_tvm.schedules.emit import Index, Kernel, as_index
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
        kernel = space.emit_terms(found.op, machine, found.terms, found.declare)
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    given = {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}
    return kernel.with_attr({**given, "tirx.noalias": True})


class Contraction:
    """Terms of the rows of two matrices, combined along them.

    Parameters
    ----------
    function, op : the function; extents and places, as of the product of A and B.
    value : a term of loads of ``matrices`` (A and B), and of ``others``, which have one value for each place
        of the reduction, or for all.
    combine, init : how terms are combined, and what with.
    """

    def __init__(
        self,
        function: PrimFunc,
        op: BatchMatmul,
        value: Expr,
        matrices: Sequence[TensorLoad],
        others: Sequence[tuple[TensorLoad, Access]],
        combine: Callable[[Expr, Expr], Expr],
        init: float,
    ):
        self.op, self._function, self._value = op, function, value
        self._matrices, self._others = matrices, others
        self._values: list[tuple[TensorLoad, Callable[[Index], Expr]]] = []
        self.terms = Terms(self._term, combine, init)
        params = [load.source for load in matrices]
        in_order = len(function.params) == 3 and all(map(Buffer.same_as, params, list(function.params)[:2]))
        self.is_product = is_product(value) and combine is operator.add and in_order
        """Whether it is the product of its first and second parameter, as the space emits it."""

    def declare(self, k: Kernel) -> tuple[Buffer, Buffer, Buffer]:
        """Declare the parameters in the function's order; gives A, B and the result."""
        params = list(self._function.params)
        buffers = [k.argument(p.name, [int(e) for e in p.shape], str(p.dtype)) for p in params]
        own = dict(zip(params, buffers, strict=True))
        for load, access in self._others:
            flat = k.view(own[load.source], (math.prod(int(e) for e in load.source.shape),))
            if not any(access.steps):
                number = k.let(k.load(flat, [access.base]))
                self._values.append((load, lambda at, number=number: number))
                continue
            self._values.append(
                (load, lambda at, flat=flat, a=access: k.load(flat, [as_index(at) * a.steps[-1] + a.base]))
            )
        a, b = (own[load.source] for load in self._matrices)
        return a, b, buffers[-1]

    def _term(self, at: Index, a: Expr, b: Expr) -> Expr:
        return of_vectors(self._value, [*zip(self._matrices, (a, b), strict=True)], self._values, at)


def contraction_of(function: PrimFunc) -> Contraction | None:
    """The terms of two matrices that a function combines, and writes to its last parameter."""
    nests = nests_of(function)
    if nests is None or nests.empty or len(nests.nests) != 1:
        return None
    nest, (*given, result) = nests.nests[0], function.params
    value = _value_of(nest)
    loads = loads_in(value) if value is not None else None
    dtypes = {str(buffer.dtype) for buffer in function.params}
    if loads is None or not nest.buffer.same_as(result) or dtypes not in ({"float32"}, {"float64"}):
        return None
    shape, axes = tuple(int(extent) for extent in result.shape), (*nest.axes, *nest.reduced)
    own = [
        isinstance(i, tirx.Var) and i.same_as(v) for i, (v, _) in zip(nest.indices, nest.axes, strict=False)
    ]
    if not all(own) or shape != tuple(extent for _, extent in nest.axes):
        return None
    matrices, others = [], []
    for load in loads:
        access = flat_access(load.source, load.indices, axes)
        if load.source not in given or access is None or min(access.base, *access.steps) < 0:
            return None
        (matrices if any(access.steps[: len(shape)]) else others).append((load, access))
    along = any(any(access.steps) for _, access in others)
    if len(matrices) != 2 or (along and len(nest.reduced) > 1):
        return None
    if not matrices[1][1].steps[len(shape) - 1]:
        matrices.reverse()  # columns of results are those of B
    (left, a), (right, b) = matrices
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
        left=tuple(int(extent) for extent in left.source.shape),
        left_at=(a.base, *(a.steps[n] for n in ranks[:-1]), a_step),
        right=tuple(int(extent) for extent in right.source.shape),
        right_at=(b.base, *(b.steps[n] for n in lead), b_step, b.steps[ranks[-1]]),
        order=tuple(ranks.index(n) for n in range(len(shape))),
        dtype=dtypes.pop(),
    )
    combine, init = COMBINED[type(nest.value)], start_of(float(nest.init.value), op.dtype)
    return Contraction(function, op, value, [left, right], others, combine, init)


def _value_of(nest: Nest) -> Expr | None:
    """The terms that a nest combines, with a number to begin with."""
    value, init = nest.value, nest.init
    if not nest.reduced or not isinstance(init, tirx.FloatImm) or type(value) not in COMBINED:
        return None
    if isinstance(value, tirx.Add) and float(init.value) != 0.0:
        return None
    return value.b if _is_result(value.a, nest) else value.a if _is_result(value.b, nest) else None


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
