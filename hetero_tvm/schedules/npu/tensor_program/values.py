"""From scalar TensorIR to expressions of the vector unit."""

from __future__ import annotations

import math
from typing import Any

from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.stages import FLOAT, Expr

_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min", "LT": "lt",
    "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne", "And": "mul", "Or": "max",
}  # fmt: skip
_FUNCTIONS = {
    "fabs": "abs", "nearbyint": "round",
    **{
        name: name
        for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "round",
                     "sin", "cos")
    },
}  # fmt: skip
_FOLD = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "max": max, "min": min, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
_OF_TRUTH = {"BitwiseXor": "ne", "BitwiseAnd": "mul", "BitwiseOr": "max"}
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_INTEGERS = 1 << 24
"""Immediates are float32: greater integers would be rounded."""


def constant(value: float) -> Expr:
    return ("const", float(value))


def is_integer(dtype: str) -> bool:
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def unary(op: str, x: Expr, mul: float = 1.0, add: float = 0.0) -> Expr:
    """``op(mul * x + add)`` in float32, one instruction with an affine step before it."""
    if x[0] == "unary" and x[1] == "copy" and mul == 1.0 and add == 0.0:
        return ("unary", op, x[2], x[3], x[4])
    if x[0] == "unary" and x[1] == "copy" and op == "copy" and (x[3] == 0.0 or mul == 1.0):
        return ("unary", op, x[2] * mul, x[3] * mul + add, x[4])
    return ("unary", op, mul, add, x)


def binary(op: str, a: Expr, b: Expr, integer: bool) -> Expr:
    if a[0] == b[0] == "const" and op in _FOLD:
        return constant(_FOLD[op](a[1], b[1]))
    if integer and op in ("add", "sub") and b[0] == "const":
        more = b[1] if op == "add" else -b[1]
        if a[0] == "binary" and a[1] == "add" and a[3][0] == "const":
            a, more = a[2], more + a[3][1]
        if more == 0.0:
            return a
        op, b = "add", constant(more)
    for side in (a, b):
        if integer and side[0] == "const" and abs(side[1]) >= _INTEGERS:
            raise NotAffineError(f"the integer {side[1]:.0f} is no immediate of the vector unit")
    if not integer:
        if op == "div" and b[0] == "const" and b[1] != 0.0 and math.isfinite(1.0 / b[1]):
            return unary("copy", a, mul=1.0 / b[1])
        if op == "mul" and "const" in (a[0], b[0]):
            x, c = (a, b[1]) if b[0] == "const" else (b, a[1])
            return unary("copy", x, mul=c)
        if op in ("add", "sub") and b[0] == "const":
            return unary("copy", a, add=b[1] if op == "add" else -b[1])
        if op in ("add", "sub") and a[0] == "const":
            return unary("copy", b, mul=1.0 if op == "add" else -1.0, add=a[1])
        if op == "add":
            for x, y in ((a, b), (b, a)):
                if x[0] == "binary" and x[1] == "mul":
                    return ("ternary", "muladd", x[2], x[3], y)
        if op == "mul":
            for x, y in ((a, b), (b, a)):
                if x[0] == "binary" and x[1] == "sub":
                    return ("ternary", "submul", x[2], x[3], y)
        if op == "mul" and a == b:
            return unary("square", a)
    return ("binary", op, a, b)


def activation(name: str, x: Expr) -> Expr:
    """An activation of :data:`hetero_tvm.ops.activations.ACTIVATIONS` behind an expression."""

    def gated(gate: Expr) -> Expr:
        return ("binary", "mul", x, gate)

    def half(curve: Expr) -> Expr:
        part = unary("copy", x, mul=0.5)
        return ("ternary", "muladd", part, curve, part)

    if name in ("silu", "quick_gelu"):
        return gated(unary("sigmoid", x, mul=1.702 if name == "quick_gelu" else 1.0))
    if name == "gelu_erf":
        return half(unary("erf", x, mul=math.sqrt(0.5)))
    if name == "gelu_tanh":
        c = math.sqrt(2 / math.pi)
        inner = ("binary", "mul", unary("copy", unary("square", x), mul=0.044715 * c, add=c), x)
        return gated(unary("sigmoid", inner, mul=2.0))
    if name == "relu6":
        return ("binary", "min", unary("relu", x), constant(6.0))
    if name in ("relu", "sigmoid", "tanh"):
        return unary(name, x)
    raise NotAffineError(f"no vector code for {name}")


