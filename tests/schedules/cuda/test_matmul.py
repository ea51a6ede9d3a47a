"""Tensor-core products: numbers on the emulated GPU, and what the compiled code is made of."""

import numpy as np
import pytest

from hetero_tvm.ops import activations as reference
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cuda.activation import ACTIVATIONS
from hetero_tvm.schedules.cuda.matmul import CudaMatmulSpace, estimate, tiles
from hetero_tvm.targets.base import parse_target
from hetero_tvm.targets.cuda import codegen, facts
from hetero_tvm.targets.cuda.model import MODELS
from tests.schedules.cuda.running import MACHINE, TARGET, compiled, compiler, emulated, tvm  # noqa: F401

SPACE = CudaMatmulSpace()
HALF = 2.0**-10
"""Unit of the last place of float16, relative: inputs are exact, sums are float32, the result rounds."""


def arrays_of(op, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(x.shape).astype(x.dtype) for x in op.inputs]


def check(cases):
    """(op, point) pairs, compiled as one module, against float64."""
    functions = [SPACE.emit(op, point, MACHINE) for op, point in cases]
    for (op, point), call in zip(cases, compiled(functions), strict=True):
        arrays = arrays_of(op)
        truth = op.reference(*(a.astype("float64") for a in arrays))
        for index, pack in SPACE.pack(op, point, MACHINE).items():
            arrays[index] = pack(arrays[index])
        (result,) = call(arrays, [np.full(op.output.shape, np.nan, op.dtype)])
        error = np.abs(result.astype("float64") - truth).max() / np.abs(truth).max()
        assert error <= HALF, f"{op} at {point}: {error:.3g}"


def points(op):
    return [{"tile": choice} for choice in SPACE.knobs(op, MACHINE)[0].choices]


def test_every_tile(emulated):  # noqa: F811
    op = Matmul((70,), 72, 256, (), "float16")  # rows and columns that fill no tile
    every = points(op)
    assert len(every) > 20
    seen, chosen = set(), []
    for point in every:  # every shape of tile, and every depth and number of stages
        parts = {("tile", point["tile"][:2]), ("depth", point["tile"][2]), ("stages", point["tile"][5])}
        if not parts <= seen:
            chosen.append((op, point))
            seen |= parts
    check(chosen)


@pytest.mark.parametrize(
    "epilogue", [("bias",), ("bias", "residual"), ("bias", "gelu_erf"), ("silu",), ("gelu_tanh",)]
)
def test_epilogues(epilogue, emulated):  # noqa: F811
    op = Matmul((1, 33), 64, 64, epilogue, "float16")
    check([(op, SPACE.default(op, MACHINE))])


@pytest.mark.parametrize(
    ("lead", "n", "k"),
    [((1,), 8, 32), ((2, 5), 40, 96), ((2, 3, 4), 16, 64), ((17,), 30, 32), ((5,), 33, 64)],
)
def test_odd_shapes(lead, n, k, emulated):  # noqa: F811
    op = Matmul(lead, n, k, ("bias",), "float16")
    check([(op, SPACE.default(op, MACHINE))])


def test_one_row_and_one_column(emulated):  # noqa: F811
    cases = [Matmul((1,), 72, 256, ("bias",), "float16"), Matmul((1, 1), 1, 64, (), "float16")]
    check([(op, point) for op in cases for point in points(op) if point["tile"][0] == 16][:4])


def test_every_activation_of_the_contracts_is_there():
    assert set(ACTIVATIONS) == set(reference.ACTIVATIONS)


def test_refusals():
    assert "float32" in SPACE.refuses(Matmul((8,), 8, 32), MACHINE)
    assert "multiple of 32" in SPACE.refuses(Matmul((8,), 8, 40, (), "float16"), MACHINE)


def test_tiles_stay_within_every_machine():
    op = Matmul((4096,), 4096, 4096, (), "float16")
    for machine in MODELS.values():
        found = tiles(op, machine)
        assert found and all(tile.shared <= machine.shared_per_block for tile in found)
        best = found[0]
        assert best.rows * best.columns >= 128 * 64  # large products want large tiles
        assert estimate(op, best, machine) == min(estimate(op, tile, machine) for tile in found)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiled_code(arch, compiler):  # noqa: F811
    target = parse_target(f"cuda:{arch}")
    ops = [
        Matmul((1024,), 1024, 1024, ("bias", "gelu_erf"), "float16"),
        Matmul((197,), 768, 768, ("bias",), "float16"),
    ]
    functions = [SPACE.emit(op, SPACE.default(op, target.machine), target.machine) for op in ops]
    with codegen.collect() as made:
        compiled(functions, target)
    (module,) = made
    for kernel in facts.of_module(module).values():
        assert kernel["stack"] == 0, "registers spill"
        assert kernel["registers"] * kernel["threads"] <= 65536 and kernel["threads"] <= 1024
        assert 0 < kernel["shared"] <= target.machine.shared_per_block and kernel["occupancy"] > 0
    ptx = compiler.ptx(module.source, arch)
    for instruction in (
        "mma.sync.aligned.m16n8k16",
        "ldmatrix.sync",
        "cp.async.cg.shared.global",
        "cp.async.wait_group",
    ):
        assert instruction in ptx
