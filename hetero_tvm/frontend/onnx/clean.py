"""Clean-up of an ONNX model: one opset range, no functions, static shapes, float32, nothing left to fold."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, checker, helper, shape_inference, version_converter

from hetero_tvm.errors import ModelError, UnsupportedOperatorError, shortened
from hetero_tvm.frontend.limits import Limits, check_size, check_values, current_limits
from hetero_tvm.frontend.onnx.bodies.kept_loops import keep_loops, with_scalar_ends
from hetero_tvm.frontend.onnx.bodies.learning import DOMAIN as LEARNING
from hetero_tvm.frontend.onnx.check import (
    check_text,
    check_versions,
    name_nodes,
    opset_of,
    refuse_types,
    refuse_unknown,
    refuse_unsupported,
    remove_dead_nodes,
    sort_nodes,
)
from hetero_tvm.frontend.onnx.contrib import expand_contrib
from hetero_tvm.frontend.onnx.counting import Tracker
from hetero_tvm.frontend.onnx.definitions import (
    agreement,
    clear_made_shapes,
    first_lines,
    inline_bodies,
    inline_functions,
    with_constants,
    without_constants,
    write_defaults,
)
from hetero_tvm.frontend.onnx.expand import expand_shaped, refuse_shapeless
from hetero_tvm.frontend.onnx.fold import Folder
from hetero_tvm.frontend.onnx.forms import refuse_inner_forms, restore_corners, write_forms
from hetero_tvm.frontend.onnx.graph.branches import clean_branches
from hetero_tvm.frontend.onnx.graph.constants import (
    ONNX_DOMAINS,
    ConstantPool,
    Types,
    constant_value,
    dense,
    names_used,
    sparse_problem,
    tensor_problem,
    types_of,
)
from hetero_tvm.frontend.onnx.graph.draws import refuse_undrawn
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, merge_identities
from hetero_tvm.frontend.onnx.graph.old_forms import settle_axes, settle_old_forms, settle_pools
from hetero_tvm.frontend.onnx.graph.operands import settle_operands
from hetero_tvm.frontend.onnx.graph.rounds import note_rounds
from hetero_tvm.frontend.onnx.graph.vectors import settle_repeats, settle_vectors
from hetero_tvm.frontend.onnx.oldest import to_opset_7
from hetero_tvm.frontend.onnx.operands.standard import refuse_other_operands
from hetero_tvm.frontend.onnx.promise import Promises, declared_shapes, write_promised
from hetero_tvm.frontend.onnx.shapes import contradiction, fix_input_shapes
from hetero_tvm.frontend.onnx.widen import NARROW, widen
from hetero_tvm.frontend.sizing import Sizing
from hetero_tvm.frontend.stored import BRANCH, StoredModel, is_stub, stub
from hetero_tvm.host import mapped

#: Older models are converted: TVM's converters read only the newer forms (axes as inputs, ...).
_OLDEST_OPSET = 13
_CONVERT_TO = (17, 13)
_FIRST_RESIZE_WITH_COORDINATES = 11
#: Shape inference looks into the definitions of these, where it misses what a node leaves at its default.
_DEFAULTS_NEEDED = frozenset({"MeanVarianceNormalization", "STFT", "Selu"})
_INEXACT_DEFAULTS = frozenset({"HardSigmoid", "LRN", "LeakyRelu"}) | {
    f"{kind}Normalization" for kind in ("Batch", "Group", "Instance", "Layer", "RMS")
}
"""Operators with defaults that are no float32 numbers: those next to them count in float64."""
_MOST_ROUNDS = 64
#: Elements of vectors whose values ONNX may follow; of a tensor whose size may be a range; step of a slice.
_MOST_PROPAGATED, _MOST_RANGED, _MOST_STEP = 1 << 20, 1 << 26, 1 << 30


def clean(
    stored: StoredModel,
    supported: Collection[str],
    shapes: Mapping[str, Sequence[int]],
    *,
    batch: int | None = None,
    sequence: int | None = None,
    least: int = 1,
    open_sizes: bool = False,
) -> StoredModel:
    """Make a new model with fixed shapes that uses ``supported`` operators only; ``stored`` stays as it is.

    ``shapes``, ``batch``, ``sequence`` and ``least`` fix the inputs (see :func:`shapes.fix_input_shapes`);
    ``open_sizes`` says that the model is cleaned at other sizes too (see :class:`Folder`).

    Raises
    ------
    ShapeError, UnsupportedOperatorError, ModelError : see the functions of the single steps.
    """
    limits = current_limits()
    check_versions(stored.proto)
    check_text(stored.proto.graph)
    model, pool = _split(stored)
    graph = model.graph
    with_scalar_ends(graph)
    name_nodes(graph)
    sort_nodes(graph, pool)
    to_opset_7(model, pool, opset_of(model))
    needed = _DEFAULTS_NEEDED | _INEXACT_DEFAULTS if _has_doubles(graph, pool) else _DEFAULTS_NEEDED
    for node in all_nodes(graph):
        if node.op_type in needed and node.domain in ONNX_DOMAINS:
            write_defaults(node, opset_of(model))
    if opset_of(model) < _OLDEST_OPSET and any(node.domain == LEARNING for node in graph.node):
        model = _modernized(model, pool)  # models of scikit-learn are written out in newer operators
        graph = model.graph
    expand_contrib(model, opset_of(model), pool)
    if not model.functions:
        refuse_unknown(graph, opset_of(model), supported)
    judge = partial(agreement, model, pool)
    fixed = fix_input_shapes(graph.input, shapes, batch=batch, sequence=sequence, least=least, judge=judge)
    promises = declared_shapes(model, fixed)
    _declare_outputs(model, pool)
    for value in graph.input:
        element = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, element, fixed[value.name]))
    _check(model, pool)
    if model.functions:
        model = inline_functions(model, pool)
        refuse_unknown(model.graph, opset_of(model), supported)
        _check(model, pool)
    if opset_of(model) < _OLDEST_OPSET:
        model = _modernized(model, pool)
    _check_narrow_outputs(model, pool)
    types = _types_beside(model, pool, "BitCast")
    widen(model, pool, {name: element for name, (element, _) in types.items()})
    if any(_is_misread(node) for node in model.graph.node):
        settled = True
        while settled:  # what follows one has no shape before, or a wrong one
            types = types_of(_infer(model, pool, limits, strict=False).graph)
            settled = settle_axes(model.graph, types, pool) or settle_pools(
                model.graph, types, opset_of(model)
            )
    inferred, sizing = _simplify(model, pool, supported, limits, promises, open_sizes)
    refuse_unsupported(model.graph, opset_of(model), supported)
    return dataclasses.replace(_join(model, pool, inferred), sizing=sizing)


def _is_misread(node: onnx.NodeProto) -> bool:
    """Whether ONNX's inference of shapes may stop at a node, or get its extents wrong."""
    return node.op_type == "MeanVarianceNormalization" or any(a.name == "ceil_mode" for a in node.attribute)


