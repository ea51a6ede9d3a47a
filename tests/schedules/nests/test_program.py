"""Nests of functions of many blocks."""

from hetero_tvm.host.tvm import Schedule, te, topi
from hetero_tvm.schedules.cpu import generic
from hetero_tvm.schedules.nests.program import nests_of
from tests.schedules.cpu.running import MACHINES


def test_results_of_one_input_are_not_tried_as_producers(monkeypatch):
    """A split into hundreds of parts took minutes: TVM looks at all blocks before it says no."""
    x = te.placeholder((8, 4), "float32")

    def row(n):
        return lambda i, j: x[i + n, j]

    parts = [te.compute((1, 4), row(n)) for n in range(8)]
    function = te.create_prim_func([x, *parts])
    tried = []
    for way in ("compute_inline", "reverse_compute_inline"):
        monkeypatch.setattr(Schedule, way, lambda schedule, block, way=way: tried.append(way))
    assert len(nests_of(function).nests) == 8
    generic.schedule(function, MACHINES["avx2"])
    assert tried == []


def test_nests_of_one_function_are_sought_once():
    x = te.placeholder((4, 8), "float32")
    function = te.create_prim_func([x, topi.add(x, 1.0)])
    assert nests_of(function) is nests_of(function)
