"""The step of a model with a past: its states lie in buffers of the caller's, and a call writes what is new.

``present = concat(past, new)`` copies the past at every call.  In the step the past is the front of a buffer
that has room for the largest size, new elements are written behind it, and whoever reads the present reads
the front of the same buffer, at its strides::

    main(x, past)             -> y, present     present = concat(past, new)
    step(x, buffer, size)     -> y              buffer[past:past + n] = new;  present = buffer[:past + n]

A state of one size, of which a call changes some elements (``writes.py``), is its buffer::

    main(x, at, past)         -> y, present     present = scatter(past, at, new)
    step(x, at, buffer)       -> y              buffer[at] = new;  present = buffer

So a call costs what is new, and what attention reads.  Sizes that only the past told come as operands that
nobody reads: their extents tell them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.compile.dynamic.writes import Write, write_of
from hetero_tvm.frontend.signature import ImportedModel, OpenShapes
from hetero_tvm.host.tvm import Expr, IRBuilder, IRModule, PrimFunc, T, Var, relax, tvm
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir, is_check
from hetero_tvm.relax_passes.rewriting.graph import shape_of
from hetero_tvm.relax_passes.storage.written_over import WRITES_OVER
from hetero_tvm.runtime.sessions import State, states_of
from hetero_tvm.runtime.signature import STEP, Signature, Step, TensorSpec

_SIZE = "size of {}"
"""Name of an operand that tells a size."""


@dataclass(frozen=True)
class _Kept:
    """A state that stays in place: its parameter, and the binding of the present.

    Parameters
    ----------
    longer : of one that grows, the binding that adds what is ``new``.
    write : what changes elements of the state, or of what is longer.
    """

    state: State
    parameter: Var
    present: Var
    longer: Var | None
    new: Expr | None
    write: Write | None

    @property
    def place(self) -> Var:
        """Variable in whose place the buffer is written to."""
        return self.present if self.write is None else self.write.written


def step_of(model: ImportedModel, signature: Signature) -> tuple[ImportedModel, Step] | None:
    """The step of a model, and what it keeps in place; None where that is nothing.

    Parameters
    ----------
    signature : of the model, with symbols.
    """
    if signature.counted:
        return None
    found = _kept(model, states_of(signature))
    states = tuple(kept.state for kept in found)
    if not states:
        return None
    # One more than the largest: a front that is the whole buffer would make another graph.
    room = {s.input.name: 0 if s.grows is None else _total(model, s) + 1 for s in states}
    outputs = tuple(state.output.name for state in states)
    if model.open is None:
        return _stepping(model, states, room, {}), Step(room, outputs, ())
    opened, sizes = model.open, model.open.sizes[0]
    missing = [symbol.name for symbol in opened.symbols if not _told(model, states, sizes, symbol.name)]
    counts = tuple(len(_kept(other, states)) for other in opened.others)
    if any(count != len(states) for count in counts):
        return None

    def at(one: ImportedModel, sizes: Mapping[str, int]) -> ImportedModel:
        if len(_kept(one, states)) < len(states):
            return one  # nothing is concatenated with an empty past: good for its constants only
        # Tables are looked for at sizes beyond the largest.
        beyond = {
            s.input.name: 0 if s.grows is None else max(room[s.input.name], _total(one, s)) for s in states
        }
        return _stepping(one, states, beyond, {name: sizes[name] for name in missing})

    others = tuple(at(*pair) for pair in zip(opened.others, opened.sizes[1:], strict=True))
    steps = OpenShapes(opened.symbols, opened.sizes, others, lambda sizes: at(opened.at(sizes), sizes))
    return dataclasses.replace(at(model, sizes), open=steps), Step(room, outputs, tuple(missing))


def checks_first(module: IRModule) -> IRModule | None:
    """An optimized step whose checks run before anything is written, so that one that fails changes nothing;
    None where a check looks at what is computed from a written buffer."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    needed: set[Var] = set()
    first = set()
    for binding in reversed(bindings):
        value = binding.value
        function = module[value.args[0]] if is_call_tir(value) else None
        if binding.var in needed or function is not None and is_check(function):
            if function is not None and function.attrs and WRITES_OVER in function.attrs:
                return None
            first.add(binding.var)
            needed.update(_read(value))
    ordered = [b for b in bindings if b.var in first] + [b for b in bindings if b.var not in first]
    body = relax.SeqExpr([relax.DataflowBlock(ordered)], main.body.body)
    changed = module.clone()
    changed.update_func(
        changed.get_global_var("main"),
        relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return changed


def _total(model: ImportedModel, state: State) -> int:
    """Elements that the present has at the model's sizes."""
    return int(model.signature.results[state.place].shape[state.grows])


def _told(model: ImportedModel, states: Sequence[State], sizes: Mapping[str, int], symbol: str) -> bool:
    """Whether an input that stays has the symbol as an extent."""
    assert model.open is not None
    kept = {state.input.name for state in states}
    several = list(zip((model, *model.open.others), model.open.sizes, strict=True))
    return any(
        all(one.signature.inputs[n].shape[axis] == at[symbol] for one, at in several)
        for n, spec in enumerate(model.signature.inputs)
        if spec.name not in kept
        for axis in range(len(spec.shape))
    )


def _kept(model: ImportedModel, states: Sequence[State]) -> list[_Kept]:
    """States whose past is read by what makes their present only, and whose present is read."""
    main = model.module["main"]
    if any(isinstance(b.value, relax.If) for block in main.body.blocks for b in block.bindings):
        return []
    values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    readers: dict[Var, list[Var]] = {}
    for var, value in values.items():
        for read in () if _tells_shape(value) else _read(value):
            readers.setdefault(read, []).append(var)
    parameters = {
        spec.name: parameter for spec, parameter in zip(model.signature.inputs, main.params, strict=False)
    }
    fields = _results(main)
    found = []
    for state in states:
        parameter, present = parameters[state.input.name], fields[state.place]
        kept = _change(state, parameter, present, values, readers)
        if kept is not None and parameter not in fields and fields.count(present) == 1:
            found.append(kept)
    while True:  # what nothing else reads would not be computed, and not be written
        live = _live(values, fields, found)
        reached = [kept for kept in found if kept.present in live or kept.place in live]
        if len(reached) == len(found):
            return found
        found = reached


def _change(
    state: State,
    parameter: Var,
    present: Var,
    values: Mapping[Var, Expr],
    readers: Mapping[Var, Sequence[Var]],
) -> _Kept | None:
    """Change that makes the present of a state; None where it becomes another, or is read beside."""
    past, longer, new = parameter, None, None
    if state.grows is not None:
        (longer,) = readers.get(parameter, ()) if len(readers.get(parameter, ())) == 1 else (None,)
        value = values.get(longer)
        if _name(value) != "relax.concat" or int(value.attrs.axis) != state.grows:
            return None
        parts = value.args[0].fields if isinstance(value.args[0], relax.Tuple) else ()
        if len(parts) != 2 or not parts[0].same_as(parameter):
            return None
        past, new = longer, parts[1]
    write = None if past == present else write_of(past, present, values)
    if past != present and write is None:
        return None
    kept = _Kept(state, parameter, present, longer, new, write)
    return kept if past == present or _only_read(readers, values, past, kept.place) else None


def _only_read(
    readers: Mapping[Var, Sequence[Var]], values: Mapping[Var, Expr], past: Var, place: Var
) -> bool:
    """Whether a state is read at ``place`` alone, once, perhaps with its axes in another order."""
    direct = readers.get(past, ())
    if len(direct) == 1 and _name(values[direct[0]]) == "relax.permute_dims":
        direct = readers.get(direct[0], ())
    return list(direct) == [place]


def _live(values: Mapping[Var, Expr], fields: Sequence[Any], kept: Sequence[_Kept]) -> set[Var]:
    """Variables that the results which stay results depend on."""
    places = {one.state.place for one in kept}
    left = [var for place, field in enumerate(fields) if place not in places for var in _read(field)]
    live: set[Var] = set()
    while left:
        var = left.pop()
        if var not in live:
            live.add(var)
            value = values.get(var)
            left += [] if value is None or _tells_shape(value) else _read(value)
    return live


def _read(value: Expr) -> list[Var]:
    """Variables that an expression reads, each as often as it does."""
    found: list[Var] = []

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            found.append(expr)

    relax.analysis.post_order_visit(value, note)
    return found


def _tells_shape(value: Expr) -> bool:
    """Whether it reads no element of its operand."""
    return _name(value) == "relax.shape_of"


def _name(value: Expr | None) -> str:
    return getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""


def _results(main: Any) -> list[Any]:
    """Variables of the results, by the names that they were made under."""
    made = {b.var: b.value for block in main.body.blocks for b in block.bindings}

    def named(expr: Any) -> Any:
        while isinstance(made.get(expr), relax.Var) or isinstance(made.get(expr), relax.Tuple):
            expr = made[expr]
        return expr

    result = named(main.body.body)
    fields = result.fields if isinstance(result, relax.Tuple) else [result]
    return [named(field) if isinstance(field, relax.Var) else field for field in fields]


def _stepping(
    model: ImportedModel, states: Sequence[State], room: Mapping[str, int], missing: Mapping[str, int]
) -> ImportedModel:
    """The step at one size; ``missing`` are sizes that operands of their own tell."""
    module, signature = model.module, model.signature
    main = module["main"]
    kept = _kept(model, states)
    places = {found.place: found for found in kept}
    presents = {found.present for found in kept}
    gone = {found.parameter for found in kept}
    builder = relax.BlockBuilder(module.clone())
    kept_places = {state.place for state in states}
    buffers: dict[str, tuple[TensorSpec, Var]] = {}
    for found in kept:
        spec = next(s for s in signature.inputs if s.name == found.state.input.name)
        shape = tuple(
            room[spec.name] if axis == found.state.grows else extent for axis, extent in enumerate(spec.shape)
        )
        parameter = relax.Var(found.parameter.name, relax.TensorType(shape, found.parameter.ty.dtype))
        buffers[spec.name] = dataclasses.replace(spec, shape=shape), parameter
    bindings: list[relax.Binding] = []
    functions: dict[Any, Any] = {}
    for block in main.body.blocks:
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if var in places:
                buffer = buffers[places[var].state.input.name][1]
                bindings += _written(places[var], buffer, builder, functions)
            elif _tells_shape(value):
                bindings.append(relax.VarBinding(var, relax.ShapeExpr(shape_of(value.args[0]))))
            elif var not in presents:
                if gone.intersection(_read(value)):  # a state, longer or with its axes in another order
                    gone.add(var)
                else:
                    bindings.append(binding)
    fields = [field for place, field in enumerate(_results(main)) if place not in kept_places]
    value = fields[0] if len(fields) == 1 else relax.Tuple(fields)
    ty = value.ty if len(fields) == 1 else relax.TupleType([field.ty for field in fields])
    result = relax.Var("results", ty)
    names = {spec.name: parameter for spec, parameter in zip(signature.inputs, main.params, strict=False)}
    free = [spec for spec in signature.inputs if spec.name not in buffers]
    ordered = [buffers[state.input.name] for state in states]
    sizes = [TensorSpec(_SIZE.format(name), (size,), "uint8") for name, size in missing.items()]
    parameters = [
        *(names[spec.name] for spec in free),
        *(parameter for _, parameter in ordered),
        *(relax.Var(f"size_{name}", relax.TensorType((size,), "uint8")) for name, size in missing.items()),
    ]
    flow = relax.DataflowBlock([*bindings, relax.VarBinding(result, value)])
    body = relax.SeqExpr([flow], result)
    attributes = {"num_input": len(parameters), "global_symbol": "main"}
    function = relax.Function(parameters, body, ty, main.is_pure).with_attr(attributes)
    changed: IRModule = builder.get()
    changed.update_func(changed.get_global_var("main"), function)
    changed = relax.transform.Normalize()(changed)
    outputs = tuple(spec for place, spec in enumerate(signature.outputs) if place not in kept_places)
    inputs = (*free, *(spec for spec, _ in ordered), *sizes)
    return dataclasses.replace(
        model,
        module=changed,
        signature=Signature(inputs, outputs),
        name=f"{model.name} ({STEP})",
        open=None,
    )


def _written(
    kept: _Kept, buffer: Var, builder: relax.BlockBuilder, functions: dict[Any, Any]
) -> list[relax.Binding]:
    """Bindings that write to a buffer and give the present; ``functions`` are kernels so far, by facts."""
    present, axis, write = kept.present, kept.state.grows, kept.write
    whole, dtype = [int(extent) for extent in buffer.ty.shape.values], str(buffer.ty.dtype)
    bindings: list[relax.Binding] = []

    def over(key: Any, kernel: Callable[[], PrimFunc], operands: Sequence[Expr]) -> None:
        if key not in functions:
            functions[key] = builder.add_func(kernel(), key[0])
        held = bindings[-1].var if bindings else buffer
        call = relax.call_tir(functions[key], [held, *operands], out_ty=buffer.ty)
        bindings.append(relax.VarBinding(relax.DataflowVar(f"{present.name}_{key[0]}", buffer.ty), call))

    if kept.new is not None:
        assert axis is not None
        new = [int(extent) for extent in kept.new.ty.shape.values]
        total = int(present.ty.shape.values[axis])
        key = ("append", tuple(whole), tuple(new), axis, total, dtype)
        over(key, lambda: append_kernel(whole, new, axis, total - new[axis], dtype), [kept.new])
    if write is not None:
        over(("write", present), lambda: write.kernel(whole), write.operands)
    front = bindings[-1].var
    if axis is not None:
        total = int(present.ty.shape.values[axis])
        bindings.append(relax.VarBinding(present, relax.op.strided_slice(front, [axis], [0], [total])))
    else:
        bindings[-1] = relax.VarBinding(present, bindings[-1].value)
    if write is not None and write.written != present:
        bindings.append(relax.VarBinding(write.written, relax.op.permute_dims(present, list(write.axes))))
    return bindings


def append_kernel(whole: Sequence[int], new: Sequence[int], axis: int, past: int, dtype: str) -> PrimFunc:
    """Kernel that writes ``new`` elements behind the ``past`` ones of its first operand."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("append")
            T.func_attr({"tirx.noalias": True, "op_pattern": 8, WRITES_OVER: 0})
            T.arg("buffer", T.buffer(tuple(whole), dtype))
            source = T.arg("new", T.buffer(tuple(new), dtype))
            out = T.arg("out", T.buffer(tuple(whole), dtype))
            with T.grid(*new) as loops:
                with T.sblock("append"):
                    at = [T.axis.spatial(extent, loop) for extent, loop in zip(new, loops, strict=True)]
                    place = [index + past if n == axis else index for n, index in enumerate(at)]
                    T.reads(source[tuple(at)])
                    T.writes(out[tuple(place)])
                    T.buffer_store(out, source[tuple(at)], place)
    return builder.get().without_attr("global_symbol")