class Values:
    """Translates the value of a block; whoever subclasses it says what a read becomes."""

    def read(self, load: Any, env: Any) -> Expr:
        raise NotImplementedError

    def decide(self, condition: Any, env: Any) -> bool | None:
        """A condition of the axes alone; None when it depends on data."""
        raise NotImplementedError

    def position(self, expr: Any, env: Any) -> int:
        """The value of an expression of the axes alone, where it is a constant."""
        raise NotImplementedError

    def value(self, expr: Any, env: Any) -> Expr:
        kind = type(expr).__name__
        if kind in ("FloatImm", "IntImm"):
            return constant(expr.value)
        if kind == "TensorLoad":
            return self.read(expr, env)
        if kind == "Var":
            return constant(self.position(expr, env))
        if kind in _OF_TRUTH and str(expr.a.ty.dtype) == "bool":
            return binary(_OF_TRUTH[kind], self.value(expr.a, env), self.value(expr.b, env), True)
        if kind in _BINARY:
            a, b = self.value(expr.a, env), self.value(expr.b, env)
            return binary(_BINARY[kind], a, b, is_integer(str(expr.a.ty.dtype)))
        if kind == "Not":
            return binary("eq", self.value(expr.a, env), constant(0), True)
        if kind == "Cast":
            return self._cast(expr, env)
        if kind == "Select":
            return self._select(expr.condition, expr.true_value, expr.false_value, env)
        if kind == "Call":
            return self._call(expr, env)
        raise NotAffineError(f"the vector unit has no {kind}")

    def _cast(self, expr: Any, env: Any) -> Expr:
        to, source = str(expr.ty.dtype), str(expr.value.ty.dtype)
        x = self.value(expr.value, env)
        if to == "bool" and source != "bool":
            return binary("ne", x, constant(0), is_integer(source))
        if is_integer(to) == is_integer(source) or x[0] == "const":
            return x
        if is_integer(source):
            return ("convert", FLOAT, x)
        # The vector unit rounds half to even; the language cuts towards zero.
        cut = unary("floor", unary("abs", x))
        below = binary("lt", x, constant(0), False)
        return ("convert", "int32", ("ternary", "select", below, unary("copy", cut, mul=-1.0), cut))

    def _select(self, condition: Any, yes: Any, no: Any, env: Any) -> Expr:
        decided = self.decide(condition, env)
        if decided is not None:
            return self.value(yes if decided else no, env)
        test = self.value(condition, env)
        if test[0] == "const":
            return self.value(yes if test[1] else no, env)
        a, b = self.value(yes, env), self.value(no, env)
        return a if a == b else ("ternary", "select", test, a, b)

    def _call(self, expr: Any, env: Any) -> Expr:
        name = str(expr.op.name).rpartition(".")[2]
        if name == "if_then_else":
            return self._select(*expr.args, env)
        args = [self.value(arg, env) for arg in expr.args]
        if name in _FUNCTIONS:
            return unary(_FUNCTIONS[name], args[0])
        if name == "isnan":
            return binary("ne", args[0], args[0], True)
        if name in ("pow", "power") and args[1][0] == "const":
            return _power(args[0], args[1][1])
        if name in ("pow", "power") and args[0][0] == "const" and args[0][1] > 0.0:
            return unary("exp", args[1], mul=math.log(args[0][1]))
        if name in _COMPOSED:
            return _COMPOSED[name](args[0])
        raise NotAffineError(f"the vector unit has no {name}")


def _power(x: Expr, exponent: float) -> Expr:
    if exponent == 0.5:
        return unary("sqrt", x)
    if exponent == -0.5:
        return unary("rsqrt", x)
    if exponent == -1.0:
        return unary("reciprocal", x)
    if exponent in (1.0, 2.0, 3.0, 4.0):
        square = unary("square", x)
        whole = {1.0: x, 2.0: square, 4.0: unary("square", square)}
        return whole[exponent] if exponent in whole else ("binary", "mul", square, x)
    # NaN of negative numbers comes with the logarithm, unless the exponent is whole.
    if exponent != int(exponent):
        return unary("exp", unary("log", x), mul=exponent)
    size = unary("exp", unary("log", unary("abs", x)), mul=exponent)
    return _odd(x, size) if exponent % 2 else size


def _odd(x: Expr, size: Expr) -> Expr:
    """``size`` with the sign of ``x``."""
    below = binary("lt", x, constant(0), False)
    return ("ternary", "select", below, unary("copy", size, mul=-1.0), size)


def _asinh(x: Expr) -> Expr:
    size = unary("abs", x)
    root = unary("sqrt", unary("square", x), add=1.0)
    return _odd(x, unary("log", ("binary", "add", size, root)))


_COMPOSED = {
    "tan": lambda x: ("binary", "div", unary("sin", x), unary("cos", x)),
    "log2": lambda x: unary("copy", unary("log", x), mul=1.0 / math.log(2.0)),
    "log10": lambda x: unary("copy", unary("log", x), mul=1.0 / math.log(10.0)),
    "log1p": lambda x: unary("log", x, add=1.0),
    "exp2": lambda x: unary("exp", x, mul=math.log(2.0)),
    "trunc": lambda x: _odd(x, unary("floor", unary("abs", x))),
    "asinh": _asinh,
    "acosh": lambda x: unary("log", ("binary", "add", x, unary("sqrt", unary("square", x), add=-1.0))),
    "atanh": lambda x: unary(
        "copy", ("binary", "sub", unary("log", x, add=1.0), unary("log", x, mul=-1.0, add=1.0)), mul=0.5
    ),
}
