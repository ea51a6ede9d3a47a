"""Contracts that the generic spaces of the GPU serve: rotary embeddings, activations, pooling, layouts."""

import dataclasses

import pytest

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.ops.rope import Rope
from hetero_tvm.schedules.cuda.tensor_program.elementwise import CudaElementwiseSpace, width_of
from hetero_tvm.schedules.cuda.tensor_program.program_nests import program_nests
from hetero_tvm.schedules.cuda.tensor_program.reduce import CudaReduceSpace
from tests.schedules.cuda.running import MACHINE
from tests.schedules.cuda.spaces import HALF, check_numbers

POINTWISE, REDUCE = CudaElementwiseSpace(), CudaReduceSpace()
LLAMA = Rope((1, 4, 12, 16), 16, False, (1, 1, 12, 16), (1, 12, 128), (0, 1536, 16, 128))
PARTIAL = Rope((1, 4, 12, 64), 32, False, (1, 1, 12, 16), (1, 12, 256), (0, 3072, 64, 256))
ROPES = [
    LLAMA, PARTIAL, Rope((2, 3, 4, 7), 6, False, (1, 1, 4, 6), (2, 4, 30), (9, 120, 7, 30)),
    Rope((2, 4, 3, 6), 6, True, (2, 4, 1, 3), (2, 4, 3, 6), (0, 72, 18, 6)),
]  # fmt: skip


def test_rotary_embeddings(emulated):
    check_numbers(POINTWISE, [(op, None, None) for op in ROPES], 1e-6)
    halves = [dataclasses.replace(op, dtype="float16") for op in ROPES]
    check_numbers(POINTWISE, [(op, None, None) for op in halves], HALF)


@pytest.mark.parametrize("op", [LLAMA, PARTIAL])
def test_halves_of_a_head_are_read_as_vectors(op):
    assert width_of(program_nests(op).nests[0]) == 4
    narrow = dataclasses.replace(op, dtype="float16")
    assert width_of(program_nests(narrow).nests[0]) == 8


def test_activations(emulated):
    check_numbers(POINTWISE, [(Elementwise((3, 21), name), None, None) for name in ACTIVATIONS], 3e-6)


def test_layouts(emulated):
    check_numbers(POINTWISE, [(Relayout(1, 6, 5, 7, "NCHW", "NCHW8c"), None, None)], 0)


def test_products_are_left_to_tiles():
    for op in (Matmul((8,), 32, 64), Conv2d(1, 8, 9, 9, 8, (3, 3), padding=(1, 1, 1, 1))):
        assert REDUCE.refuses(op, MACHINE)
