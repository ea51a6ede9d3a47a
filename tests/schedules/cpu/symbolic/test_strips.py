"""Reductions in strips, over sizes known at run time: a strip writes what it computed and nothing else."""

from __future__ import annotations

from hetero_tvm.host.tvm import te, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES


def test_a_strip_of_a_product_of_sizes_writes_its_own_elements():
    machine: CpuModel = MACHINES["avx512"]
    n, d = tirx.Var("n", "int32"), tirx.Var("d", "int32")
    images = d * n + n * 2
    x, w = te.placeholder((images, 4, 9, 11), name="x"), te.placeholder((8, 4, 3), name="w")
    c, r = te.reduce_axis((0, 4), "c"), te.reduce_axis((0, 3), "r")
    y = te.compute(
        (images, 8, 9, 9), lambda i, f, a, b: te.sum(x[i, c, a, b + r] * w[f, c, r], [c, r]), name="y"
    )
    function = te.create_prim_func([x, w, y])
    text = kernels.schedule(function, 1 << 20, machine).script()
    assert "y_local" in text, "it is in strips"
    assert "T.Select(" not in text and "T.where(" not in text
