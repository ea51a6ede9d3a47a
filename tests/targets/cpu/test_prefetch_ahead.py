"""The weight of the next product as an operand: same numbers, and only where each thread sees all panels."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import PIPELINE
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.schedules.cpu.products.matmul import MatmulSpace
from hetero_tvm.schedules.cpu.products.matmul_kernel import PANEL_ATTR
from hetero_tvm.targets.cpu.prefetch_ahead import prefetch_ahead
from hetero_tvm.targets.cpu.target import CpuTarget
from tests.relax_passes.graphs import relax, tvm, weights

SPACE = MatmulSpace()
TARGET = CpuTarget(threads=2)
SIZES = ((32, 24, 40), (32, 40, 72), (32, 72, 40))
"""(M, K, N) of a chain of products; several panels each at one vector per tile."""


def chain(row_blocks, prefetch=1):
    """x -> three products; the module and what it should give."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 24), "float32"))
    arrays = []
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for m, k, n in SIZES:
                op = Matmul((m,), n, k)
                point = {"tile": (4, 1), "row_blocks": row_blocks, "unroll": 4, "prefetch": prefetch}
                kernel = SPACE.emit(op, point, TARGET.machine).without_attr("global_symbol")
                arrays.append(weights(k, n))
                packed = SPACE.pack(op, point, TARGET.machine)[1](arrays[-1])
                name = builder.add_func(kernel, op.label)
                call = relax.call_tir(
                    name, [value, relax.const(packed)], out_ty=relax.TensorType((m, n), "float32")
                )
                value = builder.emit(call)
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get(), arrays


def calls(module):
    bindings = [b for block in module["main"].body.blocks for b in block.bindings]
    return [b.value for b in bindings if isinstance(b.value, tvm.ir.Call)]


def run(module, x):
    executable = relax.build(lower(module)[0], TARGET.tvm_target, relax_pipeline=None, tir_pipeline=PIPELINE)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def test_the_next_weight_is_an_operand_and_numbers_stay():
    before, arrays = chain(row_blocks=2)
    after = prefetch_ahead(before)
    relax.analysis.well_formed(after)
    plain, linked = calls(before), calls(after)
    assert [len(call.args[1].fields) for call in linked] == [3, 3, 2]
    for call, following in zip(linked, plain[1:], strict=False):
        assert call.args[1].fields[2].same_as(following.args[1].fields[1])
    assert "W_next" in after[linked[0].args[0]].script() and "W_next" not in after[linked[2].args[0]].script()
    x = weights(32, 24, seed=1)
    wanted = x.astype("float64")
    for array in arrays:
        wanted = wanted @ array
    # two roundings per accumulated term, three products deep
    np.testing.assert_allclose(run(after, x), wanted, rtol=0, atol=1e-5 * abs(wanted).max())
    np.testing.assert_array_equal(run(after, x), run(before, x))


@pytest.mark.parametrize(("row_blocks", "prefetch"), [(1, 1), (2, 0)])
def test_kernels_without_a_walk_over_all_panels_stay_as_they_are(row_blocks, prefetch):
    """With columns split among threads, a thread's next panel is another one than the first."""
    before, _ = chain(row_blocks, prefetch)
    assert all(PANEL_ATTR not in before[call.args[0]].attrs for call in calls(before))
    after = prefetch_ahead(before)
    assert [len(call.args[1].fields) for call in calls(after)] == [2, 2, 2]
