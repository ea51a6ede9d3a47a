"""The gated product: every choice, tails in all extents, its packing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.gated_matmul import GatedMatmulSpace
from tests.schedules.cpu.running import MACHINES, MOST_ROWS, SWEPT, check_points, check_shapes, llvm_of

SPACE = GatedMatmulSpace()
AVX2 = MACHINES["avx2"]


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_the_gate(machine):
    lanes = machine.lanes
    shapes = [
        GatedMatmul((2, 29), 5 * lanes + 7, 19, "silu", True),  # tails everywhere
        GatedMatmul((1,), 3 * lanes, 8, "gelu_erf"),  # one row
        GatedMatmul((3,), 1, 5, "gelu_tanh", True),  # one column
        GatedMatmul((17,), lanes - 1, 1, "relu"),  # k of one
    ]
    check_shapes(SPACE, shapes, machine)


@pytest.mark.thorough
@settings(max_examples=8)
@given(st.data())
def test_random_shapes_and_points(data):
    machine = MACHINES[data.draw(st.sampled_from(sorted(MACHINES)))]
    sizes = st.integers(1, 60)
    activation = data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    lead = (data.draw(sizes),)
    n = data.draw(st.integers(5, 60))  # one small value would show the absolute error of GELU only
    op = GatedMatmul(lead, n, data.draw(sizes), activation, data.draw(st.booleans()))
    point = {knob.name: data.draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine, tolerance=5e-6)


def test_default_is_a_choice_and_tiles_fit():
    for machine in MACHINES.values():
        for m in (1, 13, 128):
            for n in (1, 7, 2048):
                op = GatedMatmul((m,), n, 768, "silu")
                SPACE.check(op, SPACE.default(op, machine), machine)
                for rows, vectors in SPACE.knobs(op, machine)[0].choices:
                    assert vectors % 2 == 0 and rows <= MOST_ROWS[machine.registers][vectors]


def test_a_panel_holds_the_same_columns_of_both():
    op = GatedMatmul((4,), 11, 3, "silu")
    point = {**SPACE.default(op, AVX2), "tile": (2, 2)}
    ((index, pack),) = SPACE.pack(op, point, AVX2).items()
    assert op.inputs[index].name == "W" and op.inputs[index].constant
    w = np.arange(66, dtype="float32").reshape(3, 22)
    packed = pack(w)
    assert packed.shape == (2, 3, 16) and packed.flags.c_contiguous
    np.testing.assert_array_equal(packed[0, :, :8], w[:, :8])
    np.testing.assert_array_equal(packed[0, :, 8:], w[:, 11:19])
    np.testing.assert_array_equal(packed[1, :, :3], w[:, 8:11])
    np.testing.assert_array_equal(packed[1, :, 8:11], w[:, 19:])
    assert not packed[1, :, 3:8].any() and not packed[1, :, 11:].any()


def test_refusals():
    assert SPACE.refuses(Matmul((3,), 4, 4), AVX2) == "not a gated matmul"
    assert SPACE.refuses(GatedMatmul((3,), 0, 4, "silu"), AVX2) == "an extent is zero"


def test_the_tile_stays_in_registers():
    op = GatedMatmul((13,), 37, 19, "silu", True)
    ir = llvm_of(SPACE.emit(op, SPACE.default(op, AVX2), AVX2))
    assert "TVMBackendAllocWorkspace" not in ir and "llvm.masked" not in ir


def test_features_are_finite():
    op = GatedMatmul((128,), 768, 768, "silu")
    assert np.isfinite(SPACE.features(op, SPACE.default(op, AVX2), AVX2)).all()
