"""Copies and elementwise loops whose sizes are known at run time: every tail, edges within and beyond."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, topi, tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES, TARGET, UNWRITTEN
from tests.selection import thorough

A, B, C = (tirx.Var(name, "int64") for name in "abc")
SIZES = ((1, 1, 1), (2, 3, 5), (3, 17, 40), (2, 16, 16), (1, 300, 9), (2, 9, 300), (2, 100, 130), (2, 0, 3))
HERE = (MACHINES["avx2"], CpuModel("one", lanes=16, registers=32, threads=1))


def kernel_of(arguments, machine):
    function = te.create_prim_func(arguments).without_attr("global_symbol")
    return kernels.schedule(function, 1 << 20, machine)


def check(arguments, wanted, machine, sizes=SIZES):
    run = compile_kernels(kernel_of(arguments, machine), TARGET).jit()["main"]
    for shape in sizes:
        x = np.random.default_rng(0).standard_normal(shape).astype("float32")
        expected = wanted(x)
        result = tvm.runtime.tensor(np.full(expected.shape, UNWRITTEN, "float32"))
        run(tvm.runtime.tensor(x), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", [*thorough([((0, 2, 1),), ((2, 0, 1),)]), (1, 2, 0), (2, 1, 0)])
def test_axes_in_another_order(order):
    for machine in HERE:
        x = te.placeholder((A, B, C), name="x")
        y = topi.transpose(x, order)
        assert "hetero_tvm_transpose" in kernel_of([x, y], machine).script()
        check([x, y], lambda x: x.transpose(order), machine)


@pytest.mark.parametrize("order", [(0, 2, 1), *thorough([((2, 0, 1),), ((2, 1, 0),)])])
def test_functions_of_elements_in_another_order(order):
    """Quantisers around a transpose, and what scales its rows and columns."""

    def steps(x):
        return np.clip(np.rint(x * 20) + 3, -128, 127).astype("float32")

    x = te.placeholder((A, B, C), name="x")
    whole = topi.cast(topi.clip(topi.add(topi.round(topi.multiply(x, 20.0)), 3.0), -128.0, 127.0), "int8")
    turned = topi.transpose(whole, order)
    y = topi.cast(turned, "float32")
    scaled = topi.maximum(y, topi.transpose(topi.abs(x), order))
    placed = te.compute(y.shape, lambda *at: scaled[at] + at[1].astype("float32"))
    for machine in HERE:
        assert "hetero_tvm_transpose" in kernel_of([x, y], machine).script()
        check([x, y], lambda x: steps(x).transpose(order), machine)
        assert "hetero_tvm_transpose" in kernel_of([x, placed], machine).script()

        def wanted(x):
            turned = np.maximum(steps(x), np.abs(x)).transpose(order)
            return turned + np.arange(turned.shape[1], dtype="float32")[:, None]

        check([x, placed], wanted, machine)


def test_axes_of_one_element_beside_a_function_of_several():
    x = te.placeholder((1, B, C), name="x")
    norm = te.compute((1, B, 1), lambda a, b, c: x[a, b, c] + 2.0, name="norm")
    y = topi.transpose(topi.maximum(x, topi.add(norm, topi.abs(x))), (0, 2, 1))
    assert "hetero_tvm_transpose" in kernel_of([x, y], HERE[0]).script()
    sizes = [(1, 3, 5), (1, 17, 40), (1, 100, 130)]
    check([x, y], lambda x: np.maximum(x, x[:, :, :1] + 2 + np.abs(x)).swapaxes(1, 2), HERE[0], sizes)


def test_tensors_without_axes_beside_others():
    """A scale or a bias of the whole tensor, which a run gives."""
    x, scale = te.placeholder((A, B), name="x"), te.placeholder((), name="scale")
    turned = topi.multiply(topi.transpose(x), scale)
    assert "hetero_tvm_transpose" in kernel_of([x, scale, turned], HERE[0]).script()
    for y, wanted in ((turned, lambda x: 3.0 * x.T), (topi.maximum(x, scale), lambda x: np.maximum(x, 3.0))):
        run = compile_kernels(kernel_of([x, scale, y], HERE[0]), TARGET).jit()["main"]
        for shape in ((3, 5), (17, 40)):
            data = np.random.default_rng(0).uniform(2, 4, shape).astype("float32")
            result = tvm.runtime.tensor(np.full(wanted(data).shape, UNWRITTEN, "float32"))
            run(tvm.runtime.tensor(data), tvm.runtime.tensor(np.array(3.0, "float32")), result)
            np.testing.assert_array_equal(result.numpy(), wanted(data))


def test_a_part_in_another_order():
    """Its steps from row to row are those of the whole."""
    x = te.placeholder((A, B, C), name="x")
    part = te.compute((A, B - B // 3, C // 2), lambda *at: x[at])
    row = te.compute((1, B, C), lambda a, b, c: x[0, b, c])
    for y, wanted in (
        (topi.transpose(part, (0, 2, 1)), lambda x: x[:, : x.shape[1] - x.shape[1] // 3, : x.shape[2] // 2]),
        (topi.transpose(row, (0, 2, 1)), lambda x: x[:1]),
    ):
        check([x, y], lambda x, wanted=wanted: wanted(x).transpose(0, 2, 1), HERE[0], SIZES[1:-1])


@pytest.mark.parametrize(
    ("extents", "order"),
    [((A, 32, 256), (0, 2, 1)), ((A, B, 64, 128), (1, 0, 3, 2)), ((3, A, 64, 64), (1, 0, 3, 2))],
)
def test_few_elements_are_none_where_the_other_axes_are_large(extents, order):
    """The branch for few elements is one for none of them, and an extent of 0 is no divisor."""
    x = te.placeholder(extents, name="x")
    sizes = [tuple(e if isinstance(e, int) else {"a": n, "b": 2}[e.name] for e in extents) for n in (1, 3)]
    check([x, topi.transpose(x, order)], lambda x: x.transpose(order), HERE[0], sizes)


def test_rows_that_stay_whole_are_no_transposition():
    x = te.placeholder((A, B, C), name="x")
    arguments = [x, topi.transpose(x, (1, 0, 2))]
    assert "hetero_tvm_transpose" not in kernel_of(arguments, HERE[0]).script()
    check(arguments, lambda x: x.transpose(1, 0, 2), HERE[0])


@pytest.mark.parametrize("before, after", [*thorough([(2, 3)]), (0, 20), (17, 0), *thorough([(0, 0)])])
def test_edges(before, after):
    """A pad of rows and of columns: where the row is copied nothing is asked."""
    x = te.placeholder((A, B, C), name="x")
    y = topi.nn.pad(x, (0, 1, before), (0, 2, after), 7.0)
    for machine in HERE:
        check([x, y], lambda x: np.pad(x, ((0, 0), (1, 2), (before, after)), constant_values=7.0), machine)


def test_joined_rows():
    """The place at which one operand follows the other is an open size."""
    x = te.placeholder((A, B, C), name="x")
    y = topi.concatenate([x, te.compute((A, B, C), lambda *at: x[at] * 2.0)], axis=-1)
    check([x, y], lambda x: np.concatenate([x, 2 * x], -1), HERE[0])


def test_elements():
    """Values of one element each, along an axis that is contiguous, repeated, or backwards."""
    x = te.placeholder((A, B, C), name="x")
    y = te.compute((A, B, C), lambda a, b, c: te.exp(x[a, b, c]) + x[a, b, 0] * x[a, b, C - 1 - c])
    assert "T.vectorized" in kernel_of([x, y], HERE[0]).script()
    check([x, y], lambda x: np.exp(x) + x[..., :1] * x[..., ::-1], HERE[0])


@pytest.mark.parametrize("of", ["row", "length"])
def test_places_of_each_row(of):
    """A triangle, and rows that end where an operand says: the place is not known outside of the row."""
    x = te.placeholder((A, B, C), name="x")

    def place(b):
        return b if of == "row" else tirx.Cast("int64", x[0, b, 0] * 3.0)

    y = te.compute(
        (A, B, C), lambda a, b, c: tirx.if_then_else(c <= place(b), x[a, b, c], tirx.const(5.0, "float32"))
    )

    def wanted(x):
        rows = np.arange(x.shape[1]) if of == "row" else (x[0, :, 0] * np.float32(3)).astype("int64")
        return np.where(np.arange(x.shape[2]) <= rows[:, None], x, np.float32(5))

    check([x, y], wanted, HERE[0], SIZES[:-1])


def test_one_long_row_is_shared():
    """As audio is: threads take vectors where they are many."""
    x = te.placeholder((1, C), name="x")
    y = te.compute((1, C), lambda a, c: x[a, c] * 2.0 + 1.0)
    for machine, shared in zip(HERE, (True, False), strict=True):
        assert ("T.parallel(c //" in kernel_of([x, y], machine).script()) == shared
        sizes = ((1, 1), (1, 15), (1, 20_001), (1, 70_000))
        check([x, y], lambda x: x * np.float32(2) + 1, machine, sizes)


def test_places_that_are_read_or_divided_go_one_by_one():
    x = te.placeholder((A, B, C), name="x")
    y = te.compute((A, B, C), lambda a, b, c: x[a, b, tirx.floordiv(c, 2)])
    assert "T.vectorized" not in kernel_of([x, y], HERE[0]).script()
    check([x, y], lambda x: x[..., np.arange(x.shape[-1]) // 2], HERE[0])
