"""Checks of indices and divisors that are known at run time only.

Machine code reads and writes wherever an index leads it, and a division by zero ends the process.  So
everything that leads somewhere passes a small kernel first, which copies it, looks at all of it in one
vectorised loop, and fails with the node's name: an operator that used the original could run before.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hetero_tvm.codegen.pipeline import DIVISION_ERROR, INDEX_ERROR
from hetero_tvm.host.tvm import Call, Expr, IRModule, PrimFunc, SBlock, SBlockRealize, T, Var, relax, tirx
from hetero_tvm.ops.embedding_norm import EmbeddingNorm
from hetero_tvm.relax_passes.forms.gather import MOST_ELEMENTS, lookup_in_one_row
from hetero_tvm.relax_passes.rewriting.from_end import counted_from_end
from hetero_tvm.relax_passes.rewriting.fused import CHECK_ATTR, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, shape_of
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report, Rule
from hetero_tvm.relax_passes.storage.written_over import PLACES
from hetero_tvm.schedules.emit import Kernel

DIVISIONS = {
    "relax.divide": "Div",
    "relax.floor_divide": "Div",
    "relax.mod": "Mod",
    "relax.floor_mod": "Mod",
}
"""Operators that divide -> ONNX's names of them."""

_FROM_0 = "_from_0"
"""End of the name of a node whose indices do not count from the end, which the front ends give."""
_MANY_PLACES = 1 << 12
"""Places from which a gather is worth a kernel of its own, with which nothing is fused."""

Ranges = tuple[tuple[int, int], ...]
"""First valid index and the one behind the last, for each element of an index's last axis, or for all."""


class CheckAtRunTime(GraphPass):
    """Indices and integer divisors that are computed or given -> their checked copies."""

    name = "run_time_checks"

    def run(self, graph: Graph, report: Report) -> None:
        functions = graph.functions()
        checked: dict[tuple[Var, object], Var] = {}
        for var in graph.bindings():
            if not graph.is_live(var):
                continue
            for operand, given, bounds, kernel in _checks(graph, functions, var):
                if not isinstance(operand, relax.Var) or array_of(graph.value(operand)) is not None:
                    continue  # the import has checked constants
                shape = shape_of(operand)
                if not math.prod(shape):
                    continue
                known = checked.get((given, bounds))
                if known is None:
                    function = kernel(shape, dtype_of(given))
                    called = graph.call_function(function, "check", [given], operand)
                    known = graph.insert_before(var, called, f"{var.name}#checked", [var])
                    checked[given, bounds] = known
                graph.replace(var, _reading(graph, with_operand(graph.value(var), operand, known)))


_Kernel = Callable[[Sequence[int], str], PrimFunc]


def _checks(graph: Graph, functions: IRModule, var: Var) -> Iterator[tuple[Expr, Expr, object, _Kernel]]:
    """Operands of a binding to check, each with what the check reads, what it demands, and its kernel."""
    value, name, node = graph.value(var), graph.op_name(var), graph.node(var)
    if name in DIVISIONS:
        if "int" in dtype_of(divisor := value.args[1]):
            message = division_message(DIVISIONS[name], node)
            yield divisor, divisor, "divisor", functools.partial(_divisor_kernel, message)
        return
    for indices, ranges, valid in lookups(functions, value, name, graph.sources(var)):
        given = counted_from_end(graph, indices, [end for _, end in ranges])
        if given is None:
            yield indices, indices, ranges, functools.partial(_index_kernel, node, ranges, valid)
        else:
            whole = tuple((-end, end) for _, end in ranges)
            kernel = functools.partial(_index_kernel, node, whole, valid, from_end=True)
            yield indices, given, ("from the end", ranges), kernel


