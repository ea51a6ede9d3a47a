"""Reductions in strips, over sizes known at run time: a strip writes what it computed and nothing else."""

from __future__ import annotations

from hetero_tvm.host.tvm import te, tirx, tvm, tvm_ffi
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.schedules.cpu.symbolic import kernels
from tests.schedules.cpu.running import MACHINES

IMAGES = 'T.Cast("int32", d) * T.Cast("int32", n) + T.Cast("int32", n) * 2'


def test_a_strip_of_a_product_of_sizes_copies_its_own_elements():
    """TVM cannot tell which image an iteration of all loops as one is of: it would copy all around it."""
    machine: CpuModel = MACHINES["avx512"]
    n, d = (tirx.Cast("int32", tirx.Var(name, "int64")) for name in "nd")
    images = d * n + n * 2
    x, w = te.placeholder((images, 4, 9, 11), name="x"), te.placeholder((8, 4, 3), name="w")
    c, r = te.reduce_axis((0, 4), "c"), te.reduce_axis((0, 3), "r")
    y = te.compute(
        (images, 8, 9, 9), lambda i, f, a, b: te.sum(x[i, c, a, b + r] * w[f, c, r], [c, r]), name="y"
    )
    text = te.create_prim_func([x, w, y]).script()
    # A lifted function has the polynomial as it was found, TVM the product of its factors.
    stated = tvm.script.from_source(text.replace('(T.Cast("int32", d) + 2) * T.Cast("int32", n)', IMAGES))
    function = kernels.schedule(stated, 1 << 20, machine)
    assert "y_local" in function.script(), "it is in strips"
    open_loops = []

    def note(loop: tirx.For) -> tirx.For:
        if not isinstance(loop.extent, tirx.IntImm):
            open_loops.append(loop.kind)
        return loop

    tvm_ffi.structural_map(function.body, (tirx.For, note), order="post")
    assert open_loops == [tirx.ForKind.PARALLEL]
