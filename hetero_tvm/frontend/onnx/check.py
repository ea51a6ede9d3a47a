"""Structural checks on an ONNX model, before and after cleaning: order, names, operators."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, defs

from hetero_tvm.errors import ModelError, UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS, ConstantPool, Types, node_inputs, subgraphs
from hetero_tvm.frontend.onnx.graph.nodes import set_nodes
from hetero_tvm.frontend.stored import StoredModel

_NO_KERNELS = frozenset(
    number
    for name, number in TensorProto.DataType.items()
    if name.startswith(("FLOAT8", "FLOAT4", "FLOAT6", "INT4", "UINT4", "INT2", "UINT2", "COMPLEX", "STRING"))
)
"""Types whose casts and products TVM gets wrong, or breaks on."""
_SMALL_FLOATS = frozenset(
    number for name, number in TensorProto.DataType.items() if name.startswith(("FLOAT8", "FLOAT4", "FLOAT6"))
)
_SCALES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Types of scales."""
_NO_ARRAYS = frozenset(
    number
    for name, number in TensorProto.DataType.items()
    if name.startswith(("INT4", "UINT4", "INT2", "UINT2", "COMPLEX", "STRING", "FLOAT8E5M2"))
)
"""Types that results cannot have either, as constants that a model returns as they are have the others."""


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the default operator set (1 when the file names none)."""
    return next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 1)


def check_versions(model: onnx.ModelProto) -> None:
    """Refuse files from before ONNX 1.1 and opsets that the installed onnx package does not know."""
    if model.ir_version < 3:
        raise ModelError(
            f"The model's ONNX IR version is {model.ir_version}; at least 3 is needed.",
            hint="This is not an ONNX model, or it is older than ONNX 1.0: export it again.",
        )
    opset, known = opset_of(model), defs.onnx_opset_version()
    if not 1 <= opset <= known:
        raise ModelError(
            f"The model uses ONNX opset {opset}; the installed onnx {onnx.__version__} knows 1 to {known}.",
            hint=f"Export the model with opset {min(known, 20)}, or install a newer onnx package.",
        )
    _refuse_other_opsets(model)


def check_imports(model: onnx.ModelProto) -> None:
    """Refuse a file that names no opset, or several versions of one: what its operators mean is open."""
    versions: dict[str, set[int]] = defaultdict(set)
    for opset in model.opset_import:
        versions["" if opset.domain in ONNX_DOMAINS else opset.domain].add(opset.version)
    if not versions and model.ir_version >= 3:
        raise ModelError(
            "The model names no opset (opset_import is empty), so its operators have no meaning.",
            hint="Name the one that it was written for: "
            "model.opset_import.append(onnx.helper.make_opsetid('', 17)).",
        )
    problems = [
        f"{domain or 'ai.onnx'}: {', '.join(map(str, sorted(found)))}"
        for domain, found in versions.items()
        if len(found) > 1
    ]
    if problems:
        raise ModelError(
            "The model names several versions of an opset, and only one can be meant.",
            problems=shortened(problems),
            hint="Leave the one in model.opset_import that the model was exported with.",
        )


def _refuse_other_opsets(model: onnx.ModelProto) -> None:
    """Refuse functions whose operators mean something else in the opset of their own than in the model's."""
    own, problems = opset_of(model), []
    for function in model.functions:
        opset = next((o.version for o in function.opset_import if o.domain in ONNX_DOMAINS), own)
        nodes = _walk(function) if opset != own else ()
        others = {n.op_type for n in nodes if n.domain in ONNX_DOMAINS and _since(n, opset) != _since(n, own)}
        if others:
            named = ", ".join(shortened(sorted(others), 3))
            problems.append(f"function {function.domain}:{function.name} is of opset {opset} ({named})")
    if problems:
        raise ModelError(
            f"The model is of ONNX opset {own}, and functions of it are of others.",
            problems=shortened(problems),
            hint="Export all of it with one opset, or expand the functions before: "
            "onnx.inliner.inline_local_functions(onnx.load(FILE), convert_version=True).",
        )


