"""A scatter as plain loops: what is lifted where the loops of the CPU's own kernel depend on the sizes.

That kernel cuts rows into pieces for vectors and threads, and how many there are follows from their width.
"""

from __future__ import annotations

from contextlib import ExitStack

from hetero_tvm.host.tvm import Expr, PrimFunc, T, tirx
from hetero_tvm.relax_passes.forms.scatter import REDUCTION
from hetero_tvm.schedules.emit import Kernel, for_graph, int32, reduced


def is_scatter(function: PrimFunc) -> bool:
    """Whether it is the kernel of a scatter."""
    return bool(function.attrs) and REDUCTION in function.attrs


def scatter_loops(function: PrimFunc) -> PrimFunc:
    """The scatter of X, places [count, depth] and updates, whose kernel ``function`` is, in loops over axes.
    Operands behind these tell sizes only.

    Places must have been checked; one beyond an axis counts as its nearest end.
    """
    shapes = [tuple(map(int, parameter.shape)) for parameter in function.params]
    dtypes = [str(parameter.dtype) for parameter in function.params]
    shape, (count, depth) = shapes[0], shapes[1]
    k = Kernel("scatter")
    with k:
        told = [f"told{n}" for n in range(len(shapes) - 4)]
        names = ("X", "places", "U", *told, "Y")
        given = [k.argument(*each) for each in zip(names, shapes, dtypes, strict=True)]
        x, places, updates, y = *given[:3], given[-1]
        with T.parallel(0, shape[0]) as first, ExitStack() as stack:
            at = [first, *(stack.enter_context(k.serial(extent)) for extent in shape[1:])]
            k.store(y, k.load(x, at), at)
        with k.serial(count) as n:

            def place(axis: int) -> Expr:
                index = tirx.Cast("int32", places[n, axis])
                return k.let(tirx.min(tirx.max(index, 0), int32(shape[axis] - 1)))

            to = [place(axis) for axis in range(depth)]
            with ExitStack() as stack:
                row = [stack.enter_context(k.serial(extent)) for extent in shape[depth:]]
                value = k.load(updates, [n, *row])
                to += row
                k.store(y, reduced(str(function.attrs[REDUCTION]), k.load(y, to), value), to)
    return for_graph(k.function)
