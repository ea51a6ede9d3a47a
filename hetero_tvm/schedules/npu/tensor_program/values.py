"""Translation of scalar TensorIR to values of the vector unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.tvm import Expr, TensorLoad, Var
from hetero_tvm.schedules.npu.tensor_program.index import Affine, NotAffineError
from hetero_tvm.schedules.npu.tensor_program.stages import (
    FLOAT,
    INT,
    Binary,
    Const,
    Convert,
    Ternary,
    Unary,
    Value,
)

Env = Mapping[Var, Affine]
"""Variables of a block as affine forms of the axes of a box."""

# fmt: off
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min",
    "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge", "EQ": "eq", "NE": "ne", "And": "mul", "Or": "max",
}
_FUNCTIONS = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "rsqrt": "rsqrt", "tanh": "tanh", "sigmoid": "sigmoid",
    "erf": "erf", "floor": "floor", "ceil": "ceil", "round": "round", "nearbyint": "round", "fabs": "abs",
    "sin": "sin", "cos": "cos",
}
_FOLD = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "max": max, "min": min,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}
# fmt: on
_OF_TRUTH = {"BitwiseXor": "ne", "BitwiseAnd": "mul", "BitwiseOr": "max"}
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
_INTEGERS = 1 << 24
"""Immediates are float32: greater integers would be rounded."""


def constant(value: float) -> Const:
    """An immediate."""
    return Const(float(value))


def is_integer(dtype: str) -> bool:
    """Whether a type, truth values included, is computed as int32."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def unary(op: str, x: Value, mul: float = 1.0, add: float = 0.0) -> Unary:
    """``op(mul * x + add)`` in float32, one instruction with an affine step before it."""
    if isinstance(x, Unary) and x.op == "copy":
        if mul == 1.0 and add == 0.0:
            return Unary(op, x.x, x.mul, x.add)
        if op == "copy" and (x.add == 0.0 or mul == 1.0):
            return Unary(op, x.x, x.mul * mul, x.add * mul + add)
    return Unary(op, x, mul, add)


def binary(op: str, a: Value, b: Value, integer: bool) -> Value:
    """``op(a, b)`` in as few instructions as there are for it."""
    if isinstance(a, Const) and isinstance(b, Const) and op in _FOLD:
        return constant(_FOLD[op](a.value, b.value))
    if not integer:
        return _binary_of_floats(op, a, b)
    if op in ("add", "sub") and isinstance(b, Const):
        more = b.value if op == "add" else -b.value
        if isinstance(a, Binary) and a.op == "add" and isinstance(a.b, Const):
            a, more = a.a, more + a.b.value
        if more == 0.0:
            return a
        op, b = "add", constant(more)
    for side in (a, b):
        if isinstance(side, Const) and abs(side.value) >= _INTEGERS:
            raise NotAffineError(f"the integer {side.value:.0f} is no immediate of the vector unit")
    return Binary(op, a, b)


def _binary_of_floats(op: str, a: Value, b: Value) -> Value:
    if isinstance(b, Const):
        if op == "div" and b.value != 0.0 and math.isfinite(1.0 / b.value):
            return unary("copy", a, mul=1.0 / b.value)
        if op == "mul":
            return unary("copy", a, mul=b.value)
        if op in ("add", "sub"):
            return unary("copy", a, add=b.value if op == "add" else -b.value)
    if isinstance(a, Const):
        if op == "mul":
            return unary("copy", b, mul=a.value)
        if op in ("add", "sub"):
            return unary("copy", b, mul=1.0 if op == "add" else -1.0, add=a.value)
    # Of three operands: a * b + c, (a - b) * c.
    inner, outer = {"add": ("mul", "muladd"), "mul": ("sub", "submul")}.get(op, ("", ""))
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Binary) and x.op == inner:
            return Ternary(outer, x.a, x.b, y)
    if op == "mul" and a == b:
        return unary("square", a)
    return Binary(op, a, b)


_SLOPES = ByName({}, float)


def activation(name: str, x: Value) -> Value:
    """An activation of :data:`hetero_tvm.ops.activations.ACTIVATIONS` behind an expression."""

    def half(curve: Value) -> Value:
        part = unary("copy", x, mul=0.5)
        return Ternary("muladd", part, curve, part)

    if name in ("silu", "quick_gelu"):
        return Binary("mul", x, unary("sigmoid", x, mul=1.702 if name == "quick_gelu" else 1.0))
    if name == "gelu_erf":
        return half(unary("erf", x, mul=math.sqrt(0.5)))
    if name == "gelu_tanh":
        c = math.sqrt(2 / math.pi)
        inner = Binary("mul", unary("copy", unary("square", x), mul=0.044715 * c, add=c), x)
        return Binary("mul", x, unary("sigmoid", inner, mul=2.0))
    if name == "hard_swish":
        return Binary("mul", x, Binary("min", unary("relu", x, mul=1 / 6, add=0.5), constant(1.0)))
    if name == "relu6":
        return Binary("min", unary("relu", x), constant(6.0))
    if name in ("relu", "sigmoid", "tanh"):
        return unary(name, x)
    if name in _SLOPES:
        return Binary("max", x, unary("copy", x, mul=_SLOPES[name]))
    raise NotAffineError(f"no vector code for {name}")


