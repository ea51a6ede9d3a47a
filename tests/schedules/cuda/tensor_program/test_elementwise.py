"""Kernels without reductions on the GPU: numbers, and that neighbours are read and written as vectors."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, tirx, topi
from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.pool2d import Relayout
from hetero_tvm.ops.rope import Rope
from hetero_tvm.schedules.cuda.tensor_program.elementwise import CudaElementwiseSpace, width_of
from hetero_tvm.schedules.nests.program import program_nests
from tests.schedules.cuda.programs import check, machine_code, program, tensor
from tests.schedules.cuda.running import MACHINE
from tests.schedules.cuda.spaces import HALF, body_of, check_numbers

SPACE = CudaElementwiseSpace()

X, BIAS, MORE = tensor("x", 5, 36), tensor("b", 36), tensor("y", 3, 36)
SIDE, TABLE, INDEX = tensor("z", 5, 4), tensor("t", 50, 64), tensor("i", 4, 7, dtype="int64")
NARROW, ODD, ODD_BIAS = tensor("h", 6, 40, dtype="float16"), tensor("o", 7, 37), tensor("c", 37)
MASK = tensor("m", 5, 36, dtype="bool")
# fmt: off
WIDTHS = {
    "bias and relu": 4, "odd rows": 4, "rows joined": 4, "columns joined": 4, "columns cut": 4,
    "cut askew": 1,
    "gather": 4, "gather columns": 1, "padded": 4, "padded askew": 1, "narrowed": 8, "widened": 8, "half": 8,
    "comparison": 1, "choice": 1, "integers": 2, "repeated": 4, "scalar": 1, "turned": 1, "uneven": 2,
}
CASES = {
    "bias and relu": ([X, BIAS], topi.nn.relu(topi.add(X, BIAS)), lambda x, b: np.maximum(x + b, 0)),
    "odd rows": ([ODD, ODD_BIAS], topi.add(ODD, ODD_BIAS), lambda x, b: x + b),
    "rows joined": ([X, MORE], topi.concatenate([X, MORE], 0), lambda x, y: np.concatenate([x, y])),
    "columns joined": (
        [X, SIDE],
        topi.nn.relu(topi.concatenate([X, SIDE], 1)),
        lambda x, z: np.maximum(np.concatenate([x, z], 1), 0),
    ),
    "columns cut": ([X], topi.strided_slice(X, [0, 4], [5, 12], [1, 1]), lambda x: x[:, 4:12]),
    "cut askew": ([X], topi.strided_slice(X, [1, 1], [4, 33], [1, 1]), lambda x: x[1:4, 1:33]),
    "gather": ([TABLE, INDEX], topi.take(TABLE, INDEX, axis=0), lambda t, i: t[i]),
    "gather columns": ([TABLE, INDEX], topi.take(TABLE, INDEX, axis=1), lambda t, i: t[:, i]),
    "padded": ([X], topi.nn.pad(X, [1, 4], [1, 4]), lambda x: np.pad(x, [(1, 1), (4, 4)])),
    "padded askew": ([X], topi.nn.pad(X, [1, 3], [1, 2]), lambda x: np.pad(x, [(1, 1), (3, 2)])),
    "narrowed": ([X], topi.cast(X, "float16"), lambda x: x.astype("float16")),
    "widened": ([NARROW], topi.cast(NARROW, "float32"), lambda x: x.astype("float32")),
    "half": ([NARROW], topi.add(NARROW, NARROW), lambda x: x + x),
    "comparison": ([X], topi.less(X, 0.0), lambda x: x < 0),
    "choice": ([MASK, X], topi.where(MASK, X, topi.exp(X)), lambda m, x: np.where(m, x, np.exp(x))),
    "integers": ([INDEX], topi.add(INDEX, tirx.const(3, "int64")), lambda x: x + 3),
    "repeated": ([BIAS], topi.broadcast_to(BIAS, (3, 5, 36)), lambda b: np.broadcast_to(b, (3, 5, 36))),
    "scalar": ([tensor("s")], te.compute((), lambda: tirx.const(2.0, "float32")), lambda s: np.float32(2)),
    "turned": ([X], topi.transpose(X), lambda x: x.T),
    "uneven": ([X], topi.nn.pad(X, [0, 6], [0, 2]), lambda x: np.pad(x, [(0, 0), (6, 2)])),
}
# fmt: on
LLAMA = Rope((1, 4, 12, 16), 16, False, (1, 1, 12, 16), (1, 12, 128), (0, 1536, 16, 128))
PARTIAL = Rope((1, 4, 12, 64), 32, False, (1, 1, 12, 16), (1, 12, 256), (0, 3072, 64, 256))
ROPES = [
    LLAMA,
    PARTIAL,
    Rope((2, 3, 4, 7), 6, False, (1, 1, 4, 6), (2, 4, 30), (9, 120, 7, 30)),
    Rope((2, 4, 3, 6), 6, True, (2, 4, 1, 3), (2, 4, 3, 6), (0, 72, 18, 6)),
]


@pytest.mark.thorough
def test_numbers(emulated):
    check(SPACE, CASES)


@pytest.mark.exhaustive
def test_every_choice(emulated):
    check(SPACE, {name: CASES[name] for name in ("odd rows", "columns joined")}, every=True)


@pytest.mark.parametrize("name", CASES)
def test_widths(name):
    arguments, result, _ = CASES[name]
    assert width_of(program_nests(program(arguments, result)).nests[0]) == WIDTHS[name]


def test_a_chain_reads_and_writes_vectors(compiler):
    x, y, bias = tensor("x", 4096, 768), tensor("y", 4096, 768), tensor("b", 768)
    h, g = tensor("h", 4096, 768, dtype="float16"), tensor("g", 4096, 768, dtype="float16")
    chains = [
        ([x, y, bias], topi.nn.relu(topi.add(topi.multiply(x, y), bias))),
        ([h, g], topi.multiply(h, topi.sigmoid(g))),
        ([x, y], topi.concatenate([x, y], 1)),
    ]
    module = machine_code(SPACE, chains)
    ptx = compiler.ptx(module.source, "sm_80")
    for kernel, (loads, stores) in enumerate([(3, 1), (2, 1), (2, 1)]):
        body = body_of(ptx, f"f{kernel}_kernel")
        assert body.count("ld.global.nc.v4") == body.count("ld.global") == loads
        assert body.count("st.global.v4") == body.count("st.global") == stores


def test_refusals():
    assert "reduces" in SPACE.refuses(program([X], topi.sum(X, axis=1)), MACHINE)
    empty = tensor("e", 0, 4)
    assert "zero" in SPACE.refuses(program([empty], topi.exp(empty)), MACHINE)
    last = topi.argmax(X, axis=1, select_last_index=True)
    assert "nests" in SPACE.refuses(program([X], last), MACHINE)


@pytest.mark.exhaustive
def test_rotary_embeddings(emulated):
    check_numbers(SPACE, [(op, None, None) for op in ROPES], 1e-6)
    halves = [dataclasses.replace(op, dtype="float16") for op in ROPES]
    check_numbers(SPACE, [(op, None, None) for op in halves], HALF)


@pytest.mark.parametrize("op", [LLAMA, PARTIAL])
def test_halves_of_a_head_are_read_as_vectors(op):
    assert width_of(program_nests(op).nests[0]) == 4
    narrow = dataclasses.replace(op, dtype="float16")
    assert width_of(program_nests(narrow).nests[0]) == 8


def test_activations(emulated):
    check_numbers(SPACE, [(Elementwise((3, 21), name), None, None) for name in ACTIVATIONS], 3e-6)


def test_layouts(emulated):
    check_numbers(SPACE, [(Relayout(1, 6, 5, 7, "NCHW", "NCHW8c"), None, None)], 0)
