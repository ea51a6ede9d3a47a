"""The register tile: its numbers, and that machine code keeps it in registers."""

import re

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu import register_tile
from hetero_tvm.schedules.cpu.register_tile import RegisterTile
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import MACHINES, MOST_ROWS, compiled
from tests.selection import thorough

MCPU = {16: "haswell", 32: "skylake-avx512"}
DEPTH = 67


def product(tile, lanes, columns, depth=DEPTH, streams=False):
    """``Y = A @ B`` of one tile, of which the first ``columns`` columns are stored."""
    width = tile.columns(lanes)
    k = Kernel()
    with k:
        a, b = k.argument("A", (tile.rows, depth)), k.argument("B", (depth, width))
        y, acc = k.argument("Y", (tile.rows, columns)), k.scratch(((1 + streams) * tile.rows, width))

        def put(row, column, lanes, value):
            k.store(y, value, [row, k.ramp(column, lanes)])

        left, right = (lambda r, d: k.load(a, [r, d])), (lambda d, at: k.load(b, [d, at]))
        accumulate = register_tile.accumulate_streams if streams else register_tile.accumulate
        accumulate(k, acc, tile, lanes, depth, 4, left, right)
        register_tile.store(k, acc, tile.rows, columns, lanes, put)
    return k.function


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_products_of_whole_and_narrow_tiles(machine):
    lanes = machine.lanes
    cases = [(RegisterTile(3, 2), 2 * lanes), (RegisterTile(1, 3), 2 * lanes + 3), (RegisterTile(4, 1), 1)]
    runs = compiled((product(tile, lanes, columns), (tile.rows, columns)) for tile, columns in cases)
    generator = np.random.default_rng(0)
    for (tile, columns), run in zip(cases, runs, strict=True):
        a = generator.standard_normal((tile.rows, DEPTH), dtype=np.float32)
        b = generator.standard_normal((DEPTH, tile.columns(lanes)), dtype=np.float32)
        wanted = (a.astype("float64") @ b)[:, :columns]
        np.testing.assert_allclose(run(a, b), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("depth", [*thorough([1 << 18]), (1 << 17) + 1027])
def test_long_products_do_not_lose_what_is_small(depth):
    machine = MACHINES["avx2"]
    cases = [(RegisterTile(2, 2), streams) for streams in (False, True)]
    runs = compiled(
        (product(tile, machine.lanes, 16, depth, streams), (tile.rows, 16)) for tile, streams in cases
    )
    generator = np.random.default_rng(0)
    for (tile, _), run in zip(cases, runs, strict=True):
        shapes = (tile.rows, depth), (depth, 16)
        a, b = (1000 + generator.random(shape, dtype=np.float32) for shape in shapes)
        wanted = a.astype("float64") @ b
        # One accumulator for all terms is 1e-3 off; NumPy's blocks of float32 are 1e-6.
        np.testing.assert_allclose(run(a, b), wanted, rtol=1e-5)


def spills(tile, registers):
    """Accesses to the stack by vector instructions in the loop of a tile."""
    lanes = registers // 2
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[registers]})
    kernel = product(tile, lanes, tile.columns(lanes))
    assembly = str(compile_kernels(kernel, target).mod.inspect_source("asm"))
    loop = max(re.split(r"^\S+:", assembly, flags=re.M), key=lambda block: block.count("vfmadd"))
    assert loop.count("vfmadd") >= tile.rows * tile.vectors
    return sum("mm" in line and ("(%rsp" in line or "(%rbp" in line) for line in loop.splitlines())


@pytest.mark.thorough
@pytest.mark.parametrize("registers", MCPU)
def test_the_largest_tiles_stay_in_registers_and_larger_ones_do_not(registers):
    for vectors, rows in MOST_ROWS[registers].items():
        assert spills(RegisterTile(rows, vectors), registers) <= 1
        assert spills(RegisterTile(rows + 2, vectors), registers) >= 4


@pytest.mark.parametrize("registers", MCPU)
def test_what_fits(registers):
    machine = CpuModel("x", lanes=registers // 2, registers=registers)
    for vectors, rows in MOST_ROWS[registers].items():
        assert RegisterTile(rows, vectors).fits(machine)
        assert not RegisterTile(rows + 1, vectors).fits(machine)


def test_the_bound_of_a_step():
    """FMA issue, loads, or latency, by hand for two FMA units of latency 4 on AVX2."""
    machine = CpuModel("x", lanes=8, registers=16, fma_units=2.0, fma_latency=4)
    assert RegisterTile(6, 2).step_cycles(machine, load_cycles=0.5) == 6.0  # 12 FMAs, 2 a cycle
    assert RegisterTile(1, 4).step_cycles(machine, load_cycles=2.0) == 8.5  # 4 loads and a broadcast
    assert RegisterTile(1, 1).step_cycles(machine, load_cycles=0.5) == pytest.approx(4.48)  # latency
    assert RegisterTile.of((6, 2)) == RegisterTile(rows=6, vectors=2)
    assert RegisterTile(6, 2).columns(8) == 16
