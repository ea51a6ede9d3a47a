"""Producers that are not inlined: those whose consumers would grow with every step of a chain.

``y = where(x > a(x), x, a(x))``, ten times over, is 4 ** 10 copies of the first ``x`` in one expression.
TVM's simplifier looks twice at what is converted to an integer: sixteen sums of 8 bits, each rounded to 8
bits again, took it a minute as one expression.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, Schedule, TensorLoad, tirx

_LARGE = 200
"""Nodes of an expression that is written once, however often it is read."""

_CONVERSIONS = 10
"""Conversions to integers, each within the next, of one expression."""

_POWER, _FUNCTION = 400, 90
"""Nodes that a power, and any other function of floats, stands for: polynomials take their places later, and
TVM's passes take minutes for an expression of 33 powers, LLVM for one of 27 logarithms and 15 sines."""
_FUNCTIONS = (
    "exp",
    "erf",
    "tanh",
    "sigmoid",
    "log",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "atan",
    "asin",
    "acos",
)

_CHILDREN = ("a", "b", "value", "condition", "true_value", "false_value", "body")
_LISTS = ("args", "indices", "source_exprs")


def written_once(schedule: Schedule, root: Any) -> set[Buffer]:
    """Buffers between the blocks of ``root`` that hold a large expression which is read more than once.

    Buffers that hold one of many conversions are among them, however often they are read.
    """
    values = []
    for reference in schedule.get_child_blocks(root):
        block = schedule.get(reference)
        if isinstance(block.body, tirx.BufferStore):
            values.append((block.body.buffer, block.body.value))
    reads: Counter[Buffer] = Counter()
    for _, value in values:
        reads.update(_reads(value))
    sizes: dict[Buffer, int] = {}
    conversions: dict[Buffer, int] = {}
    found = set()
    for buffer, value in values:
        size = nodes_of(value, sizes) + _of_polynomials(value)
        nested = _conversions(value, conversions)
        if (size > _LARGE and reads[buffer] > 1) or nested > _CONVERSIONS:
            found.add(buffer)
        else:
            sizes[buffer], conversions[buffer] = size, nested
    return found


def _conversions(expr: Expr, known: Mapping[Buffer, int]) -> int:
    """Conversions to integers that an expression has within each other, with those of what it loads."""
    if isinstance(expr, TensorLoad):
        return known.get(expr.source, 0)
    own = isinstance(expr, tirx.Cast) and str(expr.ty.dtype) in ("int32", "int64")
    return own + max((_conversions(child, known) for child in _children(expr)), default=0)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields of a kind of expression that may be an expression, and those that may be lists of them."""
    one, several = (tuple(name for name in names if hasattr(kind, name)) for names in (_CHILDREN, _LISTS))
    return one, several


@functools.cache
def _is_expression(kind: type) -> bool:
    """Whether a class is one of expressions; TVM's classes take long to ask, an object at a time."""
    return issubclass(kind, Expr)


def _children(expr: Expr) -> Iterator[Expr]:
    one, several = _fields(type(expr))
    for name in one:
        child = getattr(expr, name)
        if _is_expression(type(child)):
            yield child
    for name in several:
        yield from (child for child in getattr(expr, name) or () if _is_expression(type(child)))


def nodes_of(expr: Expr, sizes: Mapping[Buffer, int] = MappingProxyType({})) -> int:
    """Nodes of an expression, with those of what it loads where that is known."""
    own = sizes.get(expr.source, 1) if isinstance(expr, TensorLoad) else 1
    return own + sum(nodes_of(child, sizes) for child in _children(expr))


def _of_polynomials(expr: Expr) -> int:
    """Nodes that an expression's own functions stand for."""
    name = getattr(getattr(expr, "op", None), "name", "").removeprefix("tirx.")
    own = _FUNCTION if name in _FUNCTIONS else 0
    if name == "pow":
        exponent = expr.args[1]
        is_product = isinstance(exponent, tirx.FloatImm) and float(exponent.value) in (2.0, 3.0)
        own = 0 if is_product else _POWER
    return own + sum(map(_of_polynomials, _children(expr)))


def _reads(expr: Expr) -> Counter[Buffer]:
    found = Counter([expr.source] if isinstance(expr, TensorLoad) else [])
    for child in _children(expr):
        found.update(_reads(child))
    return found
