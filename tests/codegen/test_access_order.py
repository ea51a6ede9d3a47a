"""May an output lie in the memory of an input?  Each answer is checked by running the kernel that way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.codegen.access_order import why_not_in_place
from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import te, tirx, tvm
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.relax_passes.storage.in_place import variant
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.rows.normalization import NormalizeSpace
from hetero_tvm.schedules.cpu.rows.softmax import SoftmaxSpace
from hetero_tvm.schedules.emit import Kernel, int32
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import MACHINES, TARGET
from tests.selection import thorough

N = 96


def kernel(body, sizes=(N, N)):
    """A kernel of one-dimensional buffers; ``body(k, x, ..., y)``."""
    k = Kernel()
    with k:
        body(k, *(k.argument(f"a{i}", (size,)) for i, size in enumerate(sizes)))
    return k.function


def run(function, arrays, shapes):
    """Call a kernel on new tensors; returns all of them."""
    library = compile_kernels(function, TARGET).jit()
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    tensors += [tvm.runtime.tensor(np.full(shape, 7.5, "float32")) for shape in shapes]
    library["main"](*tensors)
    return [t.numpy() for t in tensors]


def in_place_result(function, arrays, inputs, output):
    """The output when the inputs lie in its memory."""
    shared = variant(function, {i: output for i in inputs})
    rest = [a for i, a in enumerate(arrays) if i not in inputs and i != output]
    library = compile_kernels(shared, TARGET).jit()
    tensors = [tvm.runtime.tensor(a) for a in rest]
    shape = [int(extent) for extent in function.params[output].shape]
    last = tvm.runtime.tensor(np.ascontiguousarray(arrays[inputs[0]].reshape(shape)))
    library["main"](*tensors, last)
    return last.numpy()


def check_runs_in_place(function, arrays, inputs=(0,)):
    output = len(function.params) - 1
    shape = [int(extent) for extent in function.params[output].shape]
    expected = run(function, arrays, [shape])[-1]
    actual = in_place_result(function, arrays, inputs, output)
    np.testing.assert_array_equal(actual, expected)  # the same operations on the same values


def shifted(by, kind="serial"):
    """y[i] = x[i + by] for all i where both exist."""

    def body(k, x, y):
        with getattr(k, kind)(N - abs(by)) as i:
            k.store(y, k.load(x, [i + max(by, 0)]), [i + max(-by, 0)])

    return kernel(body)


@pytest.mark.parametrize(
    "function, allowed",
    [
        (shifted(0), True),
        (shifted(1), True),  # reads ahead of what it writes
        (shifted(-1), False),
        (shifted(0, "parallel"), True),
        (shifted(1, "parallel"), False),  # another thread may be ahead
        (shifted(-1, "parallel"), False),
    ],
)
def test_order_of_loops(function, allowed):
    assert (why_not_in_place(function, [0], 1) is None) == allowed


def test_elements_read_again_after_their_row_was_written():
    def body(k, x, y):
        with k.serial(N) as i:
            k.store(y, k.load(x, [i]) + k.load(x, [int32(0)]), [i])

    assert "element 0 is read after it was written" in why_not_in_place(kernel(body), [0], 1)


def test_reads_before_the_whole_loop_that_writes():
    def body(k, x, y):
        s = k.scratch((N,))
        with k.parallel(N) as i:
            k.store(s, k.load(x, [i]), [i])
        with k.parallel(N) as i:
            k.store(y, k.load(s, [N - 1 - i]), [i])

    assert why_not_in_place(kernel(body), [0], 1) is None

    def late(k, x, y):
        s = k.scratch((N,))
        with k.parallel(N) as i:
            k.store(s, k.load(x, [i]), [i])
            k.store(y, k.load(s, [i]), [N - 1 - i])

    assert why_not_in_place(kernel(late), [0], 1) is not None


def test_vectors_read_whole_before_they_are_written():
    def body(k, x, y):
        with k.serial(N // 16) as i:
            k.store(y, k.load(x, [tirx.Ramp(i * 16 + 15, int32(-1), 16)]), [k.ramp(i * 16, 16)])

    function = kernel(body)  # reverses within the vector: the load comes first
    assert why_not_in_place(function, [0], 1) is None
    check_runs_in_place(function, [np.arange(N, dtype="float32")])


def test_overlapping_vectors():
    def body(k, x, y):
        with k.serial(N // 16) as i:
            start = tirx.max(i * 16 - 4, int32(0))
            k.store(y, k.load(x, [k.ramp(start, 16)]), [k.ramp(start, 16)])

    assert why_not_in_place(kernel(body), [0], 1) is not None


def test_views_of_other_shapes_and_strided_slices():
    def body(k, x, y):
        rows = k.view(x, (8, N // 8))
        with k.parallel(8) as i, k.serial(N // 16) as j:
            k.store(y, k.load(rows, [i, j * 2]), [i * (N // 8) + j * 2])
            k.store(y, k.load(rows, [i, j * 2 + 1]), [i * (N // 8) + j * 2 + 1])

    function = kernel(body)
    assert why_not_in_place(function, [0], 1) is None
    check_runs_in_place(function, [np.arange(N, dtype="float32")])

    def transposed(k, x, y):
        rows = k.view(x, (8, N // 8))
        with k.serial(8) as i, k.serial(N // 8) as j:
            k.store(y, k.load(rows, [i, j]), [j * 8 + i])

    assert why_not_in_place(kernel(transposed), [0], 1) is not None


def test_branches_and_tails():
    def body(k, x, y):
        with k.serial(7) as i:
            k.branch(
                i < 6,
                lambda: k.store(y, k.load(x, [k.ramp(i * 16, 16)]), [k.ramp(i * 16, 16)]),
                lambda: k.store(y, k.load(x, [k.ramp(i * 16, 4)]), [k.ramp(i * 16, 4)]),
            )

    assert why_not_in_place(kernel(body, (100, 100)), [0], 1) is None

    def wrong_tail(k, x, y):
        with k.serial(7) as i:
            k.branch(
                i < 6,
                lambda: k.store(y, k.load(x, [k.ramp(i * 16, 16)]), [k.ramp(i * 16, 16)]),
                lambda: k.store(y, k.load(x, [k.ramp(i * 16 - 4, 4)]), [k.ramp(i * 16, 4)]),
            )

    assert why_not_in_place(kernel(wrong_tail, (100, 100)), [0], 1) is not None


def test_what_cannot_be_proven_is_refused():
    def gathered(k, x, indices, y):
        with k.serial(N) as i:
            k.store(y, k.load(x, [k.load(indices, [i]).astype("int32")]), [i])

    assert "depends on" in why_not_in_place(kernel(gathered, (N, N, N)), [0], 2)

    def passed_on(k, x, y):
        k.call("f", k.address(x, [0]), k.address(y, [0]))

    assert "address" in why_not_in_place(kernel(passed_on), [0], 1)
    assert "sizes" in why_not_in_place(kernel(lambda k, x, y: None, (N, N + 1)), [0], 1)


def test_a_prefetch_is_no_access():
    def body(k, x, y):
        with k.serial(N) as i:
            k.store(y, k.load(x, [i]), [i])
            k.prefetch(x, [int32(0)])

    assert why_not_in_place(kernel(body), [0], 1) is None


@settings(max_examples=40)
@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 5),
    read=st.permutations(range(3)),
    written=st.permutations(range(3)),
    parallel=st.booleans(),
    offset=st.integers(0, 2),
)
def test_against_executing_the_loops_one_by_one(rows, columns, read, written, parallel, offset):
    """Random three-dimensional copies: the answer is that of an interpreter that walks all iterations."""
    extents = (rows, columns, 3)
    size = rows * columns * 3

    def place(order, i, shift):
        at, step = shift, 1
        for axis in reversed(order):
            at, step = at + i[axis] * step, step * extents[axis]
        return at

    def body(k, x, y):
        with (k.parallel if parallel else k.serial)(rows) as a, k.serial(columns) as b, k.serial(3) as c:
            k.store(y, k.load(x, [place(read, (a, b, c), 0)]), [place(written, (a, b, c), offset)])

    steps = [
        (a, place(read, (a, b, c), 0), place(written, (a, b, c), offset))
        for a, b, c in itertools.product(*map(range, extents))
    ]
    broken = any(
        steps[i][2] == steps[j][1] and (i < j or (parallel and rows > 1 and steps[i][0] != steps[j][0]))
        for i in range(len(steps))
        for j in range(len(steps))
        if i != j
    )
    reason = why_not_in_place(kernel(body, (size + 2, size + 2)), [0], 1)
    assert (reason is not None) == broken


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows, n", [(1, 1), (3, 17), (5, 64), *thorough([(37, 100)])])
def test_row_kernels_run_in_place(machine, rows, n):
    model = MACHINES[machine]
    for op, space in [
        (Normalization((rows,), n, 1e-5, True, True), NormalizeSpace()),
        (Softmax((rows,), n), SoftmaxSpace()),
    ]:
        function = space.emit(op, space.default(op, model), model)
        assert why_not_in_place(function, [0], len(function.params) - 1) is None
        check_runs_in_place(function, sample_inputs(op))


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (13, 50, 7), (29, 33, 33)])
def test_residual_of_a_product_runs_in_place(blocks, m, n, k):
    op, model = Matmul((m,), n, k, ("bias", "gelu_erf", "residual")), MACHINES["avx512"]
    space = MatmulSpace()
    point = {**space.default(op, model), "row_blocks": min(blocks, max(1, m // 4))}
    function = space.emit(op, point, model)
    output = len(function.params) - 1
    arrays = sample_inputs(op)
    for index, pack in space.pack(op, point, model).items():
        arrays[index] = pack(arrays[index])
    assert why_not_in_place(function, [3], output) is None
    check_runs_in_place(function, arrays, (3,))
    if n == k and n > 1:  # one panel: a tile has read its rows of X before it writes them
        assert why_not_in_place(function, [0], output) is None
        check_runs_in_place(function, arrays, (0,))


def test_operand_of_a_product_that_every_panel_reads():
    op, model = Matmul((8,), 48, 48), MACHINES["avx512"]
    space = MatmulSpace()
    function = space.emit(op, {**space.default(op, model), "tile": (4, 1)}, model)
    assert "read after it was written" in why_not_in_place(function, [0], 2)


@pytest.mark.parametrize("shape", [(1, 1), *thorough([((3, 5),)]), (4, 64), *thorough([((130, 96),)])])
def test_scheduled_elementwise_kernels_run_in_place(shape):
    a, b = te.placeholder(shape, name="a"), te.placeholder(shape, name="b")
    c = te.compute(shape, lambda *i: a(*i) * b(*i) + a(*i), name="c")
    function = te.create_prim_func([a, b, c]).without_attr("global_symbol")
    function = generic.schedule(function, MACHINES["avx512"])
    arrays = [np.random.default_rng(s).standard_normal(shape).astype("float32") for s in (0, 1)]
    for operand in (0, 1):
        assert why_not_in_place(function, [operand], 2) is None
    check_runs_in_place(function, arrays)
    same = [arrays[0], arrays[0]]  # both operands are the tensor that dies
    assert why_not_in_place(function, [0, 1], 2) is None
    check_runs_in_place(function, same, (0, 1))


def test_scheduled_transposition_is_refused():
    a = te.placeholder((16, 16), name="a")
    c = te.compute((16, 16), lambda i, j: a(j, i), name="c")
    function = generic.schedule(te.create_prim_func([a, c]).without_attr("global_symbol"), MACHINES["avx2"])
    assert why_not_in_place(function, [0], 1) is not None


@pytest.mark.parametrize("distance", [0, 1, 1000, 150_000])
def test_accesses_far_apart_are_compared(distance):
    """Loops of more iterations than are looked at together: an element that is read later than it is written,
    or by another thread, is found wherever it is."""
    size = 200_000

    def copied(k, x, y):
        with k.serial(size) as i:
            k.store(y, k.load(x, [tirx.floormod(i + (size - distance), int32(size))]), [i])

    def shared(k, x, y):
        with k.parallel(size // 100) as row, k.serial(100) as i:
            k.store(y, k.load(x, [tirx.min(row * 100 + i + distance, int32(size - 1))]), [row * 100 + i])

    for body in (copied, shared):
        reason = why_not_in_place(kernel(body, (size, size)), [0], 1)
        assert (reason is None) == (distance == 0), reason