def _since(node: onnx.NodeProto, opset: int) -> int | None:
    """Version from which on an operator is as in an opset; None where that lacks it."""
    try:
        return defs.get_schema(node.op_type, opset, "").since_version
    except defs.SchemaError:
        return None


def dequantizes_small_floats(node: onnx.NodeProto, pool: ConstantPool) -> bool:
    """Whether a node makes float32 of a constant of 8 bits or less that no kernel reads."""
    weights = node.input[0] if node.op_type == "DequantizeLinear" else ""
    return weights in pool and pool.type_of(weights)[0] in _SMALL_FLOATS


def refuse_types(graph: onnx.GraphProto, types: Types, pool: ConstantPool) -> None:
    """Refuse tensors of types that no kernel computes with; lists them."""
    names = [v.name for v in graph.input]
    names += [name for node in graph.node for name in (*node.input, *node.output)]
    problems = []
    for name in dict.fromkeys(filter(None, names)):
        element = pool.type_of(name)[0] if name in pool else types.get(name, (0, None))[0]
        if element in _NO_KERNELS:
            problems.append(f"tensor {name!r} is {TensorProto.DataType.Name(element).lower()}")
    for name in (value.name for value in graph.output if value.name in pool):
        element = pool.type_of(name)[0]
        if element in _NO_ARRAYS and name not in names:
            problems.append(f"result {name!r} is {TensorProto.DataType.Name(element).lower()}")
    if problems:
        raise UnsupportedOperatorError(
            "The model computes with numbers of 8 bits or less, complex ones or strings: no kernel does.",
            problems=shortened(problems),
            hint="Export the model in float32, float16 or bfloat16, or quantised to int8 or uint8.",
        )


def check_scales(stored: StoredModel) -> None:
    """Refuse scales that are no numbers, which quantisers find on masks of infinities.

    Behind a dequantiser with such a scale all is infinite or NaN (0 times infinity), whatever a runtime's
    integers make of it.

    Raises
    ------
    ModelError : scales that are infinite or NaN (their nodes are listed).
    """
    graph = stored.proto.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found = []
    for node in _walk(graph):
        scales = node.input[1:2] if node.op_type in ("QuantizeLinear", "DequantizeLinear") else ()
        if node.op_type.startswith("QLinear") or node.op_type == "QGemm":
            scales = node.input  # all that are floats
        given = [tensors[name] for name in scales if name in tensors]
        given = [tensor for tensor in given if tensor.data_type in _SCALES]
        if not all(np.isfinite(stored.array(tensor).astype(np.float32)).all() for tensor in given):
            found.append(f"{node.name or node.output[0]!r} ({node.op_type})")
    if found:
        raise ModelError(
            "Quantisers have scales that are infinite or NaN, through which no number comes.",
            problems=shortened(found),
            hint="Quantise again and leave out what holds masks of -inf or the least float "
            "(onnxruntime: quantize_static(..., nodes_to_exclude=[...])), or take hetero_tvm.quantize.",
        )


def check_text(graph: onnx.GraphProto) -> None:
    """Refuse names that are not UTF-8: protobuf hands them over as bytes, which nothing expects."""
    names: list = [graph.name]
    for value in (*graph.input, *graph.output):
        names.append(value.name)
        names += [dim.dim_param for dim in value.type.tensor_type.shape.dim]
    names += [tensor.name for tensor in graph.initializer]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                check_text(inner)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise ModelError(f"The model holds names that are not text: {', '.join(map(repr, wrong[:5]))}.")


def name_nodes(graph: onnx.GraphProto) -> None:
    """Give nodes without a name the name OpType_output."""
    for node in graph.node:
        if not node.name:
            node.name = f"{node.op_type}_{next((o for o in node.output if o), '')}"


