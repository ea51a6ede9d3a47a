"""What candidates of a task share: operands, the reference, and what counts as a fault."""

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.integers.bf16_attention import Bf16Attention
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.search.measure.prepared import Prepared, blank, fault_of, joined, tolerance_of
from hetero_tvm.search.measure.service import contract_spec, generic_spec, wire_task
from hetero_tvm.targets.cpu.tuner import GENERIC
from hetero_tvm.targets.registry import parse_target
from tests.search.spaces import generic_task

MACHINE = parse_target("cpu").machine


def prepared(spec, seed=0, scratch=None):
    return Prepared(wire_task(spec, MACHINE, MACHINE.codegen_target(), seed), scratch)


def test_what_rounds_between_its_steps_may_differ_by_that():
    plain = Attention(1, 2, 20, 30, 16, 0.25, 2)
    assert tolerance_of(Bf16Attention.of(plain), MACHINE) > 2**-8 > 10 * tolerance_of(plain, MACHINE)


@pytest.fixture(scope="module")
def op():
    return Matmul((6,), 24, 40)


def test_the_reference_is_float64_arithmetic_on_the_operands(op):
    task = prepared(contract_spec(op, MatmulSpace()))
    x, w = (array.astype(np.float64) for array in task.arrays)
    # Rounded to float32 once: half a unit in the last place of values up to about 20.
    assert np.allclose(task.reference, x @ w, rtol=1e-6, atol=1e-6)
    assert task.constant == [False, True] and task.tensors[1] is None


def test_seeds_decide_the_operands_and_a_reference_is_kept(op, tmp_path):
    spec = contract_spec(op, MatmulSpace())
    first, again = prepared(spec, 1, tmp_path), prepared(spec, 1, tmp_path)
    other = prepared(spec, 2, tmp_path)
    assert np.array_equal(first.arrays[0], again.arrays[0]) and len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(first.reference, again.reference)
    assert not np.array_equal(first.reference, other.reference)


def test_constants_are_packed_for_each_candidate(op):
    task = prepared(contract_spec(op, MatmulSpace()))
    point = dict(task.space.default(task.op, MACHINE))
    packed = task.packed({"point": point})
    assert list(packed) == [1] and packed[1].flags.c_contiguous
    expected = task.space.pack(task.op, point, MACHINE)[1](task.arrays[1])
    assert np.array_equal(packed[1], expected)


def test_generic_tasks_wait_for_the_result_of_the_plain_workload():
    workload = generic_task(4, 16).workload
    task = prepared(generic_spec(workload, GENERIC))
    assert task.kernel({"plain": True}).same_as(task.workload)
    assert task.kernel({"generic": True}) is not None
    task.reference[:] = 3.0  # shared memory: children that are forked later read it
    assert np.frombuffer(task.shared, task.reference.dtype, count=task.reference.size)[0] == 3.0


def test_nan_where_nothing_was_written_is_a_fault():
    result, truth = blank((2, 3), "float32"), np.ones((2, 3))
    assert np.isnan(result).all() and fault_of(result, truth, None, 1e-4) is not None
    result[:] = 1.0
    assert fault_of(result, truth, None, 1e-4) is None
    result[1, 2] = 1.01
    assert "largest error 0.01 where values reach 1" in fault_of(result, truth, None, 1e-4)


def test_the_tolerance_is_relative_to_the_largest_value():
    truth = np.array([1000.0, 0.0])
    assert fault_of(truth + 0.05, truth, None, 1e-4) is None
    assert fault_of(truth + 0.2, truth, None, 1e-4) is not None
    assert fault_of(truth + 0.2, truth, 1e6, 1e-4) is None


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8"])
def test_truth_values_and_numbers_without_a_sign_are_compared(dtype):
    result, reference = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
    assert fault_of(reference.copy(), reference, None, 1e-4) is None
    for pair in ((result, reference), (reference, result)):
        assert "largest error 1 " in fault_of(*pair, None, 1e-4)


def test_several_results_are_compared_behind_one_another():
    assert joined([np.ones((2, 2))]).shape == (2, 2)
    assert np.array_equal(joined([np.zeros((1, 2)), np.ones(3)]), [0, 0, 1, 1, 1])
