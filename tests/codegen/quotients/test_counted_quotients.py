"""Quotients and remainders in kernels for several sizes: numbers, and what is left of corrections."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.codegen.quotients.counted_quotients import divide_counts
from hetero_tvm.host.tvm import tirx, tvm, tvm_ffi
from tests.schedules.cpu.running import TARGET, llvm_of


def kernel(place):
    """``Y[b, l] = place(b, l, batch, length)``, in int64, for any batch and length."""
    batch, length = tirx.Var("batch", "int64"), tirx.Var("length", "int64")
    y = tirx.decl_buffer((batch, length), "int64", name="Y")
    b, at = tirx.Var("b", "int64"), tirx.Var("l", "int64")
    zero = tirx.const(0, "int64")
    store = tirx.BufferStore(y, place(b, at, batch, length), [b, at])
    inner = tirx.For(at, zero, length, tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([y], tirx.For(b, zero, batch, tirx.ForKind.SERIAL, inner)).with_attr("s_tir", True)


def const(n):
    return tirx.const(n, "int64")


PLACES = {
    "quotient": lambda b, at, batch, length: (b * length + at) // (batch + const(1)),
    "remainder": lambda b, at, batch, length: (b * length + at) % (length + const(2)),
    "half": lambda b, at, batch, length: (b + at) * batch // const(2),
    "remainder of a quotient": lambda b, at, batch, length: (
        (b * length * const(7) + at) // length % (batch + const(3))
    ),
    "below zero": lambda b, at, batch, length: (b - at) // (batch + const(1)),
    "remainder below zero": lambda b, at, batch, length: (b - at - const(3)) % length,
    "divisor below zero": lambda b, at, batch, length: (b + at) // (const(-2) - batch),
    "both": lambda b, at, batch, length: (b - length) % (batch - const(9)),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_numbers(place, monkeypatch):
    run = compile_kernels(kernel(lambda *four: floored(place, four)), TARGET)["main"]
    monkeypatch.setitem(globals(), "const", int)  # the same with Python's numbers
    for batch, length in ((1, 1), (2, 7), (5, 3), (8, 13)):
        y = tvm.runtime.tensor(np.zeros((batch, length), "int64"))
        run(y)
        wanted = [[place(b, at, batch, length) for at in range(length)] for b in range(batch)]
        np.testing.assert_array_equal(y.numpy(), wanted)


class _Floored:
    """A number whose ``//`` and ``%`` round down, as Python's do."""

    def __init__(self, value):
        self.value = value

    def _with(self, other, make):
        return _Floored(make(self.value, other.value if isinstance(other, _Floored) else other))

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __floordiv__(self, other):
        return self._with(other, tirx.floordiv)

    def __mod__(self, other):
        return self._with(other, tirx.floormod)

    def __rsub__(self, other):
        return _Floored(other - self.value)


def floored(place, numbers):
    return place(*map(_Floored, numbers)).value


def left(name):
    """Floor divisions that stay as they are."""
    module = tvm.IRModule(
        {"main": kernel(lambda *four: floored(PLACES[name], four)).with_attr("global_symbol", "main")}
    )
    module = tvm.tirx.transform.BindTarget(tvm.target.Target(TARGET, host=TARGET))(module)
    module = divide_counts(tvm.tirx.transform.MakePackedAPI()(tvm.tirx.transform.FlattenBuffer()(module)))
    found = []
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, ((tirx.FloorDiv, tirx.FloorMod), found.append), order="pre")
    return len(found)


@pytest.mark.parametrize("name", ["quotient", "remainder", "half", "remainder of a quotient"])
def test_counts_have_no_correction(name):
    assert left(name) == 0


@pytest.mark.parametrize("name", ["below zero", "remainder below zero", "divisor below zero", "both"])
def test_what_may_be_negative_stays(name):
    assert left(name) == 1


def test_machine_code_is_shorter():
    falling = llvm_of(kernel(lambda *four: floored(PLACES["remainder below zero"], four)))
    rising = llvm_of(kernel(lambda *four: floored(PLACES["remainder"], four)))
    assert rising.count("select") < falling.count("select")
