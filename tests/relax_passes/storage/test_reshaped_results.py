"""Results that reshape what a kernel wrote are views; every other reshape of a result stays a copy."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.pipeline import lower, optimize
from hetero_tvm.relax_passes.rewriting.fused import contract_of, is_call_tir
from hetero_tvm.relax_passes.storage.reshaped_results import view_reshapes
from tests.plain import PLAIN
from tests.relax_passes.graphs import bindings, module, op


def kernels(mod):
    return sum(is_call_tir(binding.value) for binding in bindings(mod))


def kernel_then_view(emit, x):
    return emit(op.reshape(emit(op.sum(x, [1])), (6, 1)))


def kernel_then_first_row(emit, x):
    """The first row is read at the places of the whole: a cut all the same."""
    return emit(op.strided_slice(emit(op.sum(x, [1])), [0], [0], [1]))


CASES = {
    "the first row of a kernel's": (kernel_then_first_row, 2),
    "a kernel's": (kernel_then_view, 1),
    "the input's": (lambda emit, x: emit(op.reshape(x, (6, 4))), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_and_numbers(case):
    body, count = CASES[case]
    before = module({"x": (2, 4, 3)}, body)
    optimized, _, _ = optimize(before, {}, rules=())
    assert kernels(optimized) == count
    machine = relax.VirtualMachine(relax.build(lower(optimized)[0], PLAIN, relax_pipeline=None), tvm.cpu())
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)

    first, second = (machine["main"](tvm.runtime.tensor(array)) for array in (x, 2 * x))
    expected = {"the input's": x, "the first row of a kernel's": x.sum(1)[:1]}.get(case, x.sum(1)).ravel()
    # The second call wrote to memory of its own.
    np.testing.assert_allclose(first.numpy().ravel(), expected, rtol=1e-6)
    np.testing.assert_allclose(second.numpy().ravel(), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize("slices", [4, 5])
def test_windows_of_slices_stay_kernels_where_other_sizes_copy(slices):
    """Two slices by two, which are a view where there is no slice left over."""
    windows = SliceWindows(1, slices, 3, 2, 2, taps=2, step=2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(windows.inputs[0].shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            function = builder.add_func(windows.workload(), "windows")
            y = builder.emit(relax.call_tir(function, [x], relax.TensorType(windows.output.shape, "float32")))
            # A result of the model that is not the windows: those may be a view of the input.
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    before = builder.get()
    assert kernels(view_reshapes(before)) == slices % 2
    kept = view_reshapes(before, contracts=False)
    assert kernels(kept) == 1
    assert contract_of(kept["windows"]) == windows
    tvm.ir.assert_structural_equal(kept["windows"], before["windows"])
