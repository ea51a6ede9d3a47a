"""Translation of cleaned ONNX to Relax through TVM's importer; each binding has the name of its ONNX node."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import onnx

from hetero_tvm.errors import HeteroTVMError, ModelError, last_line
from hetero_tvm.frontend.onnx import quantized as onnx_quantized
from hetero_tvm.frontend.onnx.bodies.kept_loops import rounds_of_rows
from hetero_tvm.frontend.onnx.check import opset_of
from hetero_tvm.frontend.onnx.converters import CONVERTERS, WINDOWS, explicit_padding, suppressed
from hetero_tvm.frontend.onnx.graph.constants import constant_value, tensor_type, to_array
from hetero_tvm.frontend.onnx.graph.nodes import inner_nodes
from hetero_tvm.frontend.onnx.graph.open_values import is_held
from hetero_tvm.frontend.onnx.operators.common import Inputs, static_shape
from hetero_tvm.frontend.onnx.operators.loop import Rounds
from hetero_tvm.frontend.onnx.operators.recurrence import RECURRENT, recurrent_layer
from hetero_tvm.frontend.onnx.shapes import MOST_DIMENSIONS, TRACED_SIZES_HINT
from hetero_tvm.frontend.stored import StoredModel, is_stub
from hetero_tvm.host.constants import tensor_of
from hetero_tvm.host.tvm import IRModule, onnx_frontend, relax, tvm

#: Operators whose results have as many elements as their values ask for: only declared shapes are known.
SHAPES_FROM_VALUES = frozenset({"NonMaxSuppression", "NonZero", "Unique", "Compress"})
_SUFFIX = re.compile(r"#\d+$")


def supported_operators() -> frozenset[str]:
    """Names of the ONNX operators that TVM's importer, or this module, has a converter for."""
    # Strings and sequences have converters, but no code generation: they fail at a later step.
    return frozenset(onnx_frontend._get_convert_map()) | {
        "If",
        "Loop",
        "Constant",
        *CONVERTERS,
        *RECURRENT,
        *onnx_quantized.OPERATORS,
    }


def source_names(var: relax.Var | str) -> str:
    """Name of the ONNX node that a binding of an imported module stands for.

    A node that needs several bindings names its result plainly and the steps before it with a
    suffix: ``/encoder/Add#1``, ``/encoder/Add#2``, ``/encoder/Add``.
    """
    name = var if isinstance(var, str) else var.name
    return _SUFFIX.sub("", name)


def to_relax(stored: StoredModel) -> IRModule:
    """Convert a cleaned model of fixed shapes; weights become constants.

    Raises
    ------
    ModelError : TVM cannot convert a node, or a result has another type than ONNX says, or no
        fixed shape.  Names the node.
    """
    model = stored.proto
    importer = _Importer(stored)
    try:
        module = importer.from_onnx(model.graph, opset_of(model))
    except _Failed as failure:
        node, error = failure.args
        importer.abandon()
        if isinstance(error, HeteroTVMError):
            raise error from None
        if importer.has_open_result(node) and not isinstance(error, IndexError):
            raise _depends_on_values(node) from error
        raise _conversion_error(node, error) from error
    except HeteroTVMError:
        importer.abandon()
        raise
    except Exception as error:
        importer.abandon()
        raise _conversion_error(importer.at, error) from error
    module["main"] = _rename(module["main"], importer.marks, importer.order)
    # Removes the alias that TVM's importer binds each single output to.
    module = relax.transform.CanonicalizeBindings()(module)
    module = relax.transform.DeadCodeElimination()(module)
    if not relax.analysis.check_well_formed(module):
        raise ModelError("TVM's importer made an ill-formed Relax module of this model.")
    return module


class _Failed(BaseException):
    """Carrier of (node, error) past the importer, which prints all operands for every ``Exception``."""


