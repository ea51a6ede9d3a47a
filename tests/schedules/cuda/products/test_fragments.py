"""Fragments of products: places without bank conflicts, warp groups (wgmma of sm_90a), choice of engines."""

import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.schedules.cuda.images.conv2d import CudaConv2dSpace
from hetero_tvm.schedules.cuda.products.batch_matmul import CudaBatchMatmulSpace
from hetero_tvm.schedules.cuda.products.fragments import element_for, swizzled
from hetero_tvm.schedules.cuda.products.gated_matmul import CudaGatedMatmulSpace
from hetero_tvm.schedules.cuda.products.tiles import CHUNK
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cuda.images.test_conv2d import BLOCKED
from tests.schedules.cuda.products.test_batch_matmul import product
from tests.schedules.cuda.running import check_points

MACHINE = MODELS["sm_90a"]
# fmt: off
CASES = {
    "gated": (CudaGatedMatmulSpace(), GatedMatmul((70,), 40, 130, "silu", True, "float16"), 2.0**-10),
    "int8": (CudaBatchMatmulSpace(), product((2,), 70, 72, 260, True, dtype="int8"), 0.0),
    "convolution": (
        CudaConv2dSpace(),
        Conv2d(
            1, 16, 9, 9, 24, (3, 3), padding=(1, 1, 1, 1), epilogue=("bias", "relu"), dtype="float16",
            **BLOCKED,
        ),
        2.0**-10,
    ),
}
# fmt: on


@pytest.mark.parametrize("name", list(CASES))
def test_numbers(name, emulated, monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_ARCH", "90")
    space, op, tolerance = CASES[name]
    choice = next(c for c in space.knobs(op, MACHINE)[0].choices if len(c) == 7 and c[:2] == (64, 64))
    target = parse_target("cuda:sm_90a")
    check_points(space, [(op, {"tile": choice})], MACHINE, lambda op: tolerance, target=target)


def test_columns_that_lie_across_the_reduction_have_none():
    op = product((2,), 512, 512, 512, dtype="float16")
    choices = CudaBatchMatmulSpace().knobs(op, MACHINE)[0].choices
    assert choices and all(len(choice) == 6 for choice in choices)


@pytest.mark.parametrize("pitch", [32, 64, 128])
def test_rows_of_a_fragment_lie_in_different_banks(pitch):
    """``ldmatrix`` reads one chunk of 8 rows at a time: they must fill the 8 groups of four banks."""
    chunks = pitch // CHUNK
    places = {
        (row, chunk): row * chunks + swizzled(row, chunk, pitch)
        for row in range(16)
        for chunk in range(chunks)
    }
    assert sorted(places.values()) == list(range(16 * chunks))
    for first in (0, 8):
        for chunk in range(chunks):
            assert {places[row, chunk] % 8 for row in range(first, first + 8)} == set(range(8))


def test_float32_stays_float32_unless_tf32_is_asked_for():
    assert not element_for("float32", ()).mma and element_for("float32", ("tf32",)).rounds
    assert element_for("float64", ()) is None
