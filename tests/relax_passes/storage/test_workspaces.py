"""Scratch memory of kernels and of external functions lies in the arena."""

from __future__ import annotations

import numpy as np

from hetero_tvm.codegen.pipeline import STACK_LIMIT
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.host.tvm import script_I as I
from hetero_tvm.host.tvm import script_R as R
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.plan_memory import plan_memory
from hetero_tvm.schedules.emit import Kernel
from tests.relax_passes.graphs import weights
from tests.relax_passes.storage.lowered import allocations, finish, machine, tensors
from tests.relax_passes.storage.test_live_ranges import explicit


@I.ir_module
class External:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        with R.dataflow():
            a = R.call_dps_packed("hetero_tvm_test.scale", (x,), out_ty=R.Tensor((8,), "float32"))
            b = R.call_dps_packed("hetero_tvm_test.scale", (a,), out_ty=R.Tensor((8,), "float32"))
            c = R.call_dps_packed("hetero_tvm_test.scale", (b,), out_ty=R.Tensor((8,), "float32"))
            R.output(c)
        return c


def test_external_functions_get_their_workspace_from_the_arena():
    seen = []

    @tvm.register_global_func("hetero_tvm_test.scale", override=True)
    def scale(x, y, workspace):
        seen.append((str(workspace.dtype), workspace.shape[0]))
        y.copyfrom(x.numpy() * 2)

    mod = External.with_attr("hetero_tvm.workspaces", {"hetero_tvm_test.scale": 1000})
    lowered, plan = plan_memory(explicit(mod))
    plan.verify()
    (arena,) = plan.arenas
    assert [t.nbytes for t in arena.tensors if t.workspace] == [1000] * 3
    assert plan.peak == 1000 + 24 + 64 + 32  # a and b at 64 bytes each, and one workspace at a time
    assert not plan.in_place  # nothing is known of what an external function reads when
    x = weights(8)
    np.testing.assert_array_equal(machine(finish(lowered))["main"](*tensors(x)).numpy(), x * 8)
    assert seen == [("uint8", 1000)] * 3


def test_large_scratch_of_kernels_is_planned():
    k = Kernel()
    with k:
        x, y = k.argument("x", (STACK_LIMIT,)), k.argument("y", (STACK_LIMIT,))
        scratch = k.scratch((STACK_LIMIT,))
        with k.parallel(STACK_LIMIT) as i:
            k.store(scratch, k.load(x, [i]) * 3.0, [i])
        with k.parallel(STACK_LIMIT) as i:
            k.store(y, k.load(scratch, [STACK_LIMIT - 1 - i]), [i])
    builder = relax.BlockBuilder()
    ty = relax.TensorType((STACK_LIMIT,), "float32")
    variable = relax.Var("x", ty)
    with builder.function("main", [variable]):
        with builder.dataflow():
            function = builder.add_func(k.function.without_attr("global_symbol"), "turn")
            first = builder.emit(relax.call_tir(function, [variable], out_ty=ty))
            second = builder.emit_output(builder.emit(relax.call_tir(function, [first], out_ty=ty)))
        builder.emit_func_output(second)
    lowered, plan = lower(builder.get())
    plan.verify()
    size = 4 * STACK_LIMIT
    # The first call writes to the memory of the result already, which the second one turns in place.
    assert [t.nbytes for t in plan.arenas[0].tensors if t.workspace] == [size, size]
    assert plan.peak == size and len(plan.in_place) == 1 and not plan.stack
    data = weights(STACK_LIMIT)
    vm = machine(lowered)
    np.testing.assert_allclose(vm["main"](*tensors(data)).numpy(), data * 9, rtol=1e-6)
    assert sum(allocations(vm, tensors(data))) == plan.peak + plan.outputs
