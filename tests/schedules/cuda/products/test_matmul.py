"""Products with a constant matrix: numbers on the emulated GPU, and what the compiled code is made of."""

import dataclasses
import math
import random

import numpy as np
import pytest

from hetero_tvm.machines.gpu import MODELS
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.products.tiles import tiles
from hetero_tvm.targets.registry import parse_target
from tests.schedules.cuda.running import MACHINE, check_points, compiled_facts
from tests.schedules.cuda.spaces import representative
from tests.selection import exhaustive, thorough

SPACE = CudaMatmulSpace()
TF32 = dataclasses.replace(MACHINE, features=("tf32",))
HALVES = ["float16", "bfloat16"]


def tolerance(op, machine=MACHINE):
    """Inputs are exact and sums are float32: one rounding of the result.  tf32 rounds both inputs of each
    of k products to 11 bits, errors that add up like a random walk; float32 rounds k sums."""
    if op.dtype == "float32":
        return (3 * 2.0**-11 if machine is TF32 else 2.0**-22) * max(1.0, math.sqrt(op.k) / 8)
    return 2.0**-10 if op.dtype == "float16" else 2.0**-7


def check(cases, machine=MACHINE):
    check_points(SPACE, cases, machine, lambda op: tolerance(op, machine))


def default(op, machine=MACHINE):
    return op, SPACE.default(op, machine)


def small(op, machine=MACHINE):
    """The point with the smallest tile."""
    found = tiles(SPACE.problem(op, machine), machine)
    return op, {
        "tile": min(found, key=lambda tile: (tile.rows * tile.columns, tile.depth)).choice,
        "splits": 1,
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "machine"), [("float16", MACHINE), ("float32", TF32), *exhaustive([("float32", MACHINE)])]
)
def test_tiles_of_every_kind(dtype, machine, emulated):
    op = Matmul((70,), 72, 256, (), dtype)  # rows and columns that fill no tile
    choices = [choice for choice in SPACE.knobs(op, machine)[0].choices if len(choice) == 6]
    assert len(choices) > 20
    tiles = representative(choices, 128 * 128 if dtype == "float16" else 64 * 64)
    if dtype == "float16":
        tiles.append(max(choices, key=lambda tile: tile[1]))
    check([(op, {"tile": tile, "splits": 1}) for tile in tiles], machine)


@pytest.mark.thorough
def test_epilogues(emulated):
    steps = [
        ("bias",),
        ("bias", "residual"),
        ("residual", "gate", "relu"),
        ("silu",),
        ("gelu_tanh",),
        ("bias", "gelu_erf"),
    ]
    cases = [default(Matmul((1, 33), 64, 64, step, "float16")) for step in steps]
    check([*cases, default(Matmul((9,), 40, 32, ("bias", "residual", "gelu_erf"), "bfloat16"))])
    check([small(Matmul((9,), 40, 32, ("bias", "residual", "gelu_erf")))])


ODD = [
    ((1,), 8, 32),
    ((2, 5), 40, 96),
    ((2, 3, 4), 16, 64),
    ((17,), 30, 33),
    ((5,), 33, 70),
    ((1, 1), 1, 1),
    ((3,), 7, 100),
    ((5,), 270, 40),
]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float16", *exhaustive(["bfloat16"])])
def test_odd_shapes(dtype, emulated):
    check([default(Matmul(lead, n, k, ("bias",), dtype)) for lead, n, k in ODD])


@pytest.mark.thorough
@pytest.mark.parametrize("machine", [MACHINE, *exhaustive([TF32])], ids=["f32", "tf32"])
def test_odd_shapes_of_float32(machine, emulated):
    check([small(Matmul(lead, n, k, ("bias",)), machine) for lead, n, k in ODD], machine)


@pytest.mark.thorough
def test_parts_of_the_reduction(emulated):
    """Even and uneven parts, and more parts than steps; every epilogue is applied once."""
    cases = [
        Matmul((20,), 24, 1024, ("bias", "residual", "gelu_erf"), "float16"),
        Matmul((5,), 9, 2100, ("bias",)),
        Matmul((3, 2), 30, 1056, ("silu",), "bfloat16"),
    ]
    for op in cases:
        assert SPACE.knobs(op, MACHINE)[1].choices[1:]
    split = [
        (op, {**small(op)[1], "splits": n}) for op in cases for n in SPACE.knobs(op, MACHINE)[1].choices[1:]
    ]
    check(split)
    deep = max(SPACE.knobs(cases[0], MACHINE)[0].choices, key=lambda tile: tile[2] * tile[5])
    check([(cases[0], {"tile": deep, "splits": 2})])


def test_few_tiles_with_long_reductions_are_split():
    assert SPACE.default(Matmul((64,), 768, 3072, (), "float16"), MACHINE)["splits"] > 1
    assert SPACE.default(Matmul((4096,), 4096, 4096, (), "float16"), MACHINE)["splits"] == 1


