"""Kernels whose result is an operand: the caller's memory is written, and nothing is allocated or copied."""

import numpy as np

from hetero_tvm.compile.dynamic.steps import append_kernel
from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.storage.written_over import WRITES_OVER
from tests.relax_passes.storage.lowered import allocations, legal, machine, tensors


def module(read_twice):
    """Two rows behind five of a buffer of nine; the result is the sum of the seven, once or twice."""
    builder = relax.BlockBuilder()
    kernel = builder.add_func(append_kernel([9, 4], [2, 4], axis=0, past=5, dtype="float32"), "append")
    buffer = relax.Var("buffer", relax.TensorType((9, 4), "float32"))
    new = relax.Var("new", relax.TensorType((2, 4), "float32"))
    with builder.function("main", [buffer, new]):
        with builder.dataflow():
            appended = builder.emit(relax.call_tir(kernel, [buffer, new], out_ty=buffer.ty))
            front = builder.emit(relax.op.strided_slice(appended, [0], [0], [7]))
            total = builder.emit(relax.op.sum(front, axis=[0]))
            if read_twice:
                total = builder.emit(relax.op.add(total, relax.op.sum(appended, axis=[0])))
            result = builder.emit_output(total)
        builder.emit_func_output(result)
    return builder.get()


def test_the_operand_is_written_in_place():
    for read_twice in (False, True):
        lowered, plan = lower(legal(module(read_twice)))
        vm = machine(lowered)
        buffer = np.arange(36, dtype=np.float32).reshape(9, 4)
        given, new = tensors(buffer, np.full((2, 4), 100, np.float32))
        address = given.data_ptr()
        result = vm["main"](given, new).numpy()
        wanted = buffer.copy()
        wanted[5:7] = 100
        assert given.data_ptr() == address
        np.testing.assert_array_equal(given.numpy(), wanted)
        np.testing.assert_array_equal(result, wanted[:7].sum(0) + read_twice * wanted.sum(0))
        assert not any(t.kernel.startswith("append") for arena in plan.arenas for t in arena.tensors)
        assert sum(allocations(vm, (given, new))) < 9 * 4 * 4 * 3  # the front and the sums, no second buffer


def test_the_kernel_says_so_until_memory_is_planned():
    kernel = append_kernel([9, 4], [2, 4], axis=0, past=5, dtype="float32")
    assert int(kernel.attrs[WRITES_OVER]) == 0
    lowered, _ = lower(legal(module(False)))
    functions = {v.name_hint: f for v, f in lowered.functions.items()}
    used = [f for name, f in functions.items() if name.startswith("append") and len(f.params) == 2]
    assert len(used) == 1
