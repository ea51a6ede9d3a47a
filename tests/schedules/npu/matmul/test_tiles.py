"""Tiles of products: what is said to fit compiles, and weights lie in the order of the kernel."""

import random

import numpy as np
import pytest

from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.npu.matmul.choices import candidates
from hetero_tvm.schedules.npu.matmul.kernel import ProductEmitter
from hetero_tvm.schedules.npu.matmul.tiles import Tiles, column_panels
from hetero_tvm.targets.npu.regions.codegen import generate
from tests.schedules.npu.running import machine


def test_panels_hold_every_weight_once():
    w = np.arange(1, 5 * 14 + 1, dtype=np.float32).reshape(5, 14)
    packed = column_panels(w, 4, np.dtype(np.float16)).reshape(4, 5, 4)
    for j, r, c in np.ndindex(packed.shape):
        column = 4 * j + c
        assert packed[j, r, c] == (w[r, column] if column < 14 else 0)


def test_a_choice_is_read_back():
    tiles = Tiles("x", 16, 32, 64, slices=2, sub=1, ring=4, rows=8)
    assert Tiles.of({"tiles": tiles.choice()}) == tiles and len(tiles.choice()) == 8
    split = Tiles("x", 16, 32, 64, slices=2, sub=1, ring=4, rows=8, parts=4)
    assert Tiles.of({"tiles": split.choice()}) == split and split.choice()[-1] == 4


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["edge", "datacenter"])
@pytest.mark.parametrize(
    "op",
    [Matmul((197,), 768, 768, ("bias", "gelu_tanh", "residual")), Matmul((1,), 1000, 512, ("bias",))],
    ids=lambda op: op.label,
)
def test_what_fits_compiles(op, preset):
    mach = machine(preset)
    every = sorted(candidates(op, mach.spec), key=str)
    for t in random.Random(0).sample(every, 6):
        program = generate(ProductEmitter(op, t, mach).run(), mach.spec)
        assert all(need <= mach.spec.scratchpad(memory) for memory, need in program.needs.items()), t
