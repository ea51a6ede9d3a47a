"""The packed matrix product: every choice, tails in all three extents, its packing, its registers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.codegen.access_order import why_not_in_place
from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.products.matmul_estimate import row_block_choices
from tests.ops.helpers import sample_inputs
from tests.schedules.cpu.running import (
    MACHINES,
    MOST_ROWS,
    SWEPT,
    check_points,
    check_shapes,
    llvm_of,
    point_runners,
    prefetches_beyond,
)
from tests.selection import named

SPACE = MatmulSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_the_product(machine):
    lanes = machine.lanes
    shapes = [
        Matmul((1,), 3 * lanes, 8),  # one row, fewer than any other tile
        Matmul((17,), lanes - 1, 1, ("residual", "silu", "gate", "bias")),  # k of one
    ]
    check_shapes(SPACE, shapes, machine)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_products_with_tails(machine):
    lanes = machine.lanes
    shapes = [
        Matmul((2, 29), 5 * lanes + 7, 19, ("bias", "gelu_erf", "residual")),  # tails everywhere
        Matmul((3,), 1, 5, ("bias",)),  # one column
        Matmul((6, 1, 4), 2 * lanes, 3, ("gelu_tanh",)),
    ]
    check_shapes(SPACE, shapes, machine)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_a_cut_reduction_computes_the_product(machine):
    lanes = machine.lanes
    for op in (
        Matmul((2, 13), 3 * lanes + 5, 512, ("residual", "bias", "gelu_erf", "residual")),  # tails
        Matmul((40,), lanes, 512),
    ):
        cuts = next(knob.choices for knob in SPACE.knobs(op, machine) if knob.name == "k_blocks")
        assert max(cuts) == op.k // 256
        default = SPACE.default(op, machine)
        points = [
            {**default, "row_blocks": blocks, "k_blocks": cut, "tile": shape}
            for blocks in row_block_choices(op, machine)
            for cut in cuts[1:]
            for shape in SPACE.knobs(op, machine)[0].choices[:2]
        ]
        check_points(SPACE, op, points, machine)


def test_partial_sums_may_lie_where_the_residual_lay():
    op = Matmul((128,), 768, 3072, ("bias", "residual"))
    point = SPACE.default(op, AVX2)
    assert point["k_blocks"] > 1
    function = SPACE.emit(op, point, AVX2)
    assert why_not_in_place(function, [3], 4) is None
    assert why_not_in_place(function, [0], 4) == "the sizes differ"


def test_points_from_before_the_cut_still_count():
    op = Matmul((8,), 32, 512)
    point = dict(SPACE.default(op, AVX2))
    del point["k_blocks"]
    SPACE.check(op, point, AVX2)
    check_points(SPACE, op, [point], AVX2)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_few_rows_read_their_weights_in_two_streams(machine):
    """Depths that two streams do not share equally, and fewer rows than a tile has."""
    for rows, n, depth in ((1, 100, 769), (1, 33, 1), (1, 7, 9), (2, 40, 30), (4, 64, 101), (8, 96, 50)):
        op = Matmul((rows,), n, depth, ("bias", "relu"))
        default = SPACE.default(op, machine)
        check_points(SPACE, op, [default, {**default, "prefetch": 1}], machine)
        if rows == 1:
            assert not default["prefetch"] and default["row_blocks"] == 1


@pytest.mark.thorough
@settings(max_examples=10)
@given(st.data())
def test_random_shapes_and_points(data):
    machine = MACHINES[data.draw(st.sampled_from(sorted(MACHINES)))]
    sizes = st.integers(1, 70)
    steps = data.draw(st.lists(st.sampled_from(["bias", "residual", "gate", *ACTIVATIONS]), max_size=3))
    op = Matmul((data.draw(sizes),), data.draw(sizes), data.draw(sizes), tuple(steps))
    point = {knob.name: data.draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine, tolerance=5e-6)


@pytest.mark.parametrize("step", named(list(ACTIVATIONS), {"relu", "gelu_erf", "gelu_tanh", "silu"}))
def test_every_activation_in_the_epilogue(step):
    op = Matmul((5,), 11, 7, ("bias", step))
    check_points(SPACE, op, [SPACE.default(op, AVX2)], AVX2)


def test_default_is_a_choice_for_all_sizes():
    for machine in MACHINES.values():
        for m in (1, 2, 5, 13, 128, 1000):
            for n in (1, 7, 64, 2304, 30522):
                op = Matmul((m,), n, 3 if m == 5 else 768)
                SPACE.check(op, SPACE.default(op, machine), machine)


def test_panels_for_few_rows_are_whole_cache_lines():
    for machine in (AVX2, MACHINES["avx512"]):
        for m in (2, 3, 7):
            _, vectors = SPACE.default(Matmul((m,), 2048, 768), machine)["tile"]
            assert 4 * vectors * machine.lanes >= 64


def test_tiles_fit_the_register_file():
    for machine in MACHINES.values():
        for rows, vectors in SPACE.knobs(Matmul((64,), 512, 64), machine)[0].choices:
            assert rows <= MOST_ROWS[machine.registers][vectors]


def test_refusals():
    assert SPACE.refuses(Softmax((3,), 4), AVX2) == "not a matmul"
    for op in (Matmul((0,), 3, 4), Matmul((3,), 0, 4), Matmul((3,), 4, 0)):
        assert SPACE.refuses(op, AVX2) == "an extent is zero"


def test_check_names_the_foreign_choice():
    op = Matmul((4,), 16, 16)
    point = {**SPACE.default(op, AVX2), "unroll": 3}
    with pytest.raises(ValueError, match="cpu.matmul: unroll=3 is not among"):
        SPACE.check(op, point, AVX2)


def test_packed_panels():
    op = Matmul((4,), 21, 3)
    point = {**SPACE.default(op, AVX2), "tile": (2, 2)}
    ((index, pack),) = SPACE.pack(op, point, AVX2).items()
    assert op.inputs[index].name == "W" and op.inputs[index].constant
    w = np.arange(63, dtype="float32").reshape(3, 21)
    packed = pack(w)
    assert packed.shape == (2, 3, 16) and packed.flags.c_contiguous and packed.dtype == np.float32
    np.testing.assert_array_equal(packed[0], w[:, :16])
    np.testing.assert_array_equal(packed[1, :, :5], w[:, 16:])
    assert not packed[1, :, 5:].any()


def test_features_have_one_length_and_are_finite():
    lengths = set()
    for op in (Matmul((1,), 1, 1), Matmul((128,), 768, 768, ("bias",))):
        for machine in MACHINES.values():
            values = SPACE.features(op, SPACE.default(op, machine), machine)
            assert np.isfinite(values).all()
            lengths.add(len(values))
    assert len(lengths) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_values_stay_in_their_row(bad):
    op = Matmul((5,), 19, 6, ("bias", "relu"))
    arrays = sample_inputs(op)
    (run,) = point_runners(SPACE, op, [SPACE.default(op, AVX2)], AVX2)
    clean = run(*arrays)
    arrays[0][2, 3] = bad
    result = run(*arrays)
    rows = [0, 1, 3, 4]
    np.testing.assert_array_equal(result[rows], clean[rows])
    np.testing.assert_array_equal(np.isnan(result[2]), np.isnan(op.reference(*arrays)[2]))


def test_the_tile_is_neither_on_the_heap_nor_predicated():
    op = Matmul((13,), 37, 19, ("bias", "gelu_erf"))
    ir = llvm_of(SPACE.emit(op, SPACE.default(op, AVX2), AVX2))
    assert "TVMBackendAllocWorkspace" not in ir
    assert "llvm.masked" not in ir


def test_what_is_fetched_ahead_exists():
    """Far more tiles than lines of a panel: an address beyond it may be of no memory, which takes long."""
    op = Matmul((2048,), 64, 64)
    point = {**SPACE.default(op, AVX2), "prefetch": 1}
    function = SPACE.emit(op, point, AVX2)
    assert "llvm.prefetch" in function.script()
    assert prefetches_beyond(function) == []
