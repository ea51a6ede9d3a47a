import numpy as np
import pytest

from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.schedules.npu.rows.embedding_norm import NpuEmbeddingNormSpace
from hetero_tvm.schedules.npu.tensor_program.space import NpuProgramSpace
from tests.schedules.npu.running import assert_close, machine, run, sample

SPACE = NpuEmbeddingNormSpace()
WORD, PLACE = Lookup(50, (3, 7)), Lookup(9, (1, 7), "int32")

CONTRACTS = [
    EmbeddingNorm((3, 7), 40, (WORD, Lookup(2, (3, 7))), (7, 40), 1e-12),
    EmbeddingNorm((3, 7), 33, (WORD, PLACE, Lookup(4, (1, 1))), (1, 1, 33), 1e-5),
    EmbeddingNorm((3, 7), 1, (PLACE,), (3, 7, 1), 1e-5, shifted=False),
    EmbeddingNorm((3, 7), 17, (Lookup(50, (3, 7), factor=2.5),), (), 1e-5, False, False),
    EmbeddingNorm((1,), 24, (Lookup(1, (1,)), Lookup(3, (1,))), (24,), 1e-5),
    EmbeddingNorm((530,), 8, (Lookup(60, (530,)),), (), 1e-5),  # more than a chunk of indices
]


def drawn(op):
    """Random operands; indices from both ends of every table."""
    rng, arrays = np.random.default_rng(1), sample(op)
    for n, lookup in enumerate(op.lookups):
        arrays[2 * n] = rng.integers(-lookup.rows, lookup.rows, lookup.indices).astype(lookup.dtype)
    return arrays


@pytest.mark.parametrize("preset, dtype", [("edge", "float16"), ("datacenter", "bfloat16")])
@pytest.mark.parametrize("op", CONTRACTS, ids=lambda op: f"{op.label}{len(op.added)}")
def test_every_tiling_keeps_the_contract(op, preset, dtype):
    mach = machine(preset, dtype)
    assert SPACE.refuses(op, mach) is None
    for rows in SPACE.knobs(op, mach)[0].choices:
        assert_close(SPACE, op, mach, drawn(op), point={"rows": rows})


def test_indices_beyond_the_table_read_nothing_else():
    op = EmbeddingNorm((4,), 16, (Lookup(5, (4,)),), (), 1e-5)
    arrays = drawn(op)
    arrays[0] = np.array([-(2**31), -6, 5, 2**31 - 1])
    out, _ = run(SPACE, op, machine(), arrays)
    arrays[0] = np.array([0, 0, 4, 4])
    np.testing.assert_array_equal(out, run(SPACE, op, machine(), arrays)[0])


def test_an_embedding_comes_on_chip_once_and_leaves_once():
    op = EmbeddingNorm((1, 64), 768, (Lookup(100, (1, 64)), Lookup(2, (1, 64))), (64, 768), 1e-12)
    mach = machine("datacenter")
    own, general = (run(space, op, mach, drawn(op))[1].counters for space in (SPACE, NpuProgramSpace()))
    rows = 2 * 64 * 768
    # Out in float16, and once more converted for the host; 2 KiB of indices on their way.
    assert own.dram_write_bytes <= rows + 2 * rows + 2048
    assert own.dram_read_bytes <= 3 * rows + rows + 8192
    assert own.cycles < general.cycles / 2


@pytest.mark.parametrize(
    "op, reason",
    [
        (EmbeddingNorm((3, 7), 8, (Lookup(5, (3, 1)),), (), 1e-5), "repeat in another way"),
        (EmbeddingNorm((2, 3, 7), 8, (Lookup(5, (1, 3, 7)), Lookup(5, (1, 1, 7))), (), 1e-5), "repeat in"),
        (
            EmbeddingNorm((2,), 1 << 20, (Lookup(5, (2,)),), (), 1e-5),
            "does not fit the unified buffer of edge",
        ),
        (EmbeddingNorm((2,), 8, (), (8,), 1e-5), "nothing is looked up"),
    ],
)
def test_refusals(op, reason):
    assert reason in SPACE.refuses(op, machine())
