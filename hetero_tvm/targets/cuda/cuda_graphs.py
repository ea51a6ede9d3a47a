"""CUDA graphs: runs of kernels between planned buffers are captured once and launched as one."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import GlobalVar, IRModule, relax, tvm
from hetero_tvm.relax_passes.rewriting.bindings import map_bindings
from hetero_tvm.runtime.cuda import devices as cuda_runtime

_CALL_BUILTIN = "relax.call_builtin_with_ctx"


@tvm.transform.module_pass(opt_level=0, name="hetero_tvm.UseCudaGraph")
def use_cuda_graph(module: IRModule, context: Any) -> IRModule:
    """Make CUDA graphs of the runs of kernels between planned buffers, captured at the first call.

    ``main`` stays beside it as ``main_eager``, kernel after kernel, for devices and users that cannot or
    will not capture; kernels and constants are shared.
    """
    eager = module["main"]
    config = {**dict(context.config), "relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
        module = relax.transform.RewriteCUDAGraph()(module)
    module = _with_results(module)
    if any("cuda_graph_capture" in variable.name_hint for variable in module.functions):
        name = "main" + cuda_runtime.EAGER
        module[GlobalVar(name)] = eager.with_attr("global_symbol", name)
    return module


def _with_results(module: IRModule) -> IRModule:
    """Let captured regions that only write to views of the arena return one of these views.

    The virtual machine cannot run a nested function without a result: it would write to its caller's
    void register.
    """
    types = {}
    for variable, function in list(module.functions.items()):
        if "cuda_graph_capture" not in variable.name_hint or len(function.ret_ty.fields):
            continue
        first = function.params[0]
        types[variable] = relax.TupleType([first.ty])
        body = relax.SeqExpr(function.body.blocks, relax.Tuple([first]))
        module[variable] = relax.Function(
            function.params, body, types[variable], function.is_pure, function.attrs
        )

    def each(binding: Any) -> list[Any]:
        call = binding.value
        if not isinstance(call, tvm.ir.Call) or str(getattr(call.op, "name", "")) != _CALL_BUILTIN:
            return [binding]
        captured = call.args[1].fields[0]
        if captured not in types:
            return [binding]
        typed = tvm.ir.Call(call.op, call.args, call.attrs, [types[captured]])
        return [relax.VarBinding(relax.Var(binding.var.name, types[captured]), typed)]

    for variable, function in list(module.functions.items()):
        if types and isinstance(function, relax.Function) and variable not in types:
            module[variable] = map_bindings(function, each)
    return relax.transform.Normalize()(module)
