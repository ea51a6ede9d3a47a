"""Compilation of a model's kernels in parts, on all cores: LLVM takes one module on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero_tvm.host.side_by_side import side_by_side
from hetero_tvm.host.tvm import Executable, IRModule, TVMTarget, relax, tvm

_PARTS = 8
"""Parts of a model of many kernels, whatever the machine has: the library is the same everywhere."""

_LEAST = 4
"""Kernels of a part."""


def build_in_parts(
    module: IRModule, target: TVMTarget, pipeline: str, beside: Sequence[Any] = ()
) -> Executable:
    """Compile a module as ``relax.build`` does, its kernels in parts side by side.

    A part is an LLVM module, with its own copies of the functions that kernels import.  ``beside``: compiled
    modules that are linked too.
    """
    attrs = dict(module.attrs or {})
    libraries = [*attrs.get("external_mods", []), *beside]
    constants = dict(attrs.get("const_name_to_constant", {}))
    builder = relax.ExecBuilder()
    kernels = relax.vm_build._filter_tir(relax.vm_build._vmcodegen(builder, module, "bytecode"))
    first = None
    if kernels is not None:
        parts = [tvm.IRModule(part, attrs=kernels.attrs) for part in _shared_out(kernels)]
        first, *others = side_by_side(lambda part: tvm.tirx.build(part, target, pipeline), parts)
        libraries += others
    return Executable(relax.vm_build._ffi_api.VMLink(builder, target, first, libraries, constants))


def _shared_out(kernels: IRModule) -> list[dict[Any, Any]]:
    """Functions of each part."""
    functions = sorted(kernels.functions.items(), key=lambda item: item[0].name_hint)
    count = max(1, min(_PARTS, len(functions) // _LEAST))
    return [dict(functions[number::count]) for number in range(count)]
