"""Code generation of this target: every kernel counts its calls."""

from __future__ import annotations

from pathlib import Path

from hetero_tvm.codegen.pipeline import PIPELINE
from hetero_tvm.host.tvm import Executable, IRModule, relax, tirx, tvm
from hetero_tvm.schedules.driver import Driver

COUNTERS = Driver((Path(__file__).with_name("counters.cc"),), ("fourth_count", "fourth_calls"))


def compile_counting(module: IRModule, target: tvm.target.Target) -> tuple[Executable, list[str]]:
    """The executable, and the names of its kernels in the order of their counters."""
    names = []
    functions = {}
    for variable, function in module.functions.items():
        if isinstance(function, tirx.PrimFunc):
            count = tvm.tirx.call_extern("int32", "fourth_count", tirx.const(len(names), "int32"))
            function = function.with_body(tirx.SeqStmt([tirx.Evaluate(count), function.body]))
            names.append(variable.name_hint)
        functions[variable] = function
    given = (module.attrs or {}).get("external_mods", [])
    counted = tvm.IRModule(functions, attrs=module.attrs).with_attr(
        "external_mods", [*given, COUNTERS.module()]
    )
    return relax.build(counted, target, relax_pipeline=None, tir_pipeline=PIPELINE), names