def _has_doubles(graph: onnx.GraphProto, pool: ConstantPool) -> bool:
    """Whether a model begins with float64 somewhere."""
    casts = (a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to")
    inputs = (value.type.tensor_type.elem_type for value in graph.input)
    return TensorProto.DOUBLE in {*casts, *inputs, *(pool.type_of(name)[0] for name in pool)}


# ---- apart and together again --------------------------------------------------------------


def _split(stored: StoredModel) -> tuple[onnx.ModelProto, ConstantPool]:
    """Copy the model without its initializers; gives the copy and the initializers (not copied)."""
    pool, source = ConstantPool(), stored.proto
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
    for sparse in source.graph.sparse_initializer:
        name = sparse.values.name
        if problem := "its name is used twice" if name in pool else sparse_problem(sparse):
            problems.append(f"{name or '(unnamed)'}: {problem}")
        else:
            pool.add_array(name, dense(sparse))
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


def _refuse_flat_softmax(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse a softmax of vectors along axis 1, the default before opset 13: it has none.

    Raises
    ------
    UnsupportedOperatorError : names the node.
    """
    softmaxes = ("Softmax", "LogSoftmax", "Hardmax")
    types = _types_beside(model, pool, *softmaxes)
    for node in model.graph.node:
        shape = pool.shape(node.input[0], types) if node.op_type in softmaxes else None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        if shape is not None and axis >= max(len(shape), 1):
            raise UnsupportedOperatorError(
                f"Node {node.name!r} ({node.op_type}) has axis {axis}, but its operand has {len(shape)}.",
                hint="Before opset 13 the default axis is 1: export the model with opset 13 or newer.",
            )


def _declare_outputs(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Give outputs that state no type the inferred one: widening must know which are narrow."""
    untyped = [v for v in model.graph.output if not v.type.tensor_type.elem_type]
    if not untyped or any(v.type.WhichOneof("value") not in (None, "tensor_type") for v in untyped):
        return
    try:
        inferred = shape_inference.infer_shapes(with_constants(model, pool))
    except Exception:  # the checks that follow say what is wrong
        return
    types = {v.name: v.type for v in (*inferred.graph.output, *inferred.graph.value_info)}
    for value in untyped:
        if value.name in types:
            value.type.CopyFrom(types[value.name])


def _check(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse what ONNX's checker finds wrong, but for outputs that state no shape."""
    light = with_constants(model, pool)
    for value in light.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    try:
        checker.check_model(light)
    except Exception as error:  # the checker raises its own type and, for bad text, others
        raise ModelError(f"The model is not valid ONNX: {first_lines(error)}") from error


def _check_narrow_outputs(model: onnx.ModelProto, pool: ConstantPool) -> None:
    """Refuse outputs said to have 16 bits that are made in another type: widening would convert them.

    Other contradictions show when types are inferred; after widening these are none any more.
    """
    declared = {v.name: v.type.tensor_type.elem_type for v in model.graph.output}
    if not any(element in NARROW for element in declared.values()):
        return
    light = with_constants(model, pool)
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


def _modernized(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """The model of an old opset in a newer one."""
    _refuse_flat_softmax(model, pool)
    opset = opset_of(model)
    settle_old_forms(model.graph, opset, _types_beside(model, pool, "Dropout"))
    model = _convert_opset(model, pool)
    if opset < _FIRST_RESIZE_WITH_COORDINATES:
        restore_corners(model.graph)
    return model


def _convert_opset(model: onnx.ModelProto, pool: ConstantPool) -> onnx.ModelProto:
    """Convert an old model to the first opset of ``_CONVERT_TO`` that ONNX's converter manages."""
    inputs = [value.name for value in model.graph.input]
    reasons = []
    for target in _CONVERT_TO:
        try:
            converted = version_converter.convert_version(with_constants(model, pool), target)
        except Exception as error:
            reasons.append(f"to opset {target}: {first_lines(error)}")
            continue
        converted = without_constants(converted, inputs, pool)
        name_nodes(converted.graph)
        return converted
    raise ModelError(
        f"The model uses ONNX opset {opset_of(model)}, and converting it failed.",
        problems=reasons,
        hint="Export the model with opset 17.",
    )


def _simplify(
    model: onnx.ModelProto,
    pool: ConstantPool,
    supported: Collection[str],
    limits: Limits,
    promises: Promises,
    open_sizes: bool,
) -> tuple[onnx.GraphProto, Sizing]:
    """Inline, fold and remove until nothing changes; the graph with its inferred types, and its sizes."""
    folder = Folder(pool, {o.domain: o.version for o in model.opset_import}, limits, open_sizes)

    def cleaned(part: StoredModel) -> StoredModel:
        return clean(part, supported, {})

    tracker, opset = Tracker(), opset_of(model)
    loose = partial(_infer, model, pool, limits, strict=False)
    for number in range(_MOST_ROUNDS):
        check_size(model, limits, "written_nodes")
        settle_vectors(model.graph, pool, constant_value)
        settle_operands(model.graph)
        if number == 0:  # later graphs hold nodes that are not the file's
            refuse_other_operands(model.graph, types_of(loose().graph), pool)
        # Before anything is folded: the extents of padded tensors are not those that the model asks for.
        tracker.settle(model.graph, lambda: types_of(loose().graph), folder.run, pool, opset)
        inferred = _infer(model, pool, limits)
        inlined = inline_bodies(model, inferred, pool, supported)
        if inlined is not None:
            model.graph.CopyFrom(inlined.graph)
            continue
        types = types_of(inferred.graph)
        removed = folder.run(model.graph, types)
        if open_sizes:
            note_rounds(model.graph, folder.sized, pool)
        remove_dead_nodes(model.graph)
        expanded = expand_shaped(model.graph, types, pool, opset_of(model))
        expanded = settle_repeats(model.graph, types, pool) or expanded
        if removed or expanded or write_forms(model.graph, types, pool, opset_of(model)):
            continue
        if not (
            write_promised(model.graph, types, pool, opset, promises)
            or tracker.begin(model.graph, types, pool, opset)
            or keep_loops(model, types, pool, opset, cleaned)
            or clean_branches(model, types, pool, cleaned)
        ):
            break
    tracker.finish(model)
    refuse_inner_forms(model.graph, types, pool, opset)
    for name, branch in folder.branches.items():
        model.metadata_props.add(key=f"{BRANCH}{name}", value=branch)
    refuse_shapeless(model.graph)
    refuse_undrawn(model.graph)
    merge_identities(model.graph)
    inferred = _infer(model, pool, limits)
    refuse_types(model.graph, types_of(inferred.graph), pool)
    return inferred.graph, folder.sizing


def _infer(
    model: onnx.ModelProto, pool: ConstantPool, limits: Limits, *, strict: bool = True
) -> onnx.ModelProto:
    """Infer all types afresh: what the file says of its inner values may be stale.

    Unless ``strict``, as far as they do not contradict each other.
    """
    light = with_constants(model, pool)
    clear_made_shapes(light.graph)
    try:
        inferred = shape_inference.infer_shapes(light, strict_mode=strict)
    except Exception as error:
        raise contradiction(error) from error
    check_values(inferred.graph, limits)
    if not _may_propagate(inferred.graph) or _leaps(light.graph, pool):
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


def _leaps(graph: onnx.GraphProto, pool: ConstantPool) -> bool:
    """Whether a slice has a step that ONNX's propagation of values cannot take: it counts in 32 bits.

    It reads foreign memory where place and step add up to more, and never ends where the low bits are 0.
    """
    made = {node.output[0]: node for node in graph.node if node.op_type == "Constant" and node.output}
    for node in graph.node:
        if node.op_type != "Slice" or len(node.input) < 5 or not node.input[4]:
            continue
        step = node.input[4]
        values = [pool.array(step)] if step in pool else step in made and constant_value(made[step])
        if not values or np.any(np.abs(values[0], dtype=float) > _MOST_STEP):
            return True
    return False


def _types_beside(model: onnx.ModelProto, pool: ConstantPool, *operators: str) -> Types:
    """Types that inference finds, where the graph has one of these operators, which need them."""
    if not any(node.op_type in operators for node in model.graph.node):
        return {}
    return types_of(shape_inference.infer_shapes(with_constants(model, pool)).graph)