def test_many_tiles_in_groups(emulated):
    """10 x 3 tiles: the groups of 8 rows of tiles do not come out even."""
    op = Matmul((150,), 90, 32, ("bias",), "float16")
    check([small(op)])


def test_not_a_number_stays_in_its_row(emulated):
    op = Matmul((20,), 24, 40, (), "float16")
    x = np.zeros((20, 40), "float16")
    x[3, 5], x[7, 0] = np.nan, np.inf
    w = np.ones((40, 24), "float16")
    (result,) = check_points(SPACE, [default(op)], MACHINE, None, [[x, w]])
    assert np.isnan(result[3]).all() and np.isinf(result[7]).all()
    assert not np.delete(result, [3, 7], axis=0).any()


def test_float32_stays_float32_unless_tf32_is_asked_for():
    op = Matmul((64,), 64, 64)
    assert not SPACE.problem(op, MACHINE).tensor_cores and SPACE.problem(op, TF32).tensor_cores


def test_refusals():
    assert "float64" in SPACE.refuses(Matmul((8,), 8, 32, (), "float64"), MACHINE)
    assert "2^31" in SPACE.refuses(Matmul((1 << 20,), 8, 1 << 12, (), "float16"), MACHINE)


@pytest.mark.parametrize("arch", ["sm_80", *exhaustive(["sm_90"])])
def test_compiled_code(arch, compiler):
    machine = MODELS[arch]
    large = [Matmul((1024,), 1024, 1024, ("bias", "gelu_erf"), dtype) for dtype in HALVES]
    random_points = random.Random(arch).sample(SPACE.knobs(large[0], machine)[0].choices, 3)
    cases = [(op, SPACE.default(op, machine)) for op in large]
    cases += [(large[0], {"tile": choice, "splits": 1}) for choice in random_points]
    cases.append(default(Matmul((197,), 768, 768, ("bias",), "float16"), machine))
    ptx = compiled_facts(SPACE, cases, machine, compiler)
    for instruction in (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16",
        "ldmatrix.sync",
        "cp.async.cg.shared.global",
        "cp.async.wait_group",
        "st.global.v4",
        "ld.shared.v4",
    ):
        assert instruction in ptx


@pytest.mark.parametrize("features", [*thorough([((),)]), ("tf32",)], ids=["f32", "tf32"])
def test_compiled_code_of_float32(features, compiler):
    machine = dataclasses.replace(MODELS["sm_80"], features=features)
    op = Matmul((1024,), 1024, 1024, ("bias",))
    random_points = random.Random(1).sample(SPACE.knobs(op, machine)[0].choices, 2)
    cases = [
        (op, SPACE.default(op, machine)),
        *((op, {"tile": choice, "splits": 1}) for choice in random_points),
    ]
    ptx = compiled_facts(SPACE, cases, machine, compiler)
    assert "cp.async.cg.shared.global" in ptx and "st.global.v4" in ptx
    assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32" in ptx) == bool(features)


def group_points(op, machine):
    """The points whose tiles warp groups multiply."""
    knobs = SPACE.knobs(op, machine)
    return [{"tile": choice, "splits": 1} for choice in knobs[0].choices if len(choice) == 7]


@pytest.mark.parametrize("dtype", [*thorough(["float16"]), "float32", *exhaustive(["bfloat16"])])
def test_warp_groups(dtype, emulated, monkeypatch):
    """wgmma, by an emulation of its descriptors and its permutation of shared memory."""
    monkeypatch.setenv("HETERO_TVM_CUDA_EMULATE_ARCH", "90")
    machine = dataclasses.replace(MODELS["sm_90a"], features=("tf32",))
    op = Matmul((70,), 72, 150, ("bias",), dtype)
    points = group_points(op, machine)
    assert points and SPACE.default(op, machine) not in points
    wanted = [(64, 64, 3), (128, 64, 4)] if dtype == "float16" else [(64, 128, 6)]
    cases = [(op, point) for point in points if (*point["tile"][:2], point["tile"][5]) in wanted]
    assert len(cases) == len(wanted)
    check_points(SPACE, cases, machine, lambda op: tolerance(op, TF32), target=parse_target("cuda:sm_90a"))


def test_compiled_code_of_warp_groups(compiler):
    machine = dataclasses.replace(MODELS["sm_90a"], features=("tf32",))
    ops = [Matmul((4096,), 4096, 4096, ("bias",), dtype) for dtype in ("float16", "float32")]
    cases = [(op, group_points(op, machine)[0]) for op in ops]
    largest = [point for point in group_points(ops[0], machine) if point["tile"][:2] == (128, 256)]
    ptx = compiled_facts(SPACE, [*cases, (ops[0], largest[0])], machine, compiler)
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16" in ptx
    assert "k8.f32.tf32.tf32" in ptx and "fence.proxy.async" in ptx