def lookups(
    functions: IRModule, value: Expr, name: str | None, sources: Sequence[str]
) -> Iterator[tuple[Expr, Ranges, str]]:
    """Indices that a call uses, the ranges that its kernel can take, and those that a user may give.

    ``sources`` : names of the nodes that the call stands for; one of ``Body.row`` counts from 0 alone.
    """
    from_0 = any(source.endswith(_FROM_0) for source in sources)
    if name == "relax.take" and str(value.attrs.mode) != "clip":
        shape = shape_of(value.args[0])
        axis = 0 if value.attrs.axis is None else int(value.attrs.axis)
        extent = math.prod(shape) if value.attrs.axis is None else shape[axis]
        first = -extent if str(value.attrs.mode) == "wrap" and not from_0 else 0
        yield value.args[1], ((first, extent),), _text([(first, extent)])
    elif name in ("relax.gather_elements", "relax.scatter_elements"):
        extent = shape_of(value.args[0])[int(value.attrs.axis)]
        # TVM's scatter counts from the end; for its gather the importer has added the extent.
        first = -extent if name == "relax.scatter_elements" and not from_0 else 0
        yield value.args[1], ((first, extent),), _text([(0 if from_0 else -extent, extent)])
    elif name in ("relax.gather_nd", "relax.scatter_nd"):
        shape, depth = shape_of(value.args[0]), shape_of(value.args[1])[-1]
        batch = int(value.attrs.batch_dims) if name == "relax.gather_nd" else 0
        extents = shape[batch : batch + depth]
        ranges = tuple((0, extent) for extent in extents)  # the importer has added extents here as well
        yield value.args[1], ranges, _text([(-extent, extent) for extent in extents])
    elif name == "relax.call_tir" and isinstance(op := contract(functions, value), EmbeddingNorm):
        for n, lookup in enumerate(op.lookups):
            ranges = ((0 if from_0 else -lookup.rows, lookup.rows),)
            yield value.args[1].fields[2 * n], ranges, _text(ranges)
    elif name == "relax.call_tir" and PLACES in (attributes := functions[value.args[0]].attrs or {}):
        operand, *ends = map(int, attributes[PLACES])
        ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
        yield value.args[1].fields[operand], ranges, _text([(-end, end) for _, end in ranges])


class _Picked(NamedTuple):
    sizes: tuple[int, int, int]
    count: int
    given: Expr
    from_end: bool
    text: str


class GatherAsKernel(Rule):
    """``gather_elements`` at many computed places -> one kernel that checks them itself.

    Parameters
    ----------
    kernel : makes it from the product of the extents before the axis, its extent, and the product of those
        behind; places along the axis; dtypes of data and places; whether places below zero count from the
        end; and kind and text of its error.
    """

    name = "gather_kernel"
    counted = False
    anchors = ("relax.gather_elements",)

    def __init__(self, kernel: Callable[..., PrimFunc]):
        self.kernel = kernel

    def match(self, graph: Graph, var: Var) -> _Picked | None:
        call = graph.value(var)
        (x, places), shape = call.args, shape_of(var)
        whole, axis = shape_of(x), int(call.attrs.axis) % len(shape)
        before, extent, behind = whole[:axis], whole[axis], whole[axis + 1 :]
        if shape[:axis] != before or shape[axis + 1 :] != behind or not extent:
            return None
        if array_of(graph.value(places)) is not None or dtype_of(places) not in ("int32", "int64"):
            return None
        if math.prod(shape) < _MANY_PLACES or max(math.prod(shape), math.prod(whole)) >= MOST_ELEMENTS:
            return None
        (_, _, valid), *_ = lookups(graph.functions(), call, graph.op_name(var), graph.sources(var))
        text = index_message(graph.node(var), valid)
        given = counted_from_end(graph, places, [extent])
        from_end = given is not None
        sizes = math.prod(before), extent, math.prod(behind)
        return _Picked(sizes, shape[axis], given if from_end else places, from_end, text)

    def rewrite(self, graph: Graph, var: Var, found: _Picked) -> None:
        (outer, extent, inner), count, given, from_end, text = found
        bind = graph.binder(var, [var])
        x = bind(relax.op.reshape(graph.value(var).args[0], (outer, extent, inner)), "data")
        places = bind(relax.op.reshape(given, (outer, count, inner)), "places")
        dtypes = dtype_of(x), dtype_of(places)
        function = self.kernel(outer, extent, inner, count, dtypes, from_end, (INDEX_ERROR, text))
        out = relax.TensorType([outer, count, inner], dtypes[0])
        call = relax.call_tir(graph.add_function(function, "gather"), [x, places], out_ty=out)
        graph.replace(var, relax.op.reshape(bind(call, "gathered"), shape_of(var)))


