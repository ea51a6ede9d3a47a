"""Clean-up of an ONNX model: one opset range, no functions, static shapes, float32, nothing left to fold."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx
from onnx import TensorProto, checker, defs, helper, inliner, shape_inference, version_converter

from hetero_tvm.errors import ModelError, UnsupportedOperatorError, shortened
from hetero_tvm.frontend.limits import Limits, check_size, check_values, current_limits
from hetero_tvm.frontend.onnx.check import (
    check_text,
    check_versions,
    has_body,
    name_nodes,
    opset_of,
    refuse_unknown,
    refuse_unsupported,
    remove_dead_nodes,
    sort_nodes,
)
from hetero_tvm.frontend.onnx.constants import (
    ONNX_DOMAINS,
    ConstantPool,
    Types,
    names_used,
    tensor_problem,
)
from hetero_tvm.frontend.onnx.contrib import expand_contrib
from hetero_tvm.frontend.onnx.expand import expand_shaped, refuse_shapeless
from hetero_tvm.frontend.onnx.fold import Folder, merge_identities, tensor_type
from hetero_tvm.frontend.onnx.forms import refuse_types, restore_corners, settle_old_forms, write_forms
from hetero_tvm.frontend.onnx.shapes import fix_input_shapes
from hetero_tvm.frontend.onnx.widen import NARROW, widen
from hetero_tvm.frontend.stored import StoredModel, is_stub, stub
from hetero_tvm.host import mapped

#: Older models are converted: TVM's converters read only the newer forms (axes as inputs, ...).
_OLDEST_OPSET = 13
_CONVERT_TO = (17, 13)
_FIRST_RESIZE_WITH_COORDINATES = 11
#: TVM has converters for these, but for another signature or only for a part of the operator.
_ALWAYS_INLINE = frozenset({"Attention", "RMSNormalization", "RotaryEmbedding"})
#: Shape inference looks into the definitions of these, where it misses what a node leaves at its default.
_DEFAULTS_NEEDED = frozenset({"MeanVarianceNormalization"})
_MOST_ROUNDS = 64
#: Elements of vectors whose values ONNX's inference may follow; and of a tensor whose size may be a range's.
_MOST_PROPAGATED = 1 << 20
_MOST_RANGED = 1 << 26

_Inliner = Callable[[onnx.ModelProto], onnx.ModelProto]


def clean(
    stored: StoredModel,
    supported: Collection[str],
    shapes: Mapping[str, Sequence[int]],
    *,
    batch: int | None = None,
    sequence: int | None = None,
) -> StoredModel:
    """Make a new model with fixed shapes that uses ``supported`` operators only; ``stored`` stays as it is.

    ``shapes``, ``batch`` and ``sequence`` fix the inputs (see :func:`shapes.fix_input_shapes`).

    Raises
    ------
    ShapeError, UnsupportedOperatorError, ModelError : see the functions of the single steps.
    """
    limits = current_limits()
    check_versions(stored.proto)
    check_text(stored.proto.graph)
    model, pool = _split(stored)
    graph = model.graph
    name_nodes(graph)
    sort_nodes(graph, pool)
    for node in graph.node:
        if node.op_type in _DEFAULTS_NEEDED and node.domain in ONNX_DOMAINS:
            _write_defaults(node, opset_of(model))
    expand_contrib(model, opset_of(model), pool)
    if not model.functions:
        refuse_unknown(graph, opset_of(model), supported)
    fixed = fix_input_shapes(graph.input, shapes, batch=batch, sequence=sequence)
    for value in graph.input:
        element = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, element, fixed[value.name]))
    _complete_outputs(model, pool)
    _check(model, pool)
    if model.functions:
        model = _inline_functions(model, pool)
        refuse_unknown(model.graph, opset_of(model), supported)
        _check(model, pool)
    if opset_of(model) < _OLDEST_OPSET:
        _refuse_flat_softmax(model, pool)
        opset = opset_of(model)
        settle_old_forms(model.graph, opset)
        model = _convert_opset(model, pool)
        if opset < _FIRST_RESIZE_WITH_COORDINATES:
            restore_corners(model.graph)
    _check_narrow_outputs(model, pool)
    widen(model, pool)
    inferred = _simplify(model, pool, supported, limits)
    refuse_unsupported(model.graph, opset_of(model), supported)
    return _join(model, pool, inferred)


# ---- apart and together again --------------------------------------------------------------


def _split(stored: StoredModel) -> tuple[onnx.ModelProto, ConstantPool]:
    """Copy the model without its initializers; gives the copy and the initializers (not copied)."""
    pool, source = ConstantPool(), stored.proto
    if source.graph.sparse_initializer:
        raise ModelError(
            "The model stores sparse initializers, which are not supported.",
            hint="Export it with dense weights.",
        )
    problems = []
    for tensor in source.graph.initializer:
        problem = None if is_stub(tensor) else tensor_problem(tensor)
        if problem or not tensor.name or tensor.name in pool:
            problem = problem or ("its name is used twice" if tensor.name else "it has no name")
            problems.append(f"{tensor.name or '(unnamed)'}: {problem}")
        elif is_stub(tensor):
            pool.add_array(tensor.name, stored.arrays[tensor.name])
        else:
            pool.add_tensor(tensor)
    if problems:
        raise ModelError("The model's weights are damaged.", problems=shortened(problems))
    model = onnx.ModelProto(ir_version=min(max(source.ir_version, 8), onnx.IR_VERSION))
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    graph = source.graph
    model.graph.name = graph.name or "main"
    model.graph.node.extend(graph.node)
    # Until IR 4 weights had to be listed as inputs too.
    model.graph.input.extend(value for value in graph.input if value.name not in pool)
    model.graph.output.extend(graph.output)
    if not graph.output:
        raise ModelError("The model has no outputs.", hint="Check that the export finished.")
    duplicates = [n for n, c in Counter(v.name for v in (*graph.input, *graph.output)).items() if c > 2]
    for values in (graph.input, graph.output):
        duplicates += [n for n, c in Counter(v.name for v in values).items() if c > 1]
    if duplicates:
        raise ModelError(f"The model lists an input or output twice: {', '.join(sorted(set(duplicates)))}.")
    return model, pool


def _with_constants(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Make a light copy that ONNX's own tools can read (see :meth:`ConstantPool.attach`)."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    pool.attach(light.graph)
    return light


def _without_constants(light: onnx.ModelProto, inputs: Sequence[str], pool: ConstantPool) -> onnx.ModelProto:
    """Undo :func:`_with_constants` on what a tool returned; new constants go to the pool."""
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


def _join(model: onnx.ModelProto, pool: ConstantPool, inferred: onnx.GraphProto) -> StoredModel:
    """Put the constants that are used, and the inferred types, into the model."""
    graph = model.graph
    remaining = {name for node in graph.node for name in node.output}
    graph.value_info.extend(v for v in inferred.value_info if v.name in remaining)
    types = {v.name: v for v in inferred.output}
    for value in graph.output:
        value.CopyFrom(types[value.name])
    used = names_used(graph)
    arrays = {}
    for name in pool:
        if name in used and pool.nbytes(name) >= mapped.LARGE and pool.type_of(name)[0] != TensorProto.STRING:
            arrays[name] = pool.array(name)
            graph.initializer.append(stub(name, *pool.type_of(name)))
        elif name in used:
            graph.initializer.append(pool.tensor(name))
    return StoredModel(model, arrays)


# ---- steps ---------------------------------------------------------------------------------


def _complete_outputs(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Write the types of outputs that the file leaves without one, as far as they can be inferred."""
    bare = [v for v in model.graph.output if not v.type.tensor_type.elem_type]
    if not bare:
        return
    try:
        inferred = shape_inference.infer_shapes(_with_constants(model, pool)).graph
    except Exception:  # the checker says what is wrong
        return
    made = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    for value in bare:
        value.type.CopyFrom(made.get(value.name, value.type))


