"""Functions of one quantised tensor between two quantisers -> a table of their 256 values.

::

    quantize(f(dequantize(x)))    f elementwise, of numbers and of x alone (through quantisers too)
        ->  table[x]

Tools put quantisers around each operator of an activation: a SiLU is two dequantisers, a sigmoid, two
quantisers and a product, some 60 operations for a byte.  The table is computed here by the operators
themselves, in float32 as the model says, so it gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero_tvm.host.tvm import Expr, Var, relax
from hetero_tvm.ops.integers.byte_table import ENTRIES, ByteTable
from hetero_tvm.ops.integers.quantized import OFFSET
from hetero_tvm.relax_passes.fusions.integers.quantized import scalar_value
from hetero_tvm.relax_passes.rewriting.constant_values import VALUES
from hetero_tvm.relax_passes.rewriting.fused import Claims, contract
from hetero_tvm.relax_passes.rewriting.graph import Graph, array_of, dtype_of, is_tensor, shape_of
from hetero_tvm.relax_passes.rewriting.rule import Rule

# fmt: off
_ELEMENTWISE = frozenset({
    "dequantize", "quantize", "nn.relu", "maximum", "minimum", "clip", "add", "subtract", "multiply",
    "divide", "power", "negative", "abs", "square", "sqrt", "rsqrt", "exp", "log", "sin", "cos", "tanh",
    "sigmoid", "erf", "floor", "ceil", "where", "less", "less_equal", "greater", "greater_equal",
    "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus",
})
# fmt: on
_MOST = 64
"""Operators of a region."""
_VISITS = 4 * _MOST
"""Values that a walk looks at: a region's operators have three operands, and a wrong way costs as many."""


class _Outside(Exception):
    """A part of a region that is no function of one byte."""


class _Lost(Exception):
    """A walk that tries too many tensors of bytes as the source: residual streams have one at each sum."""


@dataclass
class _Found:
    op: ByteTable
    source: Expr
    table: np.ndarray
    absorbs: list[Var]


class TabulateBytes(Rule):
    """An elementwise function of one tensor of bytes, by its table.

    Parameters
    ----------
    claims : whether the target has a kernel for an operator.
    """

    name = "byte_table"
    anchors = ("relax.quantize",)

    def __init__(self, claims: Claims):
        self._claims = claims

    def match(self, graph: Graph, var: Var) -> _Found | None:
        found = self._table(graph, var)
        return None if found is None or self._continues(graph, var, found.source) else found

    def _table(self, graph: Graph, var: Var) -> _Found | None:
        if dtype_of(var) not in OFFSET:
            return None
        walk = _Walk(graph, shape_of(var))
        try:
            table = walk.value_of(var)
        except (_Outside, _Lost):
            return None
        if walk.source is None or table.shape != (ENTRIES,):
            return None
        op = ByteTable(shape_of(var), dtype_of(walk.source), dtype_of(var))
        return _Found(op, walk.source, table, walk.passed) if self._claims(op) else None

    def _continues(self, graph: Graph, var: Var, source: Expr) -> bool:
        """Whether all that reads ``var`` leads to a quantiser that is a function of the same bytes."""
        seen: Var | None = var
        for _ in range(_MOST):
            seen = graph.only_user(seen)
            if seen is None or (graph.op_name(seen) or "").removeprefix("relax.") not in _ELEMENTWISE:
                return False
            if graph.op_name(seen) == "relax.quantize":
                later = self._table(graph, seen)
                return later is not None and later.source.same_as(source)
        return False

    def rewrite(self, graph: Graph, var: Var, found: _Found) -> None:
        op, args = found.op, [found.source, relax.const(found.table)]
        graph.replace(var, graph.call_function(op.workload(), op.label, args, var), found.absorbs)


class _Walk:
    """Values of a region for each of the 256 bytes of its one source.

    Attributes
    ----------
    source : the tensor of bytes, once it is found.
    passed : bindings of the region.
    """

    def __init__(self, graph: Graph, shape: tuple[int, ...]):
        self._graph, self._shape = graph, shape
        self._known: dict[Expr, np.ndarray] = {}
        self.source: Expr | None = None
        self.passed: list[Var] = []
        self._visits = self._begun = 0

    def value_of(self, expr: Expr) -> np.ndarray:
        """[256], or a scalar for a number that does not depend on the source."""
        if expr in self._known:
            return self._known[expr]
        self._visits += 1
        if self._visits > _VISITS:
            raise _Lost
        number = scalar_value(self._graph, expr)
        if number is not None:
            return np.asarray(number, dtype_of(expr))
        name = (self._graph.op_name(expr) or "").removeprefix("relax.")
        full = len(self.passed) + self._begun >= _MOST
        if name not in _ELEMENTWISE or shape_of(expr) != self._shape or full:
            raise _Outside
        call = self._graph.value(expr)
        self._begun += 1
        try:
            parts = [self._bytes_of(call.args[0])] if name == "dequantize" else []
            parts += [self.value_of(arg) if is_tensor(arg) else arg.value for arg in call.args[len(parts) :]]
        finally:
            self._begun -= 1
        with np.errstate(all="ignore"):  # what overflows is bounded by a quantiser, which refuses NaN
            value = VALUES[name](call, self._shape, *parts)
        if value is None or value.shape not in ((), (ENTRIES,)):
            raise _Outside
        self.passed.append(expr)
        self._known[expr] = value.astype(dtype_of(expr))
        return self._known[expr]

    def _bytes_of(self, expr: Expr) -> np.ndarray:
        """Values of a tensor of bytes: what a quantiser makes of the source, or the source itself."""
        if expr in self._known:
            return self._known[expr]
        if dtype_of(expr) not in OFFSET:
            raise _Outside
        before = dict(self._known), self.source, list(self.passed)
        try:
            return self._through(expr)
        except _Outside:  # then it is the source
            self._known, self.source, self.passed = before
        if self.source is not None or array_of(self._graph.value(expr)) is not None:
            raise _Outside
        self.source = expr
        self._known[expr] = np.arange(ENTRIES, dtype=np.uint8).view(dtype_of(expr))
        return self._known[expr]

    def _through(self, expr: Expr) -> np.ndarray:
        """Bytes that a quantiser of the region gives, or a table that others read as well."""
        graph = self._graph
        if graph.op_name(expr) == "relax.quantize":
            return self.value_of(expr)
        call = graph.value(expr)
        if not isinstance(contract(graph.functions(), call), ByteTable):
            raise _Outside
        x, table = call.args[1].fields
        self._known[expr] = array_of(graph.value(table))[self._bytes_of(x).view(np.uint8)]
        return self._known[expr]