def index_message(node: str, valid: str) -> str:
    """Text about an index outside of a tensor, or what a node that is a check says (``Body.checked``)."""
    if said := re.fullmatch(r"(.*)/check_\d+ \((.*)\)", node):
        return ": ".join(said.groups())
    return f"{node.removesuffix(_FROM_0)}: an index lies outside {valid}"


def division_message(operator: str, node: str) -> str:
    """Text about a divisor that is zero."""
    return f"{operator} {node}: division by zero"


def within(ranges: Ranges, dtype: str) -> Ranges:
    """``ranges`` as far as a type reaches."""
    limits = np.iinfo(dtype)
    return tuple((max(first, limits.min), min(end, limits.max)) for first, end in ranges)


def _reading(graph: Graph, call: Call) -> Call:
    """The call, in a form whose kernel reads its checked indices also where only one index is valid."""
    if getattr(call.op, "name", "") != "relax.take" or str(call.attrs.mode) != "wrap":
        return call
    shape, axis = shape_of(call.args[0]), call.attrs.axis
    if axis is None or shape[int(axis)] != 1:
        return call
    return lookup_in_one_row(graph, *call.args, int(axis) % len(shape))


def _text(ranges: Sequence[tuple[int, int]]) -> str:
    if len(ranges) == 1:
        return "[{}, {})".format(*ranges[0])
    return ", ".join(f"[{first}, {end}) along axis {n}" for n, (first, end) in enumerate(ranges))


def _index_kernel(
    node: str, ranges: Ranges, valid: str, shape: Sequence[int], dtype: str, from_end: bool = False
) -> PrimFunc:
    def wrong(index: Expr, column: int) -> Expr:
        first, end = ranges[column]
        return tirx.any(index < tirx.const(first, dtype), index >= tirx.const(end, dtype))

    def kept(index: Expr, column: int) -> Expr:
        # Of one row, first and last are the same: lookups behind this need not count from the end.
        end = ranges[column][1]
        if end == 1:
            return tirx.const(0, dtype)
        if from_end:
            return tirx.Select(index < tirx.const(0, dtype), index + tirx.const(end, dtype), index)
        return index

    ranges = within(ranges, dtype)
    return _check_kernel(shape, dtype, len(ranges), wrong, kept, INDEX_ERROR, index_message(node, valid))


def _divisor_kernel(message: str, shape: Sequence[int], dtype: str) -> PrimFunc:
    def wrong(divisor: Expr, column: int) -> Expr:
        return tirx.EQ(divisor, tirx.const(0, dtype))

    return _check_kernel(shape, dtype, 1, wrong, lambda divisor, column: divisor, DIVISION_ERROR, message)


def _check_kernel(
    shape: Sequence[int],
    dtype: str,
    columns: int,
    wrong: Callable[[Expr, int], Expr],
    kept: Callable[[Expr, int], Expr],
    error: str,
    message: str,
) -> PrimFunc:
    """A kernel that copies what is ``kept`` of its input, and fails where an element of it is ``wrong``."""
    k = Kernel("check")
    rows = math.prod(shape) // columns
    with k:
        given, copy = k.argument("given", shape, dtype), k.argument("copy", shape, dtype)
        x, y = (k.view(buffer, (rows, columns)) for buffer in (given, copy))
        found = k.scratch((1,), "int32")
        T.buffer_store(found, tirx.const(0, "int32"), [0])
        with k.serial(rows) as row:
            for column in range(columns):
                value = x[row, column]
                T.buffer_store(found, found[0] | tirx.Cast("int32", wrong(value, column)), [0])
                T.buffer_store(y, kept(value, column), [row, column])
        with T.Assert(tirx.EQ(found[0], 0), message, error):
            pass
    # The passes that follow expect a block around everything.
    root = SBlock([], [], [], "root", k.function.body)
    function = k.function.with_body(SBlockRealize([], True, root)).without_attr("global_symbol")
    return function.with_attr({"op_pattern": 8, CHECK_ATTR: True})  # opaque: nothing is fused with it


def with_operand(call: Call, old: Var, new: Var) -> Call:
    """The call with ``new`` for ``old`` wherever it is an operand."""

    def one(arg: Expr) -> Expr:
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([one(field) for field in arg.fields])
        return new if isinstance(arg, relax.Var) and arg.same_as(old) else arg

    return relax.Call(call.op, [one(arg) for arg in call.args], call.attrs, call.ty_args)
