"""Kernels that only reshape what another wrote become views of it instead of copies."""

from __future__ import annotations

import math

from hetero_tvm.host.tvm import IRModule, PrimFunc, relax, s_tir, tirx, tvm
from hetero_tvm.relax_passes.rewriting.fused import contract_of
from hetero_tvm.relax_passes.rewriting.graph import shape_of


def view_reshapes(module: IRModule, contracts: bool = True) -> IRModule:
    """``y = reshape kernel(x)`` -> ``y`` as a view of ``x``, results of the model among them.

    ``contracts`` : kernels of fused operators too.  Such a kernel may only reshape at one size and copy at
    others (windows of slices, where their step divides a volume); one program for all sizes keeps it.
    """
    kept = {}
    if not contracts:
        module = tvm.IRModule(module.functions, attrs=module.attrs, global_infos=module.global_infos)
        functions = {variable: module[variable] for variable in module.get_global_vars()}
        kept = {
            variable: function
            for variable, function in functions.items()
            if isinstance(function, PrimFunc) and contract_of(function) is not None
        }
    nothing = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", tirx.Evaluate(0)))
    for variable, function in kept.items():  # without its loops nothing takes it for a reshape
        module.update_func(variable, function.with_body(nothing))
    module = view_results(relax.transform.RewriteDataflowReshape()(module))
    for variable, function in kept.items():
        module.update_func(variable, function)
    return module


def view_results(module: IRModule) -> IRModule:
    """``y = kernel(..); result = reshape kernel(y)`` -> ``result`` as a view of ``y``.

    TVM's own ``RewriteDataflowReshape``, after which this runs, leaves results alone, as they could share
    memory with an input or with one another.  So a tensor that a kernel has just made, and that nobody else
    reads, is viewed here and nothing else.
    """
    main, builder = module["main"], relax.BlockBuilder(module)
    made, readers = {}, {}
    for block in main.body.blocks:
        for binding in block.bindings:
            made[binding.var] = binding.value
            for var in {*relax.analysis.free_vars(binding.value)}:
                readers[var] = readers.get(var, 0) + 1
    for var in {*relax.analysis.free_vars(main.body.body)}:
        readers[var] = readers.get(var, 0) + 1

    def viewed(binding: relax.Binding) -> relax.Binding:
        source = _reshaped(module, binding.value)
        if source is None or readers.get(source) != 1 or not _is_kernel(made.get(source)):
            return binding
        return relax.VarBinding(
            binding.var, builder.normalize(relax.op.reshape(source, binding.var.ty.shape))
        )

    blocks = [type(block)([viewed(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    module = tvm.IRModule(module.functions, attrs=module.attrs, global_infos=module.global_infos)
    module.update_func(module.get_global_var("main"), function)
    return relax.transform.Normalize()(module)


def _is_kernel(value: relax.Expr | None) -> bool:
    return isinstance(value, relax.Call) and value.op == _CALL_TIR and isinstance(value.ty, relax.TensorType)


def _reshaped(module: IRModule, value: relax.Expr) -> relax.Var | None:
    """The variable that ``value`` copies in another shape; None for anything else."""
    if not _is_kernel(value) or not relax.analysis.has_reshape_pattern(module[value.args[0]]):
        return None
    operands = list(value.args[1].fields)
    if len(operands) != 1 or not isinstance(operands[0], relax.Var):
        return None
    # The first rows of a tensor are read at the same places as the whole of it.
    same_size = math.prod(shape_of(operands[0])) == math.prod(int(extent) for extent in value.ty.shape)
    return operands[0] if same_size else None


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
