"""Softmax and norms on the GPU: numbers, and that memory sees one read and one write of each element."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.normalization import Normalize
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cuda.rows.add_norm import CudaAddNormSpace
from hetero_tvm.schedules.cuda.rows.embedding_norm import CudaEmbeddingNormSpace
from hetero_tvm.schedules.cuda.rows.group_norm import CudaGroupNormSpace
from hetero_tvm.schedules.cuda.rows.normalization import CudaNormalizeSpace
from hetero_tvm.schedules.cuda.rows.softmax import CudaSoftmaxSpace
from tests.schedules.cuda.running import MACHINE, compiled
from tests.schedules.cuda.spaces import (
    HALF,
    body_of,
    check_all,
    check_all_machine_code,
    check_numbers,
    points,
    random_arrays,
    sample,
)
from tests.selection import exhaustive

SOFTMAX, NORM = CudaSoftmaxSpace(), CudaNormalizeSpace()
GROUP, EMBEDDING, SKIP = CudaGroupNormSpace(), CudaEmbeddingNormSpace(), CudaAddNormSpace()
SINGLE = 4e-6
"""float32: sums of up to some thousand terms, exponentials of the hardware (2 units in the last place)."""


def half(op):
    return dataclasses.replace(op, dtype="float16")


def some(op):
    generator = np.random.default_rng(3)
    table = generator.standard_normal
    return [
        generator.integers(-x.shape[-1], 5, x.shape).astype(x.dtype)
        if np.dtype(x.dtype).kind == "i"
        else table(x.shape).astype(x.dtype)
        for x in op.inputs
    ]


EMBEDDINGS = [
    EmbeddingNorm((2, 3), 40, (Lookup(11, (2, 3)),), (), 1e-5),
    EmbeddingNorm((2, 5), 33, (Lookup(11, (2, 5)), Lookup(3, (1, 5), "int32", 2.0)), (5, 33), 1e-5, True),
    EmbeddingNorm((4, 1), 128, (Lookup(7, (4, 1)),), (4, 1, 128), 1e-6, False, False),
]
GROUPS = [
    GroupNorm((2, 6, 5, 7), 3, 1e-5), GroupNorm((1, 8, 4, 4), 2, 1e-5, "silu"), GroupNorm((3, 4, 2), 4, 1e-5),
    GroupNorm((2, 4), 2, 1e-5, "relu"),
]  # fmt: skip


def check_both(space, cases):
    """Pairs of operator and arrays, in float32 and in float16 (random arrays are converted)."""
    check_all(
        [(space, op, None, arrays, SINGLE) for op, arrays in cases]
        + [(space, half(op), None, arrays and some(half(op)), HALF) for op, arrays in cases]
    )


def test_softmax(emulated):
    ops = [Softmax(lead, n) for lead, n in (((3,), 1), ((2, 5), 7), ((9,), 64), ((1,), 1000), ((33,), 36))]
    check_both(SOFTMAX, [(op, None) for op in ops])


def test_every_block(emulated):
    op = Softmax((5,), 132)
    every = points(SOFTMAX, op)
    assert len(every) >= 8
    norm = Normalize((5,), 132, 1e-5)
    cases = [(SOFTMAX, op, point, None, SINGLE) for point in every]
    check_all([*cases, *((NORM, norm, point, None, SINGLE) for point in points(NORM, norm))])


def test_rows_longer_than_the_registers_of_a_block(emulated):
    n = 65536 + 4
    op = Softmax((2,), n)
    assert not SOFTMAX.shape(op, SOFTMAX.default(op, MACHINE)).resident
    ops = {SOFTMAX: Softmax((2,), n), NORM: Normalize((1,), n, 1e-5)}
    check_all([(space, op, None, None, 4 * SINGLE) for space, op in ops.items()])


def test_values_at_the_edges(emulated):
    op = Softmax((6,), 36)
    (x,) = random_arrays(op)
    x[0, 3], x[1], x[2, 5], x[3, ::2] = np.nan, -np.inf, np.inf, -np.inf
    x[4] = np.finfo("float32").min
    x[5] *= 1e30
    check_numbers(SOFTMAX, [(op, None, [x])], SINGLE)


def test_norms(emulated):
    ops = [
        Normalize((3,), 1, 1e-5), Normalize((2, 5), 7, 1e-5), Normalize((9,), 64, 1e-6, False, False),
        Normalize((1,), 1000, 1e-5, True, False), Normalize((33,), 36, 1e-5, False, True),
    ]  # fmt: skip
    check_both(NORM, [(op, None) for op in ops])


def test_norm_of_a_large_mean(emulated):
    op = Normalize((4,), 260, 1e-5)
    arrays = random_arrays(op)
    arrays[0] += 1000  # one pass with sums of squares would lose all digits
    check_numbers(NORM, [(op, None, arrays)], 1e-3)


def test_norm_of_rows_that_lie_at_strides(emulated):
    heads = Normalize((2, 3, 4), 8, 1e-5, source=(2, 3, 60), place=(4, 180, 60, 12))
    odd = Normalize((2, 3), 7, 1e-5, False, False, source=(2, 3, 9), place=(1, 27, 9))
    check_numbers(NORM, [(op, None, None) for op in (heads, odd, half(heads))], HALF)


@pytest.mark.parametrize("kept", [True, False])
def test_residual_and_norm(kept, emulated):
    ops = [
        AddNorm((2, 5), 36, (2, 5, 36), 1e-5, kept=kept),
        AddNorm((3, 4), 7, (4, 7), 1e-6, False, False, kept),
        AddNorm((1, 3), 260, (3, 260), 1e-5, kept=kept),
    ]
    functions = [SKIP.emit(op, SKIP.default(op, MACHINE), MACHINE) for op in ops]
    for op, call in zip(ops, compiled(functions), strict=True):
        arrays = random_arrays(op)
        results = call(arrays, [np.full(o.shape, np.nan, o.dtype) for o in op.outputs])
        truth = op.reference(*(a.astype("float64") for a in arrays))
        for result, expected in zip(results, truth if kept else [truth], strict=True):
            assert np.abs(result - expected).max() <= SINGLE * np.abs(expected).max()


def test_group_norms(emulated):
    check_both(GROUP, [(op, None) for op in GROUPS])


def test_embeddings(emulated):
    check_both(EMBEDDING, [(op, some(op)) for op in EMBEDDINGS])


def test_bfloat16(emulated):
    cases = []
    for space, op in (
        (SOFTMAX, Softmax((3,), 40)), (NORM, Normalize((3,), 40, 1e-5)), (GROUP, GROUPS[1]),
        (EMBEDDING, EMBEDDINGS[0]),
    ):  # fmt: skip
        op = dataclasses.replace(op, dtype="bfloat16")
        arrays = some(op) if space is EMBEDDING else None
        cases.append((space, op, None, arrays, 2.0**-7))  # two roundings to 8 bits
    check_all(cases)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_one_read_and_one_write_in_full_vectors(arch, compiler):
    rows_, n = 4096, 768
    cases = {
        SOFTMAX: (Softmax((rows_,), n), 0), NORM: (Normalize((rows_,), n, 1e-5), 2),
        GROUP: (GroupNorm((rows_ // 32, 32, 24, 32), 32, 1e-5, "silu"), 0),
    }  # fmt: skip
    both = [
        (space, one, vectors, per_vector)
        for space, (op, vectors) in cases.items() for one, per_vector in ((op, 4), (half(op), 8))
    ]  # fmt: skip
    module, _ = check_all_machine_code([(space, one, None) for space, one, *_ in both], arch)
    whole = compiler.ptx(module.source, arch)
    for number, (space, one, vectors, per_vector) in enumerate(both):
        ptx = body_of(whole, f"f{number}_kernel")
        threads, _ = space.default(one, MACHINE)["block"]
        pieces = -(-n // (threads * per_vector))
        loads = pieces * (1 + vectors * (per_vector // 4))
        assert ptx.count("ld.global.nc.v4") == loads and ptx.count("st.global.v4") == pieces
        assert ptx.count("st.global") == pieces
        scalars = 2 * pieces if space is GROUP else 0  # a channel's scale and shift
        assert ptx.count("ld.global") - loads <= scalars
        assert threads == 32 and ptx.count("shfl.sync.bfly") == 10


def test_no_registers_spill(compiler):
    cases = (
        (SOFTMAX, Softmax((512,), 1536)), (NORM, half(Normalize((512,), 2048, 1e-5))),
        (GROUP, GroupNorm((2, 32, 16, 16), 8, 1e-5, "gelu_tanh")),
        (EMBEDDING, half(EmbeddingNorm((2, 128), 768, (Lookup(1000, (2, 128)),), (128, 768), 1e-5))),
    )  # fmt: skip
    check_all_machine_code([(space, op, point) for space, op in cases for point in sample(space, op)])


def test_refusals():
    assert "zero" in SOFTMAX.refuses(Softmax((0,), 4), MACHINE)
    assert "softmax" in SOFTMAX.refuses(Normalize((1,), 4, 1e-5), MACHINE)
