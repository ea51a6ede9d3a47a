"""Values of the vector unit, evaluated in float64, against NumPy on the scalar expressions they stand for."""

import math

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx, topi
from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.recover import recover
from hetero_tvm.schedules.npu.tensor_program.stages import Binary, Const, Convert, Load, Ternary, Unary
from hetero_tvm.schedules.npu.tensor_program.values import activation, binary, constant, unary

X, Y = Load(0, 0, (1,)), Load(1, 0, (1,))
UNARY = {
    "copy": lambda x: x,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "square": np.square,
    "reciprocal": np.reciprocal,
    "floor": np.floor,
    "round": np.rint,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf),
    "sin": np.sin,
    "cos": np.cos,
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "ge": np.greater_equal,
    "ne": np.not_equal,
    "eq": np.equal,
}
TERNARY = {
    "muladd": lambda a, b, c: a * b + c,
    "submul": lambda a, b, c: (a - b) * c,
    "select": lambda a, b, c: np.where(a != 0, b, c),
}


def evaluated(value, arrays):
    """A value in float64; reads are whole arrays."""
    match value:
        case Load(buffer=n):
            return arrays[n].astype(np.float64)
        case Const(value=number):
            return np.float64(number)
        case Unary(op=op, x=x, mul=mul, add=add):
            return UNARY[op](mul * evaluated(x, arrays) + add)
        case Binary(op=op, a=a, b=b):
            return np.float64(BINARY[op](evaluated(a, arrays), evaluated(b, arrays)))
        case Ternary(op=op, a=a, b=b, c=c):
            return TERNARY[op](*(evaluated(x, arrays) for x in (a, b, c)))
        case Convert(dtype=dtype, x=x):
            return np.float64(evaluated(x, arrays).astype(dtype))


def value_of(build, *dtypes):
    """The value of the one stage of an element-wise function of vectors."""
    placeholders = [te.placeholder((64,), dtype, f"A{n}") for n, dtype in enumerate(dtypes)]
    program = recover(te.create_prim_func([*placeholders, build(*placeholders)]))
    (stage,) = program.stages
    return stage.value


F = "float32"
FUNCTIONS = {
    "tan": (topi.tan, np.tan),
    "log2": (lambda x: topi.log2(topi.abs(x)), lambda x: np.log2(np.abs(x))),
    "asinh": (topi.asinh, np.arcsinh),
    "acosh": (lambda x: topi.acosh(topi.abs(x) + 1.0), lambda x: np.arccosh(np.abs(x) + 1)),
    "atanh": (lambda x: topi.atanh(x * 0.3), lambda x: np.arctanh(x * 0.3)),
    "trunc": (topi.trunc, np.trunc),
    "cube": (lambda x: topi.power(x, 3.0), lambda x: x**3),
    "fifth power": (lambda x: topi.power(x, 5.0), lambda x: x**5),
    "sixth power": (lambda x: topi.power(x, 6.0), lambda x: x**6),
    "power of a base": (lambda x: topi.power(1.5, x), lambda x: 1.5**x),
    "a fraction": (lambda x: (x - 1.0) / 4.0 + 0.5, lambda x: (x - 1) / 4 + 0.5),
    "less than a number": (lambda x: 2.0 - x, lambda x: 2 - x),
    "to integers": (lambda x: (x * 3.0).astype("int32"), lambda x: np.trunc(x * 3)),
    "clip": (lambda x: topi.clip(x, -0.5, 0.25), lambda x: np.clip(x, -0.5, 0.25)),
}


@pytest.mark.parametrize("build, function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_numpys(build, function):
    x = np.random.default_rng(0).standard_normal(64)
    x = np.where(np.abs(x) < 0.05, 0.1, x)
    np.testing.assert_allclose(evaluated(value_of(build, F), [x]), function(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_the_contracts(name):
    x = np.linspace(-8, 8, 101)
    actual = evaluated(activation(name, X), [x])
    np.testing.assert_allclose(actual, ACTIVATIONS[name](x), rtol=1e-9, atol=1e-9)


def test_conditions_on_data_select():
    value = value_of(lambda c, x: te.compute((64,), lambda i: tirx.Select(c[i] > 0, x[i], -1.0)), "int32", F)
    c, x = np.arange(64) % 3 - 1, np.random.default_rng(0).standard_normal(64)
    np.testing.assert_array_equal(evaluated(value, [c, x]), np.where(c > 0, x, -1.0))


def test_affine_steps_are_part_of_the_instruction_behind_them():
    scaled = binary("add", binary("mul", X, constant(2.0), False), constant(3.0), False)
    assert scaled == Unary("copy", X, mul=2.0, add=3.0)
    assert unary("exp", scaled) == Unary("exp", X, mul=2.0, add=3.0)
    assert unary("copy", unary("exp", X), mul=2.0) == Unary("copy", Unary("exp", X), mul=2.0)


def test_pairs_of_steps_become_one_instruction():
    assert binary("add", binary("mul", X, Y, False), X, False) == Ternary("muladd", X, Y, X)
    assert binary("mul", Y, binary("sub", X, Y, False), False) == Ternary("submul", X, Y, Y)
    assert binary("mul", X, X, False) == Unary("square", X)
    assert binary("add", binary("add", X, constant(2), True), constant(-2), True) == X


def test_integers_that_float32_rounds_are_refused():
    with pytest.raises(NotAffineError, match="16777216 is no immediate"):
        binary("mul", X, constant(1 << 24), True)