def sort_nodes(graph: onnx.GraphProto, pool: ConstantPool) -> None:
    """Order nodes so that each follows what it reads.

    Raises
    ------
    ModelError : tensors made twice, read but never made, or made in a cycle (all are listed).
    """
    known = {value.name for value in graph.input} | set(pool)
    makers: dict[str, int] = {}
    problems = []
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in makers or name in known:
                problems.append(
                    f"tensor {name!r} has two origins, one is node {node.name!r} ({node.op_type})"
                )
            makers[name] = index
    reads = [node_inputs(node) for node in graph.node]
    for node, names in zip(graph.node, reads, strict=True):
        for name in sorted(names - known - makers.keys()):
            problems.append(f"node {node.name!r} ({node.op_type}) reads tensor {name!r}, which nothing makes")
    for value in graph.output:
        if value.name not in known and value.name not in makers:
            problems.append(f"nothing makes the graph output {value.name!r}")
    if problems:
        raise ModelError("The model's graph is broken.", problems=shortened(problems))

    waiting = [len({makers[n] for n in names if n in makers}) for names in reads]
    readers: dict[int, list[int]] = defaultdict(list)
    for index, names in enumerate(reads):
        for maker in {makers[n] for n in names if n in makers}:
            readers[maker].append(index)
    # A file in order stays in its order: always take the ready node that comes first.
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(graph.node):
        stuck = [graph.node[i] for i, count in enumerate(waiting) if count]
        raise ModelError(
            "The model's graph has a cycle.",
            problems=shortened(
                [f"node {n.name!r} ({n.op_type}) is in the cycle or behind it" for n in stuck]
            ),
        )
    if order != sorted(order):
        set_nodes(graph, [graph.node[i] for i in order])


def remove_dead_nodes(graph: onnx.GraphProto) -> None:
    """Drop nodes whose results nobody reads."""
    used = {value.name for value in graph.output}
    live = []
    for node in reversed(graph.node):
        if any(name in used for name in node.output):
            used |= node_inputs(node)
            live.append(node)
    if len(live) < len(graph.node):
        live.reverse()
        del graph.node[:]
        graph.node.extend(live)


