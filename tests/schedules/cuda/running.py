"""Compile scheduled kernels for the emulated GPU and run them on arrays."""

from __future__ import annotations

import numpy as np

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from hetero_tvm.targets.base import parse_target  # noqa: E402
from hetero_tvm.targets.cuda import codegen  # noqa: E402
from tests.targets.cuda.conftest import compiler, emulated  # noqa: E402, F401

TARGET = parse_target("cuda:sm_80")
MACHINE = TARGET.machine


def compiled(functions, target=TARGET) -> list:
    """Callables ``(arrays, outputs) -> outputs``, one per scheduled PrimFunc; all in one module."""
    module = tvm.IRModule(
        {
            f"f{i}": target.stamp(function).with_attr("global_symbol", f"f{i}")
            for i, function in enumerate(functions)
        }
    )
    library = codegen.compile_kernels(module, target.tvm_target)
    device = tvm.cuda(0)

    def caller(name):
        def call(arrays, outputs):
            results = [tvm.runtime.tensor(array, device) for array in outputs]
            library[name](*(tvm.runtime.tensor(np.array(a, order="C"), device) for a in arrays), *results)
            return [result.numpy() for result in results]

        return call

    return [caller(f"f{i}") for i in range(len(module.functions))]
