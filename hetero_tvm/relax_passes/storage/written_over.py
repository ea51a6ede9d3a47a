"""Kernels whose result is one of their operands, changed: a state of the caller's that is kept in place.

Such a kernel writes a part of its result and says with :data:`WRITES_OVER` that the rest is what the operand
holds: both are the same memory, whoever owns it.  Until memory is planned it is a kernel like any other, so
no pass needs to know of it; nobody may read the operand beside the kernel.
"""

from __future__ import annotations

from hetero_tvm.host.tvm import GlobalVar, IRModule, PrimFunc, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.bindings import map_bindings
from hetero_tvm.relax_passes.storage.in_place import variant

WRITES_OVER = "hetero_tvm.writes_over"
"""Attribute of a kernel: the number of the operand that its result is."""
PLACES = "hetero_tvm.places"
"""Attribute of a kernel that writes at computed places: the number of the operand that tells them, and of
each column of it the first valid place and the one behind the last."""


@tvm.transform.module_pass(opt_level=0, name="hetero_tvm.WriteOver")
def write_over(module: IRModule, _context: object) -> IRModule:
    """Give such kernels their operand to write to, instead of a result (after ``CallTIRRewrite``)."""
    main = module["main"]
    owners: dict[Var, relax.Expr] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            if (place := _written(module, binding.value)) is not None:
                owners[binding.value.args[-1]] = binding.value.args[place]
    if not owners:
        return module
    builder = relax.BlockBuilder(module.clone())
    variants: dict[GlobalVar, GlobalVar] = {}

    def each(binding: relax.Binding) -> list[relax.Binding]:
        if binding.var in owners:
            return [relax.VarBinding(binding.var, owners[binding.var])]
        value = binding.value
        if (place := _written(module, value)) is None:
            return [binding]
        if value.op not in variants:
            function = module[value.op]
            changed = variant(function, {len(function.params) - 1: place}).without_attr(WRITES_OVER)
            variants[value.op] = builder.add_func(changed, value.op.name_hint)
        call = tvm.ir.Call(variants[value.op], list(value.args)[:-1], value.attrs, value.ty_args)
        return [relax.VarBinding(binding.var, call)]

    rewritten = map_bindings(main, each)
    result = builder.get()
    result.update_func(result.get_global_var("main"), rewritten)
    return tvm.transform.Sequential([relax.transform.Normalize(), relax.transform.DeadCodeElimination()])(
        result
    )


def _written(module: IRModule, value: relax.Expr) -> int | None:
    """Number of the operand that a call writes over; None of other expressions."""
    if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    function = module[value.op]
    attributes = function.attrs if isinstance(function, PrimFunc) else None
    return int(attributes[WRITES_OVER]) if attributes and WRITES_OVER in attributes else None
