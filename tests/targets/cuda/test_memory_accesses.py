"""Bank conflicts and sectors, counted from the addresses of emulated kernels."""

import math

import pytest

from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.products.tiles import Tile
from hetero_tvm.targets.cuda import codegen
from hetero_tvm.targets.registry import parse_target
from tests.targets.cuda.memory_accesses import sectors, sites, wavefronts

TARGET = parse_target("cuda:sm_80")
MACHINE = TARGET.machine
MATMUL, ATTENTION = CudaMatmulSpace(), CudaAttentionSpace()


@pytest.mark.parametrize(
    ("addresses", "size", "expected"),
    [
        ([4 * lane for lane in range(32)], 4, (1, 1)),
        ([128 * lane for lane in range(32)], 4, (32, 1)),
        ([0] * 32, 4, (1, 1)),  # one word for all
        ([16 * lane for lane in range(32)], 16, (4, 4)),
        ([32 * lane for lane in range(32)], 16, (8, 4)),
        ([144 * lane for lane in range(8)], 16, (1, 1)),  # rows of 128 bytes and 16 more
        ([8 * lane for lane in range(32)], 8, (2, 2)),
    ],
)
def test_wavefronts(addresses, size, expected):
    assert wavefronts(addresses, size) == expected


def test_sectors():
    assert sectors([16 * lane for lane in range(32)], 16) == (16, 16)
    assert sectors([64 * lane for lane in range(32)], 16) == (32, 16)
    assert sectors([8], 32) == (2, 1)


def accesses_of(cases):
    """The sites of (space, op, point), compiled as one module."""
    functions = {
        f"f{i}": TARGET.stamp(space.emit(op, point, MACHINE)).with_attr("global_symbol", f"f{i}")
        for i, (space, op, point) in enumerate(cases)
    }
    with codegen.collect(rehearsal=True) as made:
        codegen.compile_kernels(tvm.IRModule(functions), TARGET.tvm_target)
    (module,) = made
    for i, (_, op, point) in enumerate(cases):
        name = f"f{i}_kernel"
        nbytes = 4 * max(math.prod(x.shape) for x in (*op.inputs, op.output))
        yield point, sites(module.source, name, module.launches[name], nbytes)


@pytest.mark.exhaustive
def test_tiles_of_tensor_cores_meet_in_no_bank(emulated):
    """Every shape of tile, and depths of 64 and 128 bytes in turn."""
    shapes = {}
    for choice in MATMUL.knobs(Matmul((4096,), 4096, 4096, (), "float16"), MACHINE)[0].choices:
        shapes.setdefault((choice[0], choice[1], choice[3:5]), []).append(choice)
    cases = []
    for i, found in enumerate(shapes.values()):
        tile = Tile.of(next(choice for choice in found if choice[2] == (32, 64)[i % 2]))
        op = Matmul((tile.rows,), tile.columns, 2 * tile.depth, (), "float16")
        cases.append((MATMUL, op, {"tile": tile.choice, "splits": 1}))
    assert len(cases) > 10
    for point, found in accesses_of(cases):
        for kind in ("load_matrices", "htvm_copy_async", "htvm_put", "htvm_take"):
            assert any(kind in site.text for site in found)
        tile = Tile.of(point["tile"])
        for site in found:
            if site.shared and "htvm_take" in site.text and tile.warp_columns == 16:
                assert site.cost <= 2 * site.least  # staged rows of two vectors, once a tile
            else:
                assert site.cost == site.least, f"{point}: {site}"


@pytest.mark.exhaustive
def test_attention_meets_in_no_bank(emulated):
    cases = [
        (ATTENTION, Attention(1, 1, 64, 128, dim, 0.1, 1, causal=True, dtype="float16"), {"tile": (4, 64, 1)})
        for dim in (64, 128)
    ]
    for point, found in accesses_of(cases):
        assert sum(site.requests for site in found if "load_matrices" in site.text) > 0
        for site in found:
            assert site.cost == site.least, f"{point}: {site}"


def test_conflicts_are_seen(emulated, monkeypatch):
    """Without the permutation of chunks, rows of fragments meet in the banks of the first."""
    from hetero_tvm.schedules.cuda.products import fragments, operands

    monkeypatch.setattr(operands, "swizzled", lambda row, chunk, pitch: chunk)
    monkeypatch.setattr(fragments, "row_key", lambda row, pitch: 0 * row)
    op = Matmul((64,), 64, 128, (), "float16")
    ((_, found),) = accesses_of([(MATMUL, op, {"tile": (64, 64, 64, 2, 2, 2), "splits": 1})])
    worst = [site.cost / site.least for site in found if "load_matrices" in site.text]
    assert worst and min(worst) == 8
