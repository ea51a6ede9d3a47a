"""Kernels over rows: every division among threads, and one read and one write of each element."""

import dataclasses

import pytest

from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cuda.rows.embedding_norm import CudaEmbeddingNormSpace
from hetero_tvm.schedules.cuda.rows.group_norm import CudaGroupNormSpace
from hetero_tvm.schedules.cuda.rows.normalization import CudaNormalizationSpace
from hetero_tvm.schedules.cuda.rows.softmax import CudaSoftmaxSpace
from tests.schedules.cuda.rows.cases import EMBEDDINGS, GROUPS, SINGLE, half, some
from tests.schedules.cuda.running import MACHINE
from tests.schedules.cuda.spaces import (
    body_of,
    check_all,
    check_all_machine_code,
    points,
    sample,
)
from tests.selection import exhaustive

SOFTMAX, NORM = CudaSoftmaxSpace(), CudaNormalizationSpace()
GROUP, EMBEDDING = CudaGroupNormSpace(), CudaEmbeddingNormSpace()


@pytest.mark.exhaustive
def test_every_block(emulated):
    op = Softmax((5,), 132)
    every = points(SOFTMAX, op)
    assert len(every) >= 8
    norm = Normalization((5,), 132, 1e-5)
    cases = [(SOFTMAX, op, point, None, SINGLE) for point in every]
    check_all([*cases, *((NORM, norm, point, None, SINGLE) for point in points(NORM, norm))])


def test_rows_longer_than_the_registers_of_a_block(emulated):
    n = 65536 + 4
    op = Softmax((2,), n)
    assert not SOFTMAX.shape(op, SOFTMAX.default(op, MACHINE)).resident
    ops = {SOFTMAX: Softmax((2,), n), NORM: Normalization((1,), n, 1e-5)}
    check_all([(space, op, None, None, 4 * SINGLE) for space, op in ops.items()])


def test_bfloat16(emulated):
    cases = []
    for space, op in (
        (SOFTMAX, Softmax((3,), 40)),
        (NORM, Normalization((3,), 40, 1e-5)),
        (GROUP, GROUPS[1]),
        (EMBEDDING, EMBEDDINGS[0]),
    ):
        op = dataclasses.replace(op, dtype="bfloat16")
        arrays = some(op) if space is EMBEDDING else None
        cases.append((space, op, None, arrays, 2.0**-7))  # two roundings to 8 bits
    check_all(cases)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_one_read_and_one_write_in_full_vectors(arch, compiler):
    rows_, n = 4096, 768
    cases = {
        SOFTMAX: (Softmax((rows_,), n), 0),
        NORM: (Normalization((rows_,), n, 1e-5), 2),
        GROUP: (GroupNorm((rows_ // 32, 32, 24, 32), 32, 1e-5, "silu"), 0),
    }
    both = [
        (space, one, vectors, per_vector)
        for space, (op, vectors) in cases.items()
        for one, per_vector in ((op, 4), (half(op), 8))
    ]
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


@pytest.mark.exhaustive
def test_no_registers_spill(compiler):
    cases = (
        (SOFTMAX, Softmax((512,), 1536)),
        (NORM, half(Normalization((512,), 2048, 1e-5))),
        (GROUP, GroupNorm((2, 32, 16, 16), 8, 1e-5, "gelu_tanh")),
        (EMBEDDING, half(EmbeddingNorm((2, 128), 768, (Lookup(1000, (2, 128)),), (128, 768), 1e-5))),
    )
    check_all_machine_code([(space, op, point) for space, op in cases for point in sample(space, op)])