class ValueTranslator:
    """Translates the value of a block; subclasses say what a read becomes."""

    def read(self, load: TensorLoad, env: Env) -> Value:
        """The value of a read."""
        raise NotImplementedError

    def decide(self, condition: Expr, env: Env) -> bool | None:
        """Truth of a condition of the axes alone; None when it depends on data."""
        raise NotImplementedError

    def position(self, expr: Expr, env: Env) -> int:
        """The value of an expression of the axes alone, where it is a constant."""
        raise NotImplementedError

    def value(self, expr: Expr, env: Env) -> Value:
        """An expression of a block as a value.  Raises :class:`NotAffineError`."""
        kind = type(expr).__name__
        if kind in ("FloatImm", "IntImm"):
            return constant(expr.value)
        if kind == "TensorLoad":
            return self.read(expr, env)
        if kind == "Var":
            return constant(self.position(expr, env))
        if kind in _OF_TRUTH and str(expr.a.ty.dtype) == "bool":
            return binary(_OF_TRUTH[kind], self.value(expr.a, env), self.value(expr.b, env), True)
        if kind == "Div" and is_integer(str(expr.a.ty.dtype)):
            raise NotAffineError("the vector unit divides in float32, which rounds integers")
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

    def _cast(self, expr: Any, env: Env) -> Value:
        to, source = str(expr.ty.dtype), str(expr.value.ty.dtype)
        x = self.value(expr.value, env)
        if to == "bool" and source != "bool":
            return binary("ne", x, constant(0), is_integer(source))
        if is_integer(to) == is_integer(source) or isinstance(x, Const):
            return x
        if is_integer(source):
            return Convert(FLOAT, x)
        # The vector unit rounds half to even; the language cuts towards zero.
        return Convert(INT, _with_sign_of(x, unary("floor", unary("abs", x))))

    def _select(self, condition: Expr, yes: Expr, no: Expr, env: Env) -> Value:
        decided = self.decide(condition, env)
        if decided is not None:
            return self.value(yes if decided else no, env)
        test = self.value(condition, env)
        if isinstance(test, Const):
            return self.value(yes if test.value else no, env)
        a, b = self.value(yes, env), self.value(no, env)
        return a if a == b else Ternary("select", test, a, b)

    def _call(self, expr: Any, env: Env) -> Value:
        name = str(expr.op.name).rpartition(".")[2]
        if name == "if_then_else":
            return self._select(*expr.args, env)
        args = [self.value(arg, env) for arg in expr.args]
        if name in _FUNCTIONS:
            return unary(_FUNCTIONS[name], args[0])
        if name == "isnan":
            return binary("ne", args[0], args[0], True)
        if name in ("pow", "power") and isinstance(args[1], Const):
            return _power(args[0], args[1].value)
        if name in ("pow", "power") and isinstance(args[0], Const) and args[0].value > 0.0:
            return unary("exp", args[1], mul=math.log(args[0].value))
        if name in _COMPOSED:
            return _COMPOSED[name](args[0])
        raise NotAffineError(f"the vector unit has no {name}")


def _power(x: Value, exponent: float) -> Value:
    if exponent == 0.5:
        return unary("sqrt", x)
    if exponent == -0.5:
        return unary("rsqrt", x)
    if exponent == -1.0:
        return unary("reciprocal", x)
    if exponent in (1.0, 2.0, 3.0, 4.0):
        square = unary("square", x)
        whole = {1.0: x, 2.0: square, 3.0: Binary("mul", square, x), 4.0: unary("square", square)}
        return whole[exponent]
    # NaN of negative numbers comes with the logarithm, unless the exponent is whole.
    if exponent != int(exponent):
        return unary("exp", unary("log", x), mul=exponent)
    size = unary("exp", unary("log", unary("abs", x)), mul=exponent)
    return _with_sign_of(x, size) if exponent % 2 else size


def _with_sign_of(x: Value, size: Value) -> Value:
    """``size``, negative where ``x`` is."""
    below = binary("lt", x, constant(0), False)
    return Ternary("select", below, unary("copy", size, mul=-1.0), size)


def _asinh(x: Value) -> Value:
    root = unary("sqrt", unary("square", x), add=1.0)
    return _with_sign_of(x, unary("log", Binary("add", unary("abs", x), root)))


def _atanh(x: Value) -> Value:
    difference = Binary("sub", unary("log", x, add=1.0), unary("log", x, mul=-1.0, add=1.0))
    return unary("copy", difference, mul=0.5)


_COMPOSED = {
    "tan": lambda x: Binary("div", unary("sin", x), unary("cos", x)),
    "log2": lambda x: unary("copy", unary("log", x), mul=1.0 / math.log(2.0)),
    "log10": lambda x: unary("copy", unary("log", x), mul=1.0 / math.log(10.0)),
    "log1p": lambda x: unary("log", x, add=1.0),
    "exp2": lambda x: unary("exp", x, mul=math.log(2.0)),
    "trunc": lambda x: _with_sign_of(x, unary("floor", unary("abs", x))),
    "asinh": _asinh,
    "acosh": lambda x: unary("log", Binary("add", x, unary("sqrt", unary("square", x), add=-1.0))),
    "atanh": _atanh,
}
