"""Check of the sizes of inputs inside a library: callers from C and C++ have no other."""

from __future__ import annotations

from hetero_tvm.codegen.pipeline import INDEX_ERROR
from hetero_tvm.host.tvm import IRModule, T, relax, tirx, tvm
from hetero_tvm.relax_passes.rewriting.fused import CHECK_ATTR
from hetero_tvm.runtime.signature import Signature
from hetero_tvm.schedules.emit import FunctionBuilder

NAME = "check_sizes"


def range_check(signature: Signature) -> tvm.transform.Pass:
    """Pass that makes ``main`` begin with a check of its inputs' sizes.

    The pass takes a module whose memory is planned.  The check fails with the input's name, its dimension
    and the range; that equal names have equal sizes is what the virtual machine looks at itself.
    """

    @tvm.transform.module_pass(opt_level=0, name="hetero_tvm.CheckSizes")
    def check(module: IRModule, _context: object) -> IRModule:
        main = module["main"]
        open_inputs = [
            (parameter, spec)
            for parameter, spec in zip(main.params, signature.inputs, strict=True)
            if not spec.static
        ]
        if not open_inputs:
            return module
        ranges = {symbol.name: symbol for symbol in signature.symbols}
        builder = FunctionBuilder(NAME)
        with builder:
            seen: dict[str, object] = {}
            problems = []
            for n, (_, spec) in enumerate(open_inputs):
                extents = []
                for axis, size in enumerate(spec.shape):
                    if size in ranges and size not in seen:
                        seen[size] = tirx.Var(size, "int64")
                        problems.append((seen[size], ranges[size], f"{spec.name}: dimension {axis} ({size})"))
                    if isinstance(size, str):  # a sum of others is looked at by the virtual machine
                        extents.append(seen.get(size, tirx.Var(f"x{n}_{axis}", "int64")))
                    else:
                        extents.append(size)
                T.arg(f"x{n}", T.buffer(tuple(extents), spec.dtype))
            for variable, symbol, what in problems:
                inside = tirx.all(variable >= symbol.low, variable <= symbol.high)
                with T.Assert(inside, f"{what} is outside {symbol.span}", INDEX_ERROR):
                    pass
                if symbol.step > 1:
                    several = tirx.floormod(variable, tirx.const(symbol.step, "int64")) == 0
                    with T.Assert(several, f"{what} is not a multiple of {symbol.step}", INDEX_ERROR):
                        pass
        function = builder.function.without_attr("global_symbol").with_attr(CHECK_ATTR, True)
        made = relax.BlockBuilder(module.clone())
        variable = made.add_func(function, NAME)
        call = tvm.ir.Call(variable, [parameter for parameter, _ in open_inputs], None, [relax.TupleType([])])
        first = relax.VarBinding(relax.Var("sizes", relax.TupleType([])), call)
        result = made.get()
        body = relax.SeqExpr([relax.BindingBlock([first]), *main.body.blocks], main.body.body)
        fresh = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        result.update_func(result.get_global_var("main"), fresh)
        return result

    return check
