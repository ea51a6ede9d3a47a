"""Prefetch across products: on its last weight panel, a product fetches the first panel of the next one.

Inside a product every panel but the first is prefetched while the one before it is used (see
``schedules/cpu/products/matmul.py``); the first panel comes cold from memory, for every weight matrix is read
once per inference.  The matrices are constants, so the next one is known: it becomes one more
operand of the kernel, whose last prefetches, which have no panel of their own left, go there.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import (
    Buffer,
    Call,
    Expr,
    GlobalVar,
    IRModule,
    PrimFunc,
    Stmt,
    relax,
    tirx,
    tvm,
    tvm_ffi,
)
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir
from hetero_tvm.schedules.cpu.products.matmul_kernel import PANEL_ATTR
from hetero_tvm.schedules.emit import prefetch


def prefetch_ahead(module: IRModule) -> IRModule:
    """Give every prefetching kernel of ``main`` the weight of the next one as an operand."""
    main = module["main"]
    everything = [binding for block in main.body.blocks for binding in block.bindings]
    calls = [b for b in everything if is_call_tir(b.value) and _weight_index(module, b.value) is not None]
    if len(calls) < 2:
        return module
    following = {b.var: after.value for b, after in zip(calls, calls[1:], strict=False)}
    builder = relax.BlockBuilder(module)
    made: dict[tuple[GlobalVar, tuple[int, ...]], GlobalVar] = {}
    bindings = []
    for binding in everything:
        if binding.var in following:
            call, after = binding.value, following[binding.var]
            weight = after.args[1].fields[_weight_index(module, after)]
            name = call.args[0]
            key = name, tuple(int(extent) for extent in weight.ty.shape)
            if key not in made:
                function = _linked(module[name], _weight_index(module, call), key[1])
                made[key] = builder.add_func(function, name.name_hint)
            operands = [*call.args[1].fields, weight]
            value = builder.normalize(relax.call_tir(made[key], operands, out_ty=binding.var.ty))
            binding = relax.VarBinding(binding.var, value)
        bindings.append(binding)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], main.body.body)
    module = builder.get().clone()
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    module.update_func(module.get_global_var("main"), function)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])(
        module
    )


def _weight_index(module: IRModule, call: Call) -> int | None:
    """Index of the operand that is prefetched panel by panel, each thread going through all panels."""
    index = module[call.args[0]].attrs.get(PANEL_ATTR)
    return None if index is None else int(index)


def _linked(function: PrimFunc, index: int, shape: tuple[int, ...]) -> PrimFunc:
    """The kernel with one more operand of ``shape``, into which it prefetches past its last panel."""
    weight = function.params[index]
    ahead = tirx.decl_buffer(shape, weight.dtype, name="W_next")
    columns = int(weight.shape[-1])
    last = shape[1] * shape[2] - 1

    def redirect(statement: tirx.Evaluate) -> Stmt:
        call = statement.value
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "tirx.call_llvm_intrin":
            return statement
        at = next((i for i, arg in enumerate(call.args) if _loads(arg, weight)), None)
        if at is None:
            return statement
        panel, row, column = call.args[at].args[0].indices
        place = tirx.min(row * columns + column, tirx.const(last, "int32"))
        there = ahead[0, tirx.floordiv(place, shape[2]), tirx.floormod(place, shape[2])]
        other = tirx.Evaluate(prefetch(tirx.call_intrin("handle", "tirx.address_of", there)))
        return tirx.IfThenElse(panel.a > panel.b, other, statement)

    body = tvm_ffi.structural_map(function.body, (tirx.Evaluate, redirect))
    params = [*function.params[:-1], ahead, function.params[-1]]
    result = tirx.PrimFunc(params, body)
    for name, value in dict(function.attrs).items():
        result = result.with_attr(name, value)
    return result


def _loads(address: Expr, buffer: Buffer) -> bool:
    """Whether ``address`` is that of an element of ``buffer``."""
    return (
        isinstance(address, tvm.ir.Call)
        and isinstance(address.op, tvm.ir.Op)
        and address.op.name == "tirx.address_of"
        and address.args[0].source.same_as(buffer)
    )
