"""The step of a model with a past: what grows lies in buffers that have room for the largest size.

``present = concat(past, new)`` copies the past at every call.  In the step the past is the front of a buffer
of the caller's, new elements are written behind it, and whoever reads the present reads the front of the same
buffer, at its strides::

    main(x, past)             -> y, present     present = concat(past, new)
    step(x, buffer, size)     -> y              buffer[past:past + n] = new;  present = buffer[:past + n]

So a call costs what is new, and what attention reads.  Sizes that only the past told come as operands that
nobody reads: their extents tell them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.frontend.signature import ImportedModel, OpenShapes
from hetero_tvm.host.tvm import Expr, IRBuilder, IRModule, PrimFunc, T, Var, relax, tvm
from hetero_tvm.relax_passes.storage.written_over import WRITES_OVER
from hetero_tvm.runtime.sessions import State, states_of
from hetero_tvm.runtime.signature import STEP, Signature, Step, TensorSpec

_SIZE = "size of {}"
"""Name of an operand that tells a size."""


@dataclass(frozen=True)
class _Growing:
    """A state that is concatenated with what is new: its parameter, and the binding of the present."""

    state: State
    parameter: Var
    present: Var
    new: Expr


def step_of(model: ImportedModel, signature: Signature) -> tuple[ImportedModel, Step] | None:
    """The step of a model with open sizes, and what it keeps in place; None where nothing grows.

    Parameters
    ----------
    signature : of the model, with symbols.
    """
    if model.open is None or signature.counted:
        return None
    states = tuple(state for state in states_of(signature) if state.grows is not None)
    found = _growing(model, states)
    states = tuple(growing.state for growing in found)
    if not states:
        return None
    opened, sizes = model.open, model.open.sizes[0]
    # One more than the largest: a front that is the whole buffer would make another graph.
    room = {s.state.input.name: _total(model, s.state) + 1 for s in found}
    missing = [symbol.name for symbol in opened.symbols if not _told(model, states, sizes, symbol.name)]
    counts = tuple(len(_growing(other, states)) for other in opened.others)
    if any(count != len(states) for count in counts):
        return None

    def at(one: ImportedModel, sizes: Mapping[str, int]) -> ImportedModel:
        if len(_growing(one, states)) < len(states):
            return one  # nothing is concatenated with an empty past: good for its constants only
        # Tables are looked for at sizes beyond the largest.
        beyond = {s.input.name: max(room[s.input.name], _total(one, s)) for s in states}
        return _stepping(one, states, beyond, {name: sizes[name] for name in missing})

    others = tuple(at(*pair) for pair in zip(opened.others, opened.sizes[1:], strict=True))
    steps = OpenShapes(opened.symbols, opened.sizes, others, lambda sizes: at(opened.at(sizes), sizes))
    known = Step(room, tuple(state.output.name for state in states), tuple(missing))
    return dataclasses.replace(at(model, sizes), open=steps), known


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


def _growing(model: ImportedModel, states: Sequence[State]) -> list[_Growing]:
    """States whose past is read by their concatenation only, and whose present is read."""
    main = model.module["main"]
    if any(isinstance(b.value, relax.If) for block in main.body.blocks for b in block.bindings):
        return []
    made = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    uses: dict[Var, int] = {}

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] = uses.get(expr, 0) + 1

    for value in made.values():
        relax.analysis.post_order_visit(value, note)
    parameters = {
        spec.name: parameter for spec, parameter in zip(model.signature.inputs, main.params, strict=False)
    }
    fields = _results(main)
    found = []
    for state in states:
        parameter, present = parameters[state.input.name], fields[state.place]
        value = made.get(present)
        if not isinstance(value, tvm.ir.Call) or getattr(value.op, "name", "") != "relax.concat":
            continue
        parts = value.args[0].fields if isinstance(value.args[0], relax.Tuple) else ()
        if len(parts) != 2 or not parts[0].same_as(parameter) or int(value.attrs.axis) != state.grows:
            continue
        if uses.get(parameter) == 1 and uses.get(present, 0) > 1 and fields.count(present) == 1:
            found.append(_Growing(state, parameter, present, parts[1]))
    return found


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
    growing = {found.present: found for found in _growing(model, states)}
    builder = relax.BlockBuilder(module.clone())
    kept_places = {state.place for state in states}
    buffers: dict[str, tuple[TensorSpec, Var]] = {}
    for found in growing.values():
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
            if binding.var not in growing:
                bindings.append(binding)
                continue
            found = growing[binding.var]
            buffer = buffers[found.state.input.name][1]
            new = [int(extent) for extent in found.new.ty.shape.values]
            whole = [int(extent) for extent in buffer.ty.shape.values]
            axis = found.state.grows
            total = int(binding.var.ty.shape.values[axis])
            key = (tuple(whole), tuple(new), axis, total, str(buffer.ty.dtype))
            if key not in functions:
                function = append_kernel(whole, new, axis, total - new[axis], str(buffer.ty.dtype))
                functions[key] = builder.add_func(function, "append")
            call = relax.call_tir(functions[key], [buffer, found.new], out_ty=buffer.ty)
            appended = relax.DataflowVar(f"{binding.var.name}_appended", buffer.ty)
            front = relax.op.strided_slice(appended, [axis], [0], [total])
            bindings += [relax.VarBinding(appended, call), relax.VarBinding(binding.var, front)]
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
