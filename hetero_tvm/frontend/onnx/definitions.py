"""Operators and functions replaced by what defines them: ONNX's inliner, on models without their weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx
from onnx import defs, helper, inliner, shape_inference

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.onnx.check import has_body, opset_of
from hetero_tvm.frontend.onnx.graph.body import FROM_0, Body
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, types_of
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes

#: TVM has converters for these, but for another signature or only for a part of the operator.
_ALWAYS_INLINE = frozenset({"Attention", "RMSNormalization", "RotaryEmbedding"})
#: Operators with a definition that ``promise.py`` writes out by itself.
_NEVER_INLINE = frozenset({"CenterCropPad"})
#: Domain of the definitions that are made for single nodes.
_BODIES = "hetero_tvm.bodies"

_MOST_ASKED = 200
"""Shapes of inputs that a small model is asked about."""
_MOST_NODES = 20_000
"""Nodes that are inferred in all; a model of as many is asked once."""

_Inliner = Callable[[onnx.ModelProto], onnx.ModelProto]


def with_constants(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Make a light copy that ONNX's own tools can read (see :meth:`ConstantPool.attach`)."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    pool.attach(light.graph)
    _shape_given_outputs(light.graph)
    return light


def _shape_given_outputs(graph: onnx.GraphProto) -> None:
    """Give outputs that are inputs or constants their shapes.

    ONNX's inference takes what an output says of a tensor for the last word, also of what reads it.
    """
    given = {value.name: value.type.tensor_type for value in graph.input}
    for tensor in graph.initializer:
        given[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    for value in graph.output:
        known, own = given.get(value.name), value.type.tensor_type
        if known is not None and known.HasField("shape") and own.elem_type == known.elem_type:
            own.shape.CopyFrom(known.shape)


def clear_made_shapes(graph: onnx.GraphProto) -> None:
    """Remove the shapes of the outputs that nodes make."""
    made = {name for node in graph.node for name in node.output}
    for value in graph.output:
        if value.name in made:
            value.type.tensor_type.ClearField("shape")


def without_constants(light: onnx.ModelProto, inputs: Sequence[str], pool: ConstantPool) -> onnx.ModelProto:
    """Undo :func:`with_constants` on what a tool returned; new constants go to the pool."""
    for tensor in light.graph.initializer:
        pool.add_tensor(tensor)
    own = [value for value in light.graph.input if value.name in inputs]
    model = onnx.ModelProto()
    model.CopyFrom(light)
    del model.graph.initializer[:]
    del model.graph.value_info[:]
    del model.graph.input[:]
    model.graph.input.extend(own)
    return model


def inline_functions(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Expand the model's own functions.

    The checker has refused recursion before, and ``check_versions`` functions whose operators are not the
    model's: the inliner passes over any of another opset.
    """
    inputs = [value.name for value in model.graph.input]
    for function in model.functions:
        for own in function.opset_import:
            if own.domain in ONNX_DOMAINS:
                own.version = opset_of(model)
    try:
        return _traced(model, pool, inputs, inliner.inline_local_functions)
    except Exception as error:
        raise ModelError(f"The model's functions cannot be expanded: {first_lines(error)}") from error


def inline_bodies(
    model: onnx.ModelProto, inferred: onnx.ModelProto, pool: ConstantPool, supported: Collection[str]
) -> onnx.ModelProto | None:
    """Replace operators without a converter by their definition in ONNX; None when there are none."""
    opset = opset_of(model)
    wanted = {
        (n.domain, n.op_type) for n in model.graph.node if _wants_body(n, supported) and has_body(n, opset)
    }
    if not wanted:
        return None
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    for node in typed.graph.node:
        if (node.domain, node.op_type) in wanted:
            write_defaults(node, opset)
            while node.input and not node.input[-1]:  # the inliner wants a type even for "left out"
                del node.input[-1]
    typed.graph.value_info.extend(inferred.graph.value_info)
    _refuse_labels(typed.graph, inferred.graph)
    _check_lengths(typed.graph, opset)

    _call_definitions(typed, inferred, wanted, opset)

    def inline(light: onnx.ModelProto) -> onnx.ModelProto:
        if light.functions:
            light = inliner.inline_local_functions(light)
        # The inliner needs a type for each name, also of initializers.
        known = {v.name for v in (*light.graph.value_info, *light.graph.input)}
        for tensor in light.graph.initializer:
            if tensor.name not in known:
                light.graph.value_info.append(
                    helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
                )
        return inliner.inline_selected_functions(light, sorted(wanted), False, True)

    try:
        result = _traced(typed, pool, [value.name for value in model.graph.input], inline)
        del result.functions[:]
        result.opset_import.remove(helper.make_opsetid(_BODIES, 1)) if typed.functions else None
    except Exception as error:
        listed = ", ".join(op for _, op in sorted(wanted))
        raise ModelError(f"The definitions of {listed} cannot be expanded: {first_lines(error)}") from error
    if len(result.graph.node) == len(model.graph.node):
        return None  # nothing was expanded: the final check reports the operators
    return result


