"""Programs recovered from TensorIR."""

import math

import pytest

from hetero_tvm.host.tvm import te, topi
from hetero_tvm.schedules.npu.tensor_program.index import NotAffineError
from hetero_tvm.schedules.npu.tensor_program.recover import recover, results
from hetero_tvm.schedules.npu.tensor_program.stages import Gather, Map, Product

F = "float32"


def function(specs, build):
    placeholders = [te.placeholder(shape, dtype, f"A{n}") for n, (shape, dtype) in enumerate(specs)]
    built = build(*placeholders)
    return te.create_prim_func([*placeholders, *(built if isinstance(built, list) else [built])])


def kinds(program):
    return [type(stage) for stage in program.stages]


def test_element_wise_steps_are_computed_where_they_are_used():
    program = recover(function([((4, 9), F)], lambda x: topi.tanh(x * 2.0 + 1.0)))
    assert kinds(program) == [Map] and not program.scratch


def test_a_reduction_gets_a_tensor_of_its_own():
    program = recover(function([((4, 9), F)], lambda x: topi.exp(topi.sum(x, 1, keepdims=True)) * x))
    assert [stage.reduce for stage in program.stages] == ["sum", ""]
    (scratch,) = (program.buffers[n] for n in program.scratch)
    assert math.prod(scratch.shape) == 4 and scratch.wide


def test_products_of_matrices_are_products_and_others_are_sums():
    both = [((1, 5, 7), F), ((1, 3, 7), F)]
    assert kinds(recover(function(both, topi.nn.batch_matmul))) == [Product]
    same = recover(function([((5, 7), F)], lambda x: topi.sum(x * x, 1)))
    assert kinds(same) == [Map] and same.stages[0].reduce == "sum"


def test_positions_cut_a_stage_into_boxes_that_cover_the_result():
    specs = [((2, 3, 5), F), ((2, 4, 5), F)]
    program = recover(function(specs, lambda *x: topi.concatenate(x, 1)))
    covered = []
    for stage in program.stages:
        assert stage.value.buffer in (0, 1)
        places = [stage.out.base]
        for extent, stride in zip(stage.extents, stage.out.strides, strict=True):
            places = [place + i * stride for place in places for i in range(extent)]
        covered += places
    assert sorted(covered) == list(range(2 * 7 * 5))


def test_equal_lookups_are_gathered_once():
    def twice(table, i):
        rows = topi.take(table, i, 0, mode="wrap")
        return rows + topi.take(table, i, 0, mode="wrap") * 2.0

    program = recover(function([((11, 9), F), ((7,), "int64")], twice))
    assert kinds(program) == [Gather, Map]
    gather = program.stages[0]
    assert (gather.rows, gather.pitch, gather.run, gather.count) == (11, 9, 9, 7)


def test_results_are_counted():
    assert results(function([((4,), F)], lambda x: x + 1.0)) == 1
    assert results(function([((4,), F)], lambda x: [x + 1.0, x * 2.0])) == 2


@pytest.mark.parametrize(
    "specs, build, reason",
    [
        ([((2, 9), F)], lambda x: topi.argmax(x, 1), "no chain of loops"),
        ([((2, 9), "float64")], lambda x: x + 1.0, "the vector unit has no float64"),
        ([((2, 9), F)], lambda x: topi.atan(x), "no atan"),
        ([((9,), F)], lambda x: te.compute((9,), lambda i: x[i] + i.astype(F)), "computes with positions"),
        ([((5, 9), F), ((5, 9), "int32")], lambda x, i: topi.gather(x, 1, i), "share an axis"),
    ],
)
def test_what_the_machine_cannot_do_is_named(specs, build, reason):
    with pytest.raises(NotAffineError, match=reason):
        recover(function(specs, build))
