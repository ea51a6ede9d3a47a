"""Loops of a function: what lies between a loop's first and last kernel becomes a function of its own.

Until memory is planned a body lies in line (``ops/loops/rounds.py``), as if it ran once.  Two steps around
the planning make a loop of it:

1. ``gathered``: what a body computes without its states moves out, before the loop; what it reads from around
   is kept alive until its last kernel, so that no round finds other values in that memory.
2. ``closed``: the bindings of a round become a function, which calls itself while the loop runs.  Calls nest
   as in a number of several digits, so that a loop of many rounds takes no deep stack.
"""

from __future__ import annotations

from collections.abc import Iterator

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, Var, relax, tvm
from hetero_tvm.ops.loops.rounds import ENTER, STEP, loop_of

_PIN = "hetero_tvm.loop.pin"
"""Function that is called on what a loop reads, while memory is planned; nothing runs it."""
_CALLS = 16
"""Calls of one function by the next: rounds by a function of one level more."""
_LEVELS = 5


def gathered(module: IRModule) -> IRModule:
    """The module, in whose ``main`` bodies hold nothing else, and what they read lives until their end.

    ``module`` has explicit allocations, and kernels that write to their last arguments.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not any(_part(module, binding) for binding in bindings):
        return module
    for name in [part[0] for binding in bindings if (part := _part(module, binding)) and part[1] == ENTER]:
        bindings = _gathered(module, bindings, name)
    return _with_bindings(module, bindings)


def closed(module: IRModule) -> IRModule:
    """The module with functions for the bodies; ``module`` is as planning memory leaves it."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    names = [part[0] for binding in bindings if (part := _part(module, binding)) and part[1] == ENTER]
    if not names:
        return module
    module = module.clone()
    for number, name in enumerate(reversed(names)):  # what lies within comes first
        begin, end = _span(module, bindings, name)
        pin = next(n for n in range(end, len(bindings)) if _is_pin(bindings[n]))
        body = bindings[begin + 1 : end + 1]
        running = _running(bindings[begin])
        call = _add_functions(module, f"loop_{number}", body, running)
        bindings = [*bindings[: begin + 1], call, *bindings[end + 1 : pin], *bindings[pin + 1 :]]
    return _with_bindings(module, bindings)


def _gathered(module: IRModule, bindings: list[relax.Binding], name: str) -> list[relax.Binding]:
    """Bindings of which those of a loop's rounds stand together, with a call that reads what they read."""
    begin, end = _span(module, bindings, name)
    made = _made(bindings[begin])
    before, inside = [], []
    for binding in bindings[begin + 1 : end + 1]:
        reads = set(_read(binding))
        if binding is bindings[end] or reads & made:
            inside.append(binding)
            # A kernel makes what it writes to.
            made |= {binding.var, *reads} if _writes(binding) else {binding.var}
        else:
            before.append(binding)
    # Allocations of what is made inside came before: their order does not matter.
    own = {binding.var for binding in inside}
    outer = {
        var: None
        for binding in inside
        for var in _read(binding)
        if var not in own and isinstance(var.ty, relax.TensorType)
    }
    pin = relax.VarBinding(
        relax.Var("pin", relax.TupleType([])),
        relax.Call(relax.ExternFunc(_PIN), list(outer), None, [relax.TupleType([])]),
    )
    return [*bindings[:begin], *before, bindings[begin], *inside, pin, *bindings[end + 1 :]]


def _add_functions(module: IRModule, name: str, body: list[relax.Binding], running: Var) -> relax.Binding:
    """Add the functions of a loop; returns the binding that runs it."""
    own = {binding.var for binding in body}
    given = list(dict.fromkeys([running, *(v for b in body for v in _read(b) if v not in own)]))
    kind = tvm.relax.FuncType([var.ty for var in given], running.ty, False)

    def named(name: str) -> GlobalVar:
        variable = tvm.ir.GlobalVar(name)
        relax.expr._update_type(variable, kind)
        return variable

    def call(function: GlobalVar) -> relax.Binding:
        return relax.VarBinding(relax.Var("round", running.ty), tvm.ir.Call(function, given))

    def guarded(variable: GlobalVar, bindings: list[relax.Binding]) -> None:
        """Function that runs ``bindings`` while the loop runs."""
        rounds = relax.SeqExpr([relax.BindingBlock(bindings)], running)
        either = relax.If(running, rounds, relax.SeqExpr([], running))
        last = relax.Var("last", running.ty)
        whole = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(last, either)])], last)
        function = relax.Function(given, whole, running.ty, False)
        module[variable] = relax.utils.copy_with_new_vars(function)

    variable = named(f"{name}_round")
    guarded(variable, body)
    for level in range(1, _LEVELS + 1):
        inner, variable = variable, named(f"{name}_rounds_{level}")
        guarded(variable, [call(inner) for _ in range(_CALLS)])
    inner, variable = variable, named(name)
    guarded(variable, [call(inner), call(variable)])
    return call(variable)


def _span(module: IRModule, bindings: list[relax.Binding], name: str) -> tuple[int, int]:
    """Places of a loop's first and last kernel."""
    parts = {}
    for number, binding in enumerate(bindings):
        part = _part(module, binding)
        if part is not None and part[0] == name:
            parts[part[1]] = number
    if not parts.get(ENTER, len(bindings)) < parts.get(STEP, -1):
        raise BuildError(
            f"the rounds of loop {name!r} are out of order",
            hint="this is a fault of a pass; report it with the model",
        )
    return parts[ENTER], parts[STEP]


def _part(module: IRModule, binding: relax.Binding) -> tuple[str, str] | None:
    """Loop, and part in it, of the kernel that a binding calls."""
    value = binding.value
    if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
        return None
    return loop_of(module[value.op])


def _running(binding: relax.Binding) -> Var:
    """Variable that says whether a loop runs: the one before the last that its first kernel writes."""
    return binding.value.args[-2]


def _writes(binding: relax.Binding) -> bool:
    """Whether a binding calls a kernel that writes to its arguments."""
    return isinstance(binding.value, tvm.ir.Call) and isinstance(
        binding.value.op, tvm.ir.GlobalVar | relax.ExternFunc
    )


def _made(binding: relax.Binding) -> set[Var]:
    return {binding.var, *_read(binding)}


def _is_pin(binding: relax.Binding) -> bool:
    value = binding.value
    is_extern = isinstance(value, tvm.ir.Call) and isinstance(value.op, relax.ExternFunc)
    return is_extern and str(value.op.global_symbol) == _PIN


def _read(binding: relax.Binding) -> Iterator[Var]:
    """Variables of tensors that a binding reads, or writes to."""
    found: list[Var] = []

    def visit(expr: Expr) -> None:
        if isinstance(expr, relax.Var) and not isinstance(expr, tvm.ir.GlobalVar):
            found.append(expr)

    relax.analysis.post_order_visit(binding.value, visit)
    return iter(found)


def _with_bindings(module: IRModule, bindings: list[relax.Binding]) -> IRModule:
    main = module["main"]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    changed = module.clone()
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    changed.update_func(changed.get_global_var("main"), function)
    return changed