def has_body(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX defines the operator by other operators."""
    if node.domain not in ONNX_DOMAINS:
        return False
    try:
        schema = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return False
    return schema.has_function or schema.has_context_dependent_function


def refuse_unknown(graph: onnx.GraphProto, opset: int, supported: Collection[str]) -> None:
    """Refuse operators that no version of this import could take, before anything else looks at them."""
    hopeless = [n for n in _walk(graph) if not _in_onnx(n, opset)]
    if hopeless:
        others = [
            n
            for n in _walk(graph)
            if _in_onnx(n, opset) and n.op_type not in supported and not has_body(n, opset)
        ]
        _refuse([*hopeless, *others], opset)


def refuse_unsupported(graph: onnx.GraphProto, opset: int, supported: Collection[str]) -> None:
    """Refuse operators that are left after cleaning and that no converter takes; lists all.

    Raises
    ------
    UnsupportedOperatorError : with counts and some node names for each operator.
    """
    _refuse([n for n in _walk(graph) if n.domain not in ONNX_DOMAINS or n.op_type not in supported], opset)


def _in_onnx(node: onnx.NodeProto, opset: int) -> bool:
    """Whether ONNX itself has the operator."""
    return node.domain in ONNX_DOMAINS and defs.has(node.op_type, opset, "")


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _walk(inner)


def _refuse(nodes: list[onnx.NodeProto], opset: int) -> None:
    """Raise :class:`UnsupportedOperatorError` that lists the operators of ``nodes``, if there are any."""
    if not nodes:
        return
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        domain = "" if node.domain in ONNX_DOMAINS else f"{node.domain}::"
        found[f"{domain}{node.op_type}"].append(node.name or f"{node.op_type}_{''.join(node.output[:1])}")
    problems = []
    for operator, names in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        problems.append(f"{operator}: {len(names)} node{'s' if len(names) > 1 else ''} ({shown})")
    hint = "Export the model without them, in plain ONNX operators (no contrib or custom ones)."
    if any(node.op_type in _GENERATION for node in nodes):
        hint = "Take the file of the decoder alone, or build the model's checkpoint: "
        hint += "`python -m hetero_tvm.build CHECKPOINT --out DIR`, and `python -m hetero_tvm.generate DIR` "
        hint += "(with --beams N for beam search)."
    kinds = "operator that has" if len(found) == 1 else "operators that have"
    raise UnsupportedOperatorError(
        f"The model uses {len(found)} {kinds} no importer (opset {opset}).",
        problems=problems,
        hint=hint,
    )


_GENERATION = ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
"""ONNX Runtime's operators that hold a whole decoder and its loop over tokens."""


# fmt: off
_WRITERS = frozenset({"Scatter", "ScatterElements", "ScatterND"})
_PICKERS = frozenset({
    "ArgMax", "ArgMin", "DeformConv", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "GridSample",
    "MaxRoiPool", "Pad", "Resize", "RoiAlign", "Upsample",
})
# fmt: on
"""Operators that pick elements of their first operand: there must be some, where there are results."""


def refuse_wide_windows(node: onnx.NodeProto) -> None:
    """Refuse windows that count in more than 32 bits, which are no network's.

    Raises
    ------
    ModelError : TVM has no such numbers for them.
    """
    for attribute in node.attribute:
        if attribute.name not in ("strides", "dilations", "kernel_shape", "pads"):
            continue
        if wide := [n for n in attribute.ints if not -(2**31) <= n < 2**31]:
            raise ModelError(
                f"Node {node.name!r} ({node.op_type}) has {attribute.name} of {wide[0]}, beyond 32 bits.",
                hint="Export the model with windows that its images have room for.",
            )


def refuse_writes_to_nothing(node: onnx.NodeProto, pool: ConstantPool, types: Types) -> None:
    """Refuse to write elements of a tensor without any: each such index is out of range.

    Raises
    ------
    ModelError : the result has no elements either, and would say nothing.
    """
    if node.op_type not in _WRITERS or len(node.input) < 3:
        return
    written, updates = (pool.shape(name, types) for name in (node.input[0], node.input[2]))
    if written is not None and 0 in written and updates is not None and 0 not in updates:
        raise _has_none(node, "writes", written)


def refuse_picks_of_nothing(node: onnx.NodeProto, pool: ConstantPool, types: Types) -> None:
    """Refuse to pick elements of a tensor without any, and to resize an image to nothing.

    Raises
    ------
    ModelError : kernels would read memory that is nobody's.
    """
    if node.op_type not in _PICKERS or not node.input or not node.input[0]:
        return
    if node.op_type == "Pad" and all(a.s == b"constant" for a in node.attribute if a.name == "mode"):
        return
    sizes = node.input[3] if len(node.input) > 3 and node.op_type == "Resize" else ""
    if sizes in pool and not pool.array(sizes).all():
        raise ModelError(f"Node {node.name!r} (Resize) makes an image without elements.")
    source, result = pool.shape(node.input[0], types), types.get(node.output[0])
    empty = result is not None and result[1] is not None and 0 in result[1]
    if source is not None and 0 in source and not empty:
        raise _has_none(node, "takes", source)


def _has_none(node: onnx.NodeProto, what: str, shape: Sequence[int]) -> ModelError:
    """Error for a node that ``takes`` or ``writes`` elements of its first operand, which has none."""
    name = node.input[0].removesuffix("/empty")
    return ModelError(
        f"Node {node.name!r} ({node.op_type}) {what} elements of {name!r}, which has none: "
        f"its shape is {list(shape)}.",
        hint="ONNX Runtime refuses such a call too; --shape gives the model other sizes.",
    )
