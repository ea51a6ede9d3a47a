"""Scalar TIR expressions as Python text."""

from __future__ import annotations

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import Expr, Var

Names = dict[Var, str]
"""Python names of TIR variables; new ones are added as they are met."""

_INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "FloorDiv": "//",
    "FloorMod": "%",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "EQ": "==",
    "NE": "!=",
    "And": " and ",
    "Or": " or ",
}


def python(expr: Expr | int, names: Names) -> str:
    """``expr`` as Python text over the names of its variables.

    Raises :class:`BuildError` for what no address or extent may contain.
    """
    if isinstance(expr, int):
        return repr(expr)
    kind = type(expr).__name__
    if kind in ("IntImm", "FloatImm"):
        return repr(expr.value)
    if kind == "Var":
        return names.setdefault(expr, f"v{len(names)}")
    if kind in _INFIX:
        return f"({python(expr.a, names)}{_INFIX[kind]}{python(expr.b, names)})"
    if kind in ("Min", "Max"):
        return f"{kind.lower()}({python(expr.a, names)},{python(expr.b, names)})"
    if kind == "Cast":
        return python(expr.value, names)
    if kind == "Not":
        return f"(not {python(expr.a, names)})"
    if kind == "Select":
        condition, yes, no = expr.condition, expr.true_value, expr.false_value
        return f"({python(yes, names)} if {python(condition, names)} else {python(no, names)})"
    raise BuildError(f"an address or extent of an NPU kernel contains {kind}: {expr}")
