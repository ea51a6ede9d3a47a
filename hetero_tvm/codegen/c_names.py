"""Names that a C compiler takes, for buffers that are called as the nodes of a model are."""

from __future__ import annotations

import re
from typing import Any

from hetero_tvm.host.tvm import tvm, tvm_ffi


def with_c_names(function: Any) -> Any:
    """The function with buffers that CUDA C++ can name; TVM uses the names of the model as they are."""
    renamed: dict[Any, Any] = {}

    def rename(var: Any) -> Any:
        if re.fullmatch(r"[A-Za-z]\w*", var.name):
            return var
        if var not in renamed:
            renamed[var] = tvm.ir.Var(f"b{len(renamed)}_" + re.sub(r"\W+", "_", var.name).strip("_"), var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(function, (tvm.ir.Var, rename))
