"""Source nodes that bindings stand for, carried through TVM's own passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetero_tvm.host.tvm import Expr, IRModule, RelaxFunction, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.graph import Sources, variables_in


def initial(module: IRModule, node_of: Callable[[Var], str]) -> Sources:
    """Source names of an imported module: ``node_of(var)`` gives the node of one binding."""
    return {binding.var.name: (node_of(binding.var),) for binding in _bindings(module["main"])}


def after_fusion(before: IRModule, module: IRModule, sources: Sources) -> Sources:
    """Source names after ``FuseOps``: a group stands for all bindings that moved into its function.

    Names do not tell which they are: equal groups share one function, with the names of the first.
    The bindings of each group are therefore found by what they call on which operands.
    """
    waiting: dict[Any, list[str]] = {}
    for binding in _bindings(before["main"]):
        key = _signature(binding.value, lambda var: var.name)
        waiting.setdefault(key, []).append(binding.var.name)
    # Variable -> name of the binding that it was; a list for a tuple, None for a constant.
    origin: dict[Var, Any] = {}

    def resolve(var: Expr) -> Any:
        if isinstance(var, relax.Tuple):
            return [resolve(field) for field in var.fields]
        return origin.get(var, var.name) if isinstance(var, relax.Var) else None

    def claim(binding: relax.Binding) -> str:
        found = waiting.get(_signature(binding.value, resolve))
        name = found.pop(0) if found else binding.var.name
        origin[binding.var] = name
        return name

    names: dict[str, tuple[str, ...]] = {}
    for binding in _bindings(module["main"]):
        value = binding.value
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            function = module[value.op]
            for parameter, argument in zip(function.params, value.args, strict=True):
                origin[parameter] = resolve(argument) if isinstance(argument, relax.Var) else None
            members = [claim(inner) for inner in _bindings(function)]
            result = function.body.body
            fields = result.fields if isinstance(result, relax.Tuple) else ()
            origin[binding.var] = [resolve(field) for field in fields] or resolve(result)
        elif isinstance(value, relax.TupleGetItem) and isinstance(resolve(value.tuple_value), list):
            origin[binding.var] = resolve(value.tuple_value)[value.index]
            members = [origin[binding.var]]
        else:
            members = [claim(binding)]
        found = [node for name in members for node in sources.get(name, ())]
        names[binding.var.name] = tuple(dict.fromkeys(found)) or (binding.var.name,)
    return names


def _signature(value: Expr, name_of: Callable[[Var], Any]) -> Any:
    """The callee of a binding and the variables that it uses, for comparing bindings of two modules."""
    head = type(value).__name__
    if isinstance(value, tvm.ir.Call):
        callee = value.args[0] if isinstance(value.args[0], tvm.ir.GlobalVar) else value.op
        head = getattr(callee, "name_hint", None) or getattr(callee, "name", "")
    elif isinstance(value, relax.TupleGetItem):
        head = f"{head} {value.index}"
    return head, tuple(str(name) for name in map(name_of, variables_in(value)) if name is not None)


def _bindings(function: RelaxFunction) -> list[relax.Binding]:
    return [binding for block in function.body.blocks for binding in block.bindings]
