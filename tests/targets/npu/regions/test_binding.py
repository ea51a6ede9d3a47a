"""Offsets in L1: whatever is live at once lies apart and within the memory."""

import dataclasses

import numpy as np
import pytest

from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.regions.binding import (
    CONSTANTS,
    IN_L1,
    IN_UB,
    Call,
    L1Full,
    Tensor,
    plan_l1,
    plan_ub,
)
from hetero_tvm.targets.npu.regions.codegen import Program

SPEC = NPUSpec.preset("edge")
L1 = SPEC.scratchpad("l1")


def calls_of(needs, tensors):
    """Kernels with parts of L1 of these sizes; ``tensors``: (first kernel, last kernel, bytes)."""
    calls = [Call(Program([], {"l1": size}, 0), [], f"kernel{n}") for n, size in enumerate(needs)]
    for first, last, size in tensors:
        tensor = Tensor(IN_L1, size)
        for n in (first, last):
            tensor.touch(n)
            calls[n].tensors.append(tensor)
    return calls


def intervals(calls, plan):
    """(first step, last step, first byte, one past the last) of tensors and of the kernels' own parts."""
    held = {id(t): t for call in calls for t in call.tensors}.values()
    found = [(t.first, t.last, t.offset, t.offset + t.bytes) for t in held]
    for n, call in enumerate(calls):
        part = plan.parts[n]
        found.append((n - plan.early[n], n, part, part + call.program.needs["l1"]))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_live_bytes_lie_apart(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    needs = [int(n) for n in rng.integers(0, L1 // 3, count)]
    tensors = []
    for _ in range(int(rng.integers(1, 6))):
        first, last = sorted(int(n) for n in rng.integers(0, count, 2))
        tensors.append((first, last, int(rng.integers(1, L1 // 8))))
    calls = calls_of(needs, tensors)
    plan = plan_l1(calls, SPEC)
    found = intervals(calls, plan)
    for n, (a, z, low, high) in enumerate(found):
        assert low % SPEC.alignment == 0 and 0 <= low and high <= plan.peak <= L1
        for b, y, other_low, other_high in found[:n]:
            if a <= y and b <= z and low < high and other_low < other_high:
                assert high <= other_low or other_high <= low


def test_a_kernel_owns_its_part_early_only_where_both_fit():
    third = L1 // 3 // SPEC.alignment * SPEC.alignment
    plan = plan_l1(calls_of([third, third, third], []), SPEC)
    assert plan.early == [False, True, True] and plan.peak == 2 * third
    plan = plan_l1(calls_of([third, L1 - third // 2, third], []), SPEC)
    assert plan.early == [False, False, False]
    assert plan_l1(calls_of([third, third, third], []), SPEC, early=False).early == [False] * 3


def test_what_does_not_fit_is_refused():
    with pytest.raises(L1Full, match=f"{SPEC.name} has {L1}"):
        plan_l1(calls_of([L1 // 2, L1 // 2], [(0, 1, L1 // 2 + SPEC.alignment)]), SPEC)


def test_vectors_in_the_unified_buffer_share_bytes_over_time():
    calls = [Call(Program([], {}, 0), [], f"kernel{n}") for n in range(4)]
    vectors = []
    for first, last in ((0, 1), (1, 2), (2, 3)):
        vectors.append(Tensor(IN_UB, 1024))
        for n in (first, last):
            vectors[-1].touch(n)
            calls[n].tensors.append(vectors[-1])
    assert plan_ub(calls, 2048, SPEC.alignment) == 2048
    assert vectors[0].offset != vectors[1].offset != vectors[2].offset
    with pytest.raises(L1Full):
        plan_ub(calls, 2047, SPEC.alignment)


def test_constants_decide_whether_a_kernel_streams():
    program = Program([], {}, 0)
    few, many = Tensor(CONSTANTS, 1000), Tensor(CONSTANTS, 1 << 16)
    assert not Call(program, [few, dataclasses.replace(many, slot=5)], "few").streams
    assert Call(program, [few, many], "many").streams