class _Importer(onnx_frontend.ONNXGraphImporter):
    """TVM's importer, one node at a time.

    Each node ends with a marker binding: the bindings between two markers stand for one node.
    """

    def __init__(self, stored: StoredModel):
        graph = stored.proto.graph
        # From the file itself TVM takes an extent of 0 for an unknown one.
        shapes = {v.name: list(tensor_type(v.type.tensor_type)[1] or ()) for v in graph.input}
        super().__init__(shapes, "float32", sanitize=False)
        self._stored = stored
        self._known = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
        self._totals: dict[str, relax.Var] = {}  # numbers of rows of suppressions
        self.at: onnx.NodeProto | None = None
        self.marks: set[str] = set()
        self.order: list[tuple[str, str | None]] = []  # node, binding of its first result
        self._depth = 0  # branches around a node

    def from_onnx(self, graph: onnx.GraphProto, opset: int) -> IRModule:
        """Convert a graph; one with branches is no dataflow block, also where loops alone have them."""
        if any(node.op_type == "If" for node in inner_nodes(graph.node)):
            sign = onnx.NodeProto(op_type="If")  # the importer looks at the graph's own nodes alone
            ends = {"initializer": graph.initializer, "input": graph.input, "output": graph.output}
            graph = SimpleNamespace(node=[*graph.node, sign], **ends)
        return super().from_onnx(graph, opset)

    def abandon(self) -> None:
        """End the blocks that a failure has left open: else the builder warns about them on stderr."""
        with contextlib.suppress(Exception):
            for _ in range(self._depth + 1):
                self.bb._end_block()

    def has_open_result(self, node: onnx.NodeProto | None) -> bool:
        """Whether ONNX finds no shape for a result of a node of fixed operands: it depends on values."""
        if node is None:
            return False
        types = [tensor_type(self._known[name]) for name in node.output if name in self._known]
        return any(shape is None or None in shape for _, shape in types)

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        small = [tensor for tensor in graph.initializer if not is_stub(tensor)]
        super()._parse_graph_initializers(SimpleNamespace(initializer=small))
        for name, array in self._stored.arrays.items():
            self._nodes[name] = relax.const(tensor_of(array))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        ours = {"Loop", *CONVERTERS, *RECURRENT, *onnx_quantized.OPERATORS}
        known = [node for node in graph.node if node.op_type not in ours]
        super()._check_for_unsupported_ops(SimpleNamespace(node=known))

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in filter(lambda node: node.output, graph.node):
            self.at = node
            if node.op_type in SHAPES_FROM_VALUES and node.op_type not in CONVERTERS:
                raise _depends_on_values(node)
            if node.op_type == "Loop":
                self._construct_loop(node)
            elif node.op_type == "If":
                self._construct_choice(node)
            elif node.op_type == "Constant" and (value := constant_value(node)) is not None:
                self._nodes[node.output[0]] = relax.const(tensor_of(value[0]))
            elif is_held(node):
                self._nodes[node.output[0]] = relax.op.builtin.stop_lift_params(self._nodes[node.input[0]])
            elif not self._converts_rows(node):
                super()._construct_nodes(SimpleNamespace(node=[node]))
            for name in filter(None, node.output):
                self._nodes[name] = self._settle(node, name, self._nodes[name])
            first = self._nodes.get(node.output[0])
            self._mark(node.name, first.name if isinstance(first, relax.Var) else None)
        self.at = None

    def _construct_choice(self, node: onnx.NodeProto) -> None:
        """Convert an If; a branch sees what is around it, and nobody what it makes but by its results."""
        graphs = {attribute.name: attribute.g for attribute in node.attribute}
        condition = self._nodes[node.input[0]]
        branches = [self._branch(graphs[name]) for name in ("then_branch", "else_branch")]
        self.at = node
        if condition.ty.ndim:  # one element of any shape
            condition = self.bb.emit(relax.op.reshape(condition, []))
        several = self.bb.emit(relax.If(condition, *branches))
        for index, name in enumerate(node.output):
            self._nodes[name] = several if len(node.output) == 1 else relax.TupleGetItem(several, index)

    def _branch(self, graph: onnx.GraphProto) -> relax.SeqExpr:
        outside = dict(self._nodes), dict(self._known), dict(self._totals)
        self._known |= {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
        self._depth += 1
        self.bb._begin_binding_block()
        for tensor in graph.initializer:
            self._nodes[tensor.name] = relax.const(tensor_of(to_array(tensor)))
        self._construct_nodes(graph)
        results = [self._nodes[value.name] for value in graph.output]
        result = self.bb.emit(results[0] if len(results) == 1 else relax.Tuple(results))
        block = self.bb._end_block()
        self._depth -= 1
        self._nodes, self._known, self._totals = outside
        return relax.SeqExpr([block], result)

    def _mark(self, name: str, first: str | None) -> None:
        """End the bindings of a node; ``first`` names that of its first result.

        All of a branch stands for the node that it is a branch of.
        """
        if self._depth:
            return
        marker = self.bb.emit(relax.const(0, "int32"), name_hint="end_of_node")
        self.marks.add(marker.name)
        self.order.append((name, first))

    def _construct_loop(self, node: onnx.NodeProto) -> None:
        """Convert a loop: its body lies in line, between the kernels of its begin and end."""
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        self._known |= {v.name: v.type.tensor_type for v in (*body.value_info, *body.output)}
        limit, begins, *states = (self._nodes[name] if name else None for name in node.input)
        kinds = [tensor_type(value.type.tensor_type) for value in body.output[1 + len(states) :]]
        count = rounds_of_rows(node)
        rows = [([count, *(shape or ())], onnx_frontend.get_type(element)) for element, shape in kinds]
        rounds = Rounds(self.bb, node.name, states, limit, begins, rows)
        self._mark(node.name, None)
        for value, given in zip(body.input, (rounds.number, rounds.running, *rounds.states), strict=True):
            self._nodes[value.name] = given
        self._construct_nodes(body)
        self.at = node
        goes_on, *results = (self._nodes[value.name] for value in body.output)
        results = rounds.end(results[: len(states)], results[len(states) :], goes_on)
        self._nodes.update(zip(node.output, results, strict=True))

    def _converts_rows(self, node: onnx.NodeProto) -> bool:
        """Convert a suppression and what is written behind it: its rows are padded, their number known."""
        if node.op_type == "NonMaxSuppression":
            given = [self._nodes[name] for name in node.input]
            attributes = self._parse_attr(node.attribute)
            both = self.bb.emit(suppressed(given, attributes))
            self._nodes[node.output[0]] = self.bb.emit(relax.TupleGetItem(both, 0))
            self._totals[node.output[0]] = self.bb.emit(relax.TupleGetItem(both, 1))
            return True
        total = self._totals.get(node.input[0]) if node.input else None
        if total is None or node.op_type not in ("Shape", "Concat"):
            return False
        found = self._nodes[node.input[0]]
        if node.op_type == "Shape":
            found = relax.op.concat([total, relax.const([3], "int64")], axis=0)
        self._nodes[node.output[0]] = found
        return True

    def _convert_operator(
        self, op_name: str, inputs: Inputs, attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        try:
            converter = CONVERTERS.get(op_name)
            converted = converter(inputs, attrs) if converter else None
            if converted is not None:
                return self.bb.normalize(converted)
            if op_name in RECURRENT:
                return self.bb.normalize(recurrent_layer(self.bb, op_name, inputs, attrs))
            if op_name in onnx_quantized.OPERATORS:

                def other(name, inputs, attrs):
                    return self._convert_operator(name, inputs, attrs, opset)

                normalize = self.bb.normalize
                return normalize(onnx_quantized.convert(op_name, inputs, attrs, other, normalize))
            if op_name in SHAPES_FROM_VALUES:
                raise _depends_on_values(self.at)
            if op_name in WINDOWS:
                attrs = explicit_padding(inputs[0], inputs[1] if op_name == "Conv" else None, attrs)
            return super()._convert_operator(op_name, inputs, attrs, opset)
        except Exception as error:
            raise _Failed(self.at, error) from error

    def _settle(self, node: onnx.NodeProto, name: str, value: Any) -> Any:
        """Bind a result; refuses one whose type is not what ONNX inferred."""
        if isinstance(value, relax.ShapeExpr):
            value = relax.const([int(dim) for dim in value.values], "int64")
        if not isinstance(value, relax.Expr):
            return value
        if not isinstance(value, relax.Var | tvm.ir.GenericConst | relax.Tuple):
            value = self.bb.emit(value)
        known = self._known.get(name)
        found = value.ty
        if known is None or not known.elem_type or not isinstance(found, relax.TensorType):
            return value
        dtype = onnx_frontend.get_type(known.elem_type)
        shape, (_, wanted) = static_shape(value), tensor_type(known)
        fits = shape is not None and (
            wanted is None
            or (len(shape) == len(wanted) and all(w in (None, s) for s, w in zip(shape, wanted, strict=True)))
        )
        if shape is not None and len(shape) > MOST_DIMENSIONS:
            raise ModelError(
                f"Output {name!r} of node {_name(node)!r} ({node.op_type}) has {len(shape)} dimensions; at "
                f"most {MOST_DIMENSIONS} are supported.",
                hint="Export the model with fewer dimensions.",
            )
        if shape is None and self.has_open_result(node):
            raise _depends_on_values(node)
        if not fits or str(found.dtype) != dtype:
            dims = _dims(wanted)
            raise ModelError(
                f"TVM's importer gives {found} for output {name!r} of node {_name(node)!r} ({node.op_type}), "
                f"ONNX says {dtype}[{dims}].",
                hint="The importer does not cover this form of the operator; export the model without it.",
            )
        return value


def _name(node: onnx.NodeProto) -> str:
    """Name of a node, inside of branches too, where it may have none."""
    return node.name or node.output[0]


def _dims(shape: Sequence[int | None] | None) -> str:
    """Dimensions as text; ``?`` stands for one that is unknown."""
    return "(any)" if shape is None else ", ".join("?" if dim is None else str(dim) for dim in shape)


def _depends_on_values(node: onnx.NodeProto) -> ModelError:
    """Error for a result whose shape is known at run time only."""
    if node.op_type == "If":
        return _branches_differ(node)
    return ModelError(
        f"The shape of what node {_name(node)!r} ({node.op_type}) gives depends on the values of its inputs: "
        "it is known at run time only, and shapes must be fixed.",
        hint="Where it depends on an input that never changes, fix that: --value NAME=NUMBER, values= in "
        "Python. Else export the model without this node, and compute what comes from it on outside of it.",
    )


def _branches_differ(node: onnx.NodeProto) -> ModelError:
    """Error for a choice whose result has another shape in one branch than in the other."""
    ends = []
    for attribute in node.attribute:
        makers = {name: one for one in attribute.g.node for name in one.output}
        for value in attribute.g.output:
            dims = _dims(tensor_type(value.type.tensor_type)[1])
            made = makers.get(value.name)
            by = "" if made is None else f" of node {_name(made)!r} ({made.op_type})"
            ends.append(f"{attribute.name} gives [{dims}]{by}")
    return ModelError(
        f"The branches of node {_name(node)!r} (If) do not give one shape, so that the shape of what it "
        f"gives is known at run time only: {'; '.join(sorted(ends))}.",
        hint=f"Build one library for each branch, with the condition fixed: --value {node.input[0]}=1 and "
        f"{node.input[0]}=0, values= in Python, where it is an input. Or export the model with one shape for "
        "both: pad the smaller one, or take what reads it into the branches.",
    )


def _conversion_error(node: onnx.NodeProto | None, error: BaseException) -> ModelError:
    """Error of ours for an error of TVM's importer."""
    reason = f"{type(error).__name__}: {last_line(error)[:300]}"
    if node is None:
        return ModelError(f"TVM cannot import this model. {reason}")
    extents = re.search(r"old shape is R\.shape\(\[(.*?)\]\).*new shape is R\.shape\(\[(.*?)\]\)", str(error))
    if node.op_type == "Reshape" and extents:
        old, new = (found.replace(", ", " x ") for found in extents.groups())
        return ModelError(
            f"Node {node.name!r} (Reshape) cannot give {old} elements the shape {new}.",
            hint=TRACED_SIZES_HINT,
        )
    if (outside := last_line(error)).startswith("an index lies outside"):
        return ModelError(
            f"Node {node.name!r} ({node.op_type}): {outside}.",
            hint="Positions counted from a size reach beyond their table where the size is too large: give a "
            "smaller size, or a range that ends at the table's (--shape NAME=1..8x1..256).",
        )
    types = re.search(r"datatype T\.(\w+) on the LHS.*datatype T\.(\w+) on the RHS", str(error), re.DOTALL)
    if types:
        return ModelError(
            f"Node {node.name!r} ({node.op_type}) has operands of two types, {types[1]} and {types[2]}.",
            hint="ONNX takes operands of one type there: cast one, or store the weights in the other's type.",
        )
    return ModelError(
        f"TVM cannot convert node {_name(node)!r} ({node.op_type}). {reason}",
        hint="The importer does not cover this form of the operator; export the model without it.",
    )


# ---- names ---------------------------------------------------------------------------------


def _rename(function: relax.Function, marks: set[str], order: list[tuple[str, str | None]]) -> relax.Function:
    """Drop the marker bindings and name all others after their ONNX node."""
    groups: list[list[relax.Var]] = [[]]
    alias: dict[str, str] = {}
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(getattr(binding, "value", None), relax.Var):
                alias[binding.var.name] = binding.value.name
            if binding.var.name in marks:
                groups.append([])
            else:
                groups[-1] += _defined(binding)
    names: dict[str, str] = {}
    taken: Counter[str] = Counter()
    used = {parameter.name for parameter in function.params}

    def suffixed(source: str) -> str:
        while True:
            taken[source] += 1
            if f"{source}#{taken[source]}" not in used:
                return f"{source}#{taken[source]}"

    for (source, first), group in zip([*order, ("outputs", None)], groups, strict=True):
        for var in group:
            # A plain name that looks like a suffixed one would be cut by `source_names`.
            plain = var.name == first and source not in used and not _SUFFIX.search(source)
            names[var.name] = source if plain else suffixed(source)
            original = alias.get(var.name)
            if original in names:
                # the alias survives canonicalization: it takes over the name
                names[var.name], names[original] = names[original], names[var.name]
            used.add(names[var.name])
    return _Renamer(names, marks).visit_expr(function)


def _defined(binding: relax.Binding) -> list[relax.Var]:
    """Variables that a binding defines; those inside the branches of an If come first."""
    value = getattr(binding, "value", None)
    inner = []
    if isinstance(value, relax.If):
        for branch in (value.true_branch, value.false_branch):
            for block in branch.blocks:
                inner += [var for nested in block.bindings for var in _defined(nested)]
    return [*inner, binding.var]


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Renaming of variables by name; bindings of ``marks`` are dropped."""

    def __init__(self, names: dict[str, str], marks: set[str]):
        super().__init__()
        self.names = names
        self.marks = marks

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var.name not in self.marks:
            super().visit_var_binding_(binding)

    def visit_dataflow_var_def_(self, var: relax.Var) -> relax.Var:
        return self._define(var, relax.DataflowVar)

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._define(var, relax.Var)

    def _define(self, var: relax.Var, kind: type[relax.Var]) -> relax.Var:
        if var.name not in self.names:
            return var
        renamed = kind(self.names[var.name], var.ty)
        self.set_var_remap(var, renamed)
        return renamed
