"""C identifiers for buffers that have the names of a model's nodes."""

from __future__ import annotations

import re

from hetero_tvm.host.tvm import PrimFunc, Var, tvm, tvm_ffi


def with_c_names(function: PrimFunc) -> PrimFunc:
    """Rename buffers and variables of ``function`` that CUDA C++ cannot name; TVM keeps the model's names."""
    renamed: dict[Var, Var] = {}

    def rename(var: Var) -> Var:
        if re.fullmatch(r"[A-Za-z]\w*", var.name):
            return var
        if var not in renamed:
            renamed[var] = tvm.ir.Var(f"b{len(renamed)}_" + re.sub(r"\W+", "_", var.name).strip("_"), var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(function, (tvm.ir.Var, rename))