def _refuse_labels(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> None:
    """Refuse losses of which some rows have no label: ONNX infers the shapes of their definitions only."""
    shapes = {name: shape for name, (_, shape) in types_of(inferred).items()}
    shapes |= {t.name: tuple(t.dims) for t in inferred.initializer}
    for node in graph.node:
        if node.op_type != "SoftmaxCrossEntropyLoss":
            continue
        scores, labels = (shapes.get(name) for name in node.input[:2])
        if scores is None or labels is None or None in scores + labels:
            continue
        if scores[:1] + scores[2:] != labels:
            raise ModelError(
                f"Node {node.name!r} (SoftmaxCrossEntropyLoss) has labels of shape {list(labels)} "
                f"for scores of shape {list(scores)}.",
                hint="Check the program that wrote the file, or the sizes that were asked for.",
            )


def _check_lengths(graph: onnx.GraphProto, opset: int) -> None:
    """Check the numbers of keys that Attention is told: beyond the keys, or below 0, a call is an error."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        b = Body(node, opset)
        if node.op_type == "Attention" and node.domain in ONNX_DOMAINS and b.input(6):
            lengths, total = b.input(6), b.op("Shape", b.input(1), start=-2, end=-1)
            outside = b.op("Or", b.op("Less", lengths, b.const(0, "int64")), b.op("Less", total, lengths))
            text = f"{lengths} must lie between 0 and the number of keys"
            node.input[6] = b.checked(lengths, b.every(b.op("Not", outside)), "int64", text)
            info = helper.make_tensor_value_info(node.input[6], onnx.TensorProto.INT64, [None])
            graph.value_info.append(info)
            nodes += b.nodes
        nodes.append(node)
    if len(nodes) > len(graph.node):
        set_nodes(graph, nodes)


def _call_definitions(
    typed: onnx.ModelProto, inferred: onnx.ModelProto, wanted: Collection[tuple[str, str]], opset: int
) -> None:
    """Make nodes that leave out an operand call a function of their own.

    ONNX's inliner asks for the type of every operand of a node whose definition depends on it, also of one
    that is not there.
    """
    graph = inferred.graph
    types = {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}
    types |= {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    for index, node in enumerate(typed.graph.node):
        if (node.domain, node.op_type) not in wanted or all(node.input):
            continue
        schema = defs.get_schema(node.op_type, opset, "")
        if not schema.has_context_dependent_function:
            continue
        given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = onnx.FunctionProto.FromString(
            schema.get_context_dependent_function_with_opset_version(opset, node.SerializeToString(), given)
        )
        body.domain, body.name = _BODIES, f"{node.op_type}_{index}"
        node.domain, node.op_type = body.domain, body.name
        del node.attribute[:]
        typed.functions.append(body)
    if typed.functions:
        typed.opset_import.append(helper.make_opsetid(_BODIES, 1))


def write_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Write out the attributes that a node leaves at their defaults: the inliner does not know them, and a
    newer opset may have others."""
    given = {attribute.name for attribute in node.attribute}
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:  # ONNX Runtime writes some operators into files from before they were ONNX's
        return
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _wants_body(node: onnx.NodeProto, supported: Collection[str]) -> bool:
    """Whether a node is to be replaced by its operator's definition in ONNX."""
    if node.op_type == "LayerNormalization":
        return sum(bool(name) for name in node.output) > 1  # TVM's has one output
    if node.op_type in _NEVER_INLINE:
        return False
    return node.op_type not in supported or node.op_type in _ALWAYS_INLINE


def _traced(
    model: onnx.ModelProto, pool: ConstantPool, inputs: Sequence[str], inline: _Inliner
) -> onnx.ModelProto:
    """Run an inliner; nodes that it makes are called by the node that they replace, then their own name."""
    names = [node.name for node in model.graph.node]
    light = with_constants(model, pool)
    marks = {f"\x01{index}": index for index in range(len(names))}
    for mark, node in zip(marks, light.graph.node, strict=True):
        node.name = mark
    result = without_constants(inline(light), inputs, pool)
    # Nodes keep their order, so a run of new nodes belongs to the next call until its results are made.
    pending = [set(filter(None, node.output)) for node in model.graph.node]
    owner, taken = 0, Counter(names)
    for node in result.graph.node:
        if node.name in marks:
            owner = marks[node.name] + 1
            node.name = names[marks[node.name]]
            continue
        own = node.name or node.op_type
        if owner < len(names):
            own = f"{names[owner]}/{own}"
        taken[own] += 1  # the body of a definition may hold an operator several times
        node.name = own if taken[own] == 1 else f"{own}_{taken[own] - 1}"
        if owner < len(names) and _looks_up_positions(model.graph.node[owner], node):
            node.name += FROM_0
        if owner >= len(names):
            continue
        pending[owner] -= set(node.output)
        owner += not pending[owner]
    return result


def _looks_up_positions(call: onnx.NodeProto, node: onnx.NodeProto) -> bool:
    """Whether a node of a definition looks positions up in a table, which do not count from the end."""
    rotary = call.op_type.startswith("RotaryEmbedding") and node.op_type == "Gather"
    return rotary and node.input[0] in call.input[1:3]


def first_lines(error: Exception, most: int = 3) -> str:
    """The start of an error's text, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most])[:600] or type(error).__name__


def agreement(
    model: onnx.ModelProto, pool: ConstantPool
) -> Callable[[Mapping[str, Sequence[int]]], float | None]:
    """Judge of shapes of a model's inputs: infinity where its nodes do not contradict each other, else the
    number of values whose shapes follow.  None when it was asked as often as is cheap."""
    light = with_constants(model, pool)
    clear_made_shapes(light.graph)

    left = max(1, min(_MOST_ASKED, _MOST_NODES // max(1, len(light.graph.node))))

    def judged(shapes: Mapping[str, Sequence[int]]) -> float | None:
        nonlocal left
        if not left:
            return None
        left -= 1
        for value in light.graph.input:
            if value.name in shapes:
                shape = value.type.tensor_type.shape
                shape.Clear()
                for size in shapes[value.name]:
                    shape.dim.add(dim_value=size)
        try:
            shape_inference.infer_shapes(light, strict_mode=True, data_prop=True)
        except Exception:  # of several kinds, some of them ONNX's own
            inferred = shape_inference.infer_shapes(light)
            return float(len(inferred.graph.value_info))
        return math.inf

    return judged