def _refuse_flat_softmax(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse a softmax of vectors along axis 1, the default before opset 13: it has none.

    Raises
    ------
    UnsupportedOperatorError : names the node.
    """
    nodes = [n for n in model.graph.node if n.op_type in ("Softmax", "LogSoftmax", "Hardmax")]
    if not nodes:
        return
    types = _types(shape_inference.infer_shapes(_with_constants(model, pool)).graph)
    for node in nodes:
        shape = pool.shape(node.input[0], types)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        if shape is not None and axis >= max(len(shape), 1):
            raise UnsupportedOperatorError(
                f"Node {node.name!r} ({node.op_type}) has axis {axis}, but its operand has {len(shape)}.",
                hint="Before opset 13 the default axis is 1: export the model with opset 13 or newer.",
            )


def _check(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse what ONNX's checker finds wrong."""
    light = _with_constants(model, pool)
    for value in light.graph.output:
        if value.type.tensor_type.elem_type:
            value.type.tensor_type.shape.SetInParent()  # which the checker wants; it is inferred in any case
    try:
        checker.check_model(light)
    except Exception as error:  # the checker raises its own type and, for bad text, others
        raise ModelError(f"The model is not valid ONNX: {_first_lines(error)}") from error


def _check_narrow_outputs(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse outputs said to have 16 bits that are made in another type: widening would convert them.

    Other contradictions show when types are inferred; after widening these are none any more.
    """
    declared = {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    if not any(element in NARROW for element in declared.values()):
        return
    light = _with_constants(model, pool)
    for value in light.graph.output:
        value.ClearField("type")
    inferred = shape_inference.infer_shapes(light)
    made = {
        v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.output, *inferred.graph.value_info)
    }
    names = onnx.TensorProto.DataType.Name
    problems = [
        f"output {name!r} is said to be {names(element)}, but made as {names(made[name])}"
        for name, element in declared.items()
        if element in NARROW and made.get(name, 0) not in (0, element)
    ]
    if problems:
        raise ModelError("The model's shapes or types contradict each other.", problems=shortened(problems))


def _inline_functions(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Expand the model's own functions; the checker has refused recursion before."""
    inputs = [value.name for value in model.graph.input]
    try:
        return _traced(model, pool, inputs, inliner.inline_local_functions)
    except Exception as error:
        raise ModelError(f"The model's functions cannot be expanded: {_first_lines(error)}") from error


def _convert_opset(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Convert an old model to the first opset of ``_CONVERT_TO`` that ONNX's converter manages."""
    inputs = [value.name for value in model.graph.input]
    reasons = []
    for target in _CONVERT_TO:
        try:
            converted = version_converter.convert_version(_with_constants(model, pool), target)
        except Exception as error:
            reasons.append(f"to opset {target}: {_first_lines(error)}")
            continue
        converted = _without_constants(converted, inputs, pool)
        name_nodes(converted.graph)
        return converted
    raise ModelError(
        f"The model uses ONNX opset {opset_of(model)}, and converting it failed.",
        problems=reasons,
        hint="Export the model with opset 17.",
    )


def _simplify(
    model: onnx.ModelProto, pool: ConstantPool, supported: Collection[str], limits: Limits
) -> onnx.GraphProto:
    """Inline, fold and remove until nothing changes; returns the graph with its inferred types."""
    folder = Folder(pool, {o.domain: o.version for o in model.opset_import}, limits)
    for _ in range(_MOST_ROUNDS):
        check_size(model, limits, "written_nodes")
        inferred = _infer(model, pool, limits)
        inlined = _inline_bodies(model, inferred, pool, supported)
        if inlined is not None:
            model.graph.CopyFrom(inlined.graph)
            continue
        types = _types(inferred.graph)
        removed = folder.run(model.graph, types)
        remove_dead_nodes(model.graph)
        expanded = expand_shaped(model.graph, types, pool, opset_of(model))
        if not removed and not expanded and not write_forms(model.graph, types, pool, opset_of(model)):
            break
    refuse_shapeless(model.graph)
    merge_identities(model.graph)
    inferred = _infer(model, pool, limits)
    refuse_types(model.graph, _types(inferred.graph), pool)
    return inferred.graph


def _infer(model: onnx.ModelProto, pool: ConstantPool, limits: Limits) -> onnx.ModelProto:
    """Infer all types afresh: what the file says of its inner values may be stale."""
    light = _with_constants(model, pool)
    for value in light.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(light, strict_mode=True)
    except Exception as error:
        raise ModelError(
            f"The model's shapes or types contradict each other: {_first_lines(error)}"
        ) from error
    check_values(inferred.graph, limits)
    if not _may_propagate(inferred.graph):
        return inferred
    try:
        return shape_inference.infer_shapes(light, strict_mode=True, data_prop=True)
    except Exception:  # its propagation of values takes some valid graphs (a sum of shape values) for broken
        return inferred


def _may_propagate(graph: onnx.GraphProto) -> bool:
    """Whether ONNX may follow the values of vectors: it keeps each element, of inputs and floats too."""
    vectors = largest = 0
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if len(dims) <= 1:
            vectors += math.prod(dims)
        largest = max(largest, math.prod(dims))
    # The length of a range may be any product of extents.
    ranges = any(node.op_type == "Range" for node in graph.node)
    return vectors <= _MOST_PROPAGATED and not (ranges and largest > _MOST_RANGED)


def _types(graph: onnx.GraphProto) -> Types:
    """Types of a graph's tensors, as inference wrote them."""
    types = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        if not value.type.HasField("tensor_type"):
            continue
        types[value.name] = tensor_type(value.type.tensor_type)
    return types


def _inline_bodies(
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
            _write_defaults(node, opset)
            while node.input and not node.input[-1]:  # the inliner wants a type even for "left out"
                del node.input[-1]
    typed.graph.value_info.extend(inferred.graph.value_info)

    def inline(light: onnx.ModelProto) -> onnx.ModelProto:
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
    except Exception as error:
        listed = ", ".join(op for _, op in sorted(wanted))
        raise ModelError(f"The definitions of {listed} cannot be expanded: {_first_lines(error)}") from error
    if len(result.graph.node) == len(model.graph.node):
        return None  # nothing was expanded: the final check reports the operators
    return result


def _write_defaults(node: onnx.NodeProto, opset: int) -> None:
    """Write out the attributes that a node leaves at their defaults: the inliner does not know them."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, opset, "").attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _wants_body(node: onnx.NodeProto, supported: Collection[str]) -> bool:
    """Whether a node is to be replaced by its operator's definition in ONNX."""
    if node.op_type == "LayerNormalization":
        return sum(bool(name) for name in node.output) > 1  # TVM's has one output
    return node.op_type not in supported or node.op_type in _ALWAYS_INLINE


def _traced(
    model: onnx.ModelProto, pool: ConstantPool, inputs: Sequence[str], inline: _Inliner
) -> onnx.ModelProto:
    """Run an inliner; nodes that it makes are called by the node that they replace, then their own name."""
    names = [node.name for node in model.graph.node]
    light = _with_constants(model, pool)
    marks = {f"\x01{index}": index for index in range(len(names))}
    for mark, node in zip(marks, light.graph.node, strict=True):
        node.name = mark
    result = _without_constants(inline(light), inputs, pool)
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
        if owner >= len(names):
            continue
        pending[owner] -= set(node.output)
        owner += not pending[owner]
    return result


def _first_lines(error: Exception, most: int = 3) -> str:
    """The start of an error's text, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most])[:600] or type(error).__name__
