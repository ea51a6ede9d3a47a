"""The builder of kernels: loops, vectors and positions against NumPy; little work wakes no thread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_tvm.schedules.emit import (
    LAUNCH_FLOPS,
    Kernel,
    broadcast_position,
    strided_position,
    vector_loop,
    vector_pieces,
)
from tests.schedules.cpu.running import compiled


@given(st.integers(0, 200), st.sampled_from((1, 4, 8, 16)))
def test_vectors_cover_an_extent_once(extent, lanes):
    pieces = vector_pieces(extent, lanes)
    assert [i for start, width in pieces for i in range(start, start + width)] == list(range(extent))
    assert all(width <= lanes and width & (width - 1) == 0 for _, width in pieces)
    assert sum(width < lanes for _, width in pieces) <= lanes.bit_length() - 1


def test_a_tail_falls_by_powers_of_two():
    assert vector_pieces(29, 16) == [(0, 16), (16, 8), (24, 4), (28, 1)]


@pytest.mark.parametrize("unroll", (1, 4))
def test_vector_loops_cover_every_length(unroll):
    lengths = (1, 7, 8, 31, 32, 33, 64, 100)

    def doubled(length):
        k = Kernel()
        with k:
            x, y = k.argument("x", (length,)), k.argument("y", (length,))

            def body(start, width):
                k.store(y, k.load(x, [k.ramp(start, width)]) * k.splat(2.0, width), [k.ramp(start, width)])

            vector_loop(k, length, 8, body, unroll)
        return k.function, (length,)

    for length, run in zip(lengths, compiled(map(doubled, lengths)), strict=True):
        x = np.arange(length, dtype="float32")
        np.testing.assert_array_equal(run(x), 2 * x)


def test_strided_positions_are_numpy_s():
    """Rows of a transposed slice, read one by one."""
    base = np.arange(200, dtype="float32")
    lead, place = (3, 2, 4), (7, 2, 50, 11)  # offset, then a stride for each extent
    view = np.lib.stride_tricks.as_strided(base[7:], lead, tuple(4 * stride for stride in place[1:]))
    k = Kernel()
    with k:
        x, y = k.argument("x", base.shape), k.argument("y", (24,))
        with k.serial(24) as i:
            k.store(y, k.load(x, [strided_position(i, lead, place)]), [i])
    (run,) = compiled([(k.function, (24,))])
    np.testing.assert_array_equal(run(base), view.ravel())


@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 2, 1), (2, 4), (4,), (1,), (3, 1, 4)])
def test_broadcast_positions_are_numpy_s(shape):
    lead = (3, 2, 4)
    operand = np.arange(np.prod(shape), dtype="float32")
    k = Kernel()
    with k:
        x, y = k.argument("x", operand.shape), k.argument("y", (24,))
        with k.serial(24) as i:
            k.store(y, k.load(x, [broadcast_position(i, lead, shape)]), [i])
    (run,) = compiled([(k.function, (24,))])
    np.testing.assert_array_equal(run(operand), np.broadcast_to(operand.reshape(shape), lead).ravel())


@pytest.mark.parametrize(
    ("extent", "flops", "parallel"),
    [(4, None, True), (1, None, False), (4, LAUNCH_FLOPS, True), (4, LAUNCH_FLOPS - 1, False)],
)
def test_little_work_stays_on_the_calling_thread(extent, flops, parallel):
    k = Kernel()
    with k:
        y = k.argument("y", (extent,))
        with k.parallel(extent, flops) as i:
            k.store(y, k.splat(1.0, 1), [i])
    assert ("T.parallel" in k.function.script()) == parallel


def test_branches_conditions_and_views():
    k = Kernel()
    with k:
        x, y = k.argument("x", (2, 3)), k.argument("y", (6,))
        flat = k.view(x, (6,))
        with k.serial(6) as i:

            def put(factor):
                k.store(y, k.load(flat, [i]) * k.splat(factor, 1), [i])

            with k.when(True):
                k.branch(i < 2, lambda: put(10.0), lambda: put(1.0))
            with k.when(i >= 5):
                put(-1.0)
    (run,) = compiled([(k.function, (6,))])
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(run(x), [0, 10, 2, 3, 4, -5])
