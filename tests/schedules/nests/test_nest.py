"""Flat indices of nests, against NumPy's."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import tirx, topi, tvm
from hetero_tvm.schedules.nests.nest import loads_of, offset, substitute, unflatten
from hetero_tvm.schedules.nests.program import program_nests
from tests.schedules.cuda.programs import program, tensor


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 7, 1, 2), (6,), (1, 1), ()])
def test_flat_indices(shape):
    axes = tuple((tvm.ir.Var(f"i{n}", tvm.ir.PrimType("int32")), extent) for n, extent in enumerate(shape))
    buffer = tirx.decl_buffer(shape, "float32")
    analyzer = tvm.sym.Analyzer()
    for flat in range(int(np.prod(shape))):
        values = unflatten(axes, tirx.const(flat, "int32"))
        index = [int(analyzer.simplify(values[variable])) for variable, _ in axes]
        assert index == list(np.unravel_index(flat, shape))
        place = substitute(offset(buffer, [variable for variable, _ in axes]), values)
        assert int(analyzer.simplify(place)) == flat


def test_producers_are_written_into_the_nest():
    x, bias = tensor("x", 5, 8), tensor("b", 8)
    nests = program_nests(program([x, bias], topi.nn.relu(topi.add(x, bias))))
    (nest,) = nests.nests
    assert nest.size == 40 and not nest.reduced and not nests.temporary
    assert {load.source.name for load, guarded in loads_of(nest.value) if not guarded} == {"x", "b"}


def test_loads_behind_a_condition_are_marked():
    x = tensor("x", 5, 8)
    (nest,) = program_nests(program([x], topi.nn.pad(x, [1, 0], [0, 0]))).nests
    assert [guarded for _, guarded in loads_of(nest.value)] == [True]
