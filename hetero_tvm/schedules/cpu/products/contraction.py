"""Matrix products without a contract: a user's ``te`` expression or TensorIR, an einsum that no rule took.

A function whose one nest sums the products of two operands, each read at linear places, is a
:class:`~hetero_tvm.ops.batch_matmul.BatchMatmul`: it gets the kernel of that space's default.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import Expr, PrimFunc, TensorLoad, tirx, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.schedules.cpu.products.batch_matmul import BatchMatmulSpace
from hetero_tvm.schedules.cpu.programs.linear import flat_access
from hetero_tvm.schedules.nests.nest import Nest
from hetero_tvm.schedules.nests.program import nests_of


def emit(function: PrimFunc, machine: CpuModel) -> PrimFunc | None:
    """The kernel of a function that is a product of its two inputs; None for others."""
    op = contraction_of(function)
    space = BatchMatmulSpace()
    if op is None or space.refuses(op, machine) is not None:
        return None
    kernel = space.emit(op, space.default(op, machine), machine)
    if kernel.attrs and "global_symbol" in kernel.attrs:
        kernel = kernel.without_attr("global_symbol")
    given = {name: function.attrs[name] for name in function.attrs.keys()} if function.attrs else {}
    return kernel.with_attr({**given, "tirx.noalias": True})


def contraction_of(function: PrimFunc) -> BatchMatmul | None:
    """The product of A and B, its first and second parameter, that a function writes to its third."""
    nests = nests_of(function)
    if nests is None or nests.empty or len(nests.nests) != 1 or len(function.params) != 3:
        return None
    nest, (left, right, result) = nests.nests[0], function.params
    factors = _factors(nest)
    if factors is None or not nest.buffer.same_as(result):
        return None
    if not (factors[0].source.same_as(left) and factors[1].source.same_as(right)):
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
    a, b = (flat_access(load.source, load.indices, axes) for load in factors)
    if a is None or b is None or min(a.base, b.base, *a.steps, *b.steps) < 0:
        return None
    inner = _one_axis([extent for _, extent in nest.reduced], a.steps[len(shape) :], b.steps[len(shape) :])
    kinds = [_kind(x, y) for x, y in zip(a.steps[: len(shape)], b.steps[: len(shape)], strict=True)]
    if inner is None or None in kinds or (kinds.count("m"), kinds.count("n")) != (1, 1) or kinds[-1] != "n":
        return None
    lead = [n for n, kind in enumerate(kinds) if kind == "batch"]
    ranks = [*lead, kinds.index("m"), kinds.index("n")]
    k, a_step, b_step = inner
    return BatchMatmul(
        tuple(shape[n] for n in lead),
        m=shape[ranks[-2]],
        n=shape[ranks[-1]],
        k=k,
        left=tuple(int(extent) for extent in left.shape),
        left_at=(a.base, *(a.steps[n] for n in ranks[:-1]), a_step),
        right=tuple(int(extent) for extent in right.shape),
        right_at=(b.base, *(b.steps[n] for n in lead), b_step, b.steps[ranks[-1]]),
        order=tuple(ranks.index(n) for n in range(len(shape))),
        dtype=dtypes.pop(),
    )


def _factors(nest: Nest) -> tuple[TensorLoad, TensorLoad] | None:
    """The loads whose products a nest sums up from zero."""
    value, init = nest.value, nest.init
    if not nest.reduced or not isinstance(init, tirx.FloatImm) or float(init.value) != 0.0:
        return None
    if not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul) or not _is_result(value.a, nest):
        return None
    a, b = value.b.a, value.b.b
    return (a, b) if isinstance(a, TensorLoad) and isinstance(b, TensorLoad) else None


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
