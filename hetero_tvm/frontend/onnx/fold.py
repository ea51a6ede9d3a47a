"""Constant folding on ONNX: shape arithmetic, constant operands, dead branches, no-op nodes."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, shape_inference

from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.limits import Limits, beyond
from hetero_tvm.frontend.onnx.check import (
    dequantizes_small_floats,
    refuse_picks_of_nothing,
    refuse_wide_windows,
    refuse_writes_to_nothing,
)
from hetero_tvm.frontend.onnx.graph.constants import (
    ONNX_DOMAINS,
    VALUE_BYTES,
    ConstantPool,
    Type,
    Types,
    constant_value,
    node_inputs,
    rename_inputs,
    tensor_type,
)
from hetero_tvm.frontend.onnx.graph.draws import LIKE, deciding, drawn, draws, refuse_decisions
from hetero_tvm.frontend.onnx.graph.nodes import in_its_place
from hetero_tvm.frontend.onnx.graph.open_values import OpenValues, is_held
from hetero_tvm.frontend.onnx.graph.short_cuts import JUDGED, SHORT_CUTS, fits, integer_attribute
from hetero_tvm.frontend.sizing import Sizing

# fmt: off
_KEEP = frozenset({
    "Bernoulli", "Multinomial",  # random
    # folding would undo the quantization of weights
    "DequantizeLinear",
    # control flow
    "Loop", "Scan", "If", "SequenceMap",
})
# fmt: on

# A constant may grow up to here (an Expand of a scalar); beyond, results stay near their operands.
_GROWN_BYTES = 64 << 20
# All that is computed, beside the bound of `limits.py`: weights are cast, transposed and reshaped on the way.
_WEIGHTS_AGAIN = 8
_LARGEST_RESULT = 1 << 30
_GROWTH = 4
# Without inferred shapes only results of operands this small are computed: a product of two
# broadcast operands then still stays small.
_BLIND_BYTES = 4096
# ONNX's evaluator goes through these element by element in Python (some 30 microseconds each), or computes
# far more than it returns: elements of operands and results that may be spent on them in all.
_SLOW_ELEMENTS = 1 << 18
# fmt: off
_SLOW = frozenset({
    "Resize", "Upsample", "Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv", "MaxPool",
    "AveragePool", "LpPool", "MaxUnpool", "GridSample", "AffineGrid", "RoiAlign", "MaxRoiPool", "LRN",
    "NonMaxSuppression", "Col2Im", "DFT", "STFT", "TfIdfVectorizer", "StringNormalizer",
    "GatherND", "ScatterND", "ScatterElements", "Scatter", "GatherElements", "ReverseSequence", "Det",
    "RNN", "GRU", "LSTM", "CenterCropPad", "ImageDecoder", "MelWeightMatrix", "Loop", "NonZero", "Unique",
    "TopK", "OneHot",
})
_INTERPOLATING = frozenset({"Resize", "Upsample"})
# Multiply-adds that may be spent on one product.
_PRODUCTS = dict.fromkeys(("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"), 1 << 36) | {"Einsum": 1 << 32}
_BLIND_GROWERS = frozenset({
    "Range", "ConstantOfShape", "Expand", "Tile", "Pad", "Resize", "Upsample", "OneHot", "EyeLike",
    "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "CenterCropPad", "Col2Im",
    "ConvTranspose", "MaxUnpool", "ImageDecoder",
})
# fmt: on

# Weights of so few bits become floats on the way.
_FEW_BITS = frozenset({
    TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8,
    *(getattr(TensorProto, name) for name in ("INT2", "UINT2") if hasattr(TensorProto, name)),
})  # fmt: skip
_FLOAT_BYTES = 4


def _wide_bytes(pool: ConstantPool, name: str) -> int:
    """Bytes of a constant, of one of few bits as the floats that are computed of it."""
    element, dims = pool.type_of(name)
    return _FLOAT_BYTES * math.prod(dims) if element in _FEW_BITS else pool.nbytes(name)


class Folder:
    """Folding of one graph in place; constants go to and come from ``pool``.

    With ``open_sizes`` the model is one of several, at other sizes of its inputs: of what follows from these
    sizes, images that are resized to them are left to be computed by the model, and so is what ``OpenValues``
    knows, as no rule gives their values at all sizes.
    """

    def __init__(
        self,
        pool: ConstantPool,
        opsets: Mapping[str, int],
        limits: Limits | None = None,
        open_sizes: bool = False,
    ):
        self.pool, self._open_sizes = pool, open_sizes
        self.sized: set[str] = set()  # constants that follow from sizes of inputs
        self.sizing = Sizing()
        self.opsets, self.limits = dict(opsets), limits or Limits()
        self.branches: dict[str, str] = {}  # of an If by its name, which follow from sizes
        self._staying: set[str] = set()
        self._open_values = OpenValues(pool, self.sized, self._staying.add)
        self._slow_left = _SLOW_ELEMENTS
        self._bytes_left = self.limits.folded_bytes + _WEIGHTS_AGAIN * sum(_wide_bytes(pool, n) for n in pool)
        self._alias: dict[str, str] = {}

    def run(self, graph: onnx.GraphProto, types: Types, leave: Collection[str] = ()) -> int:
        """Fold what can be folded; returns the number of nodes removed or moved.

        ``types`` is completed on the way, where a folded constant makes another shape known.  What depends on
        the tensors ``leave`` stays as it is.
        """
        self._left = set(leave)
        self._types = types
        self._alias = {}
        self._made: dict[str, onnx.NodeProto] = {}
        self._moved = 0
        self._returned = {value.name for value in graph.output}
        self._deciding = deciding(graph)
        self._take_empty_inputs(graph)
        before = len(graph.node)
        kept = [node for source in graph.node for node in self._visit(source)]
        del graph.node[:]
        graph.node.extend(self._open_values.before(kept, self._types) if self._open_sizes else kept)
        removed = before + self._moved - len(kept)  # each that moves leaves a Flatten behind
        return removed + self._moved

    def _take_empty_inputs(self, graph: onnx.GraphProto) -> None:
        """Let readers of inputs without elements read constants: there is one such value."""
        for value in graph.input:
            if _is_empty(self._types.get(value.name)):
                name = f"{value.name}/empty"
                self.pool.add_array(name, self._empty(value.name))
                self._alias[value.name] = name

    def _visit(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Fold one node; returns the nodes that stand for it afterwards (often none)."""
        rename_inputs(node, self._alias)
        if self._left and not self._left.isdisjoint((*node_inputs(node), *node.output)):
            self._left.update(node.output)
            return [node]
        if node.domain not in ONNX_DOMAINS:
            return [node]
        branch = self._known_branch(node)
        if branch is not None:
            return [kept for inner in branch for kept in self._visit(inner)]
        self._drop_empty(node)
        same = self._no_op(node)
        if same is not None and self._forward(node, same):
            return []
        refuse_writes_to_nothing(node, self.pool, self._types)
        results = self._evaluate(node)
        if results is None:
            self._infer(node)
            refuse_wide_windows(node)
            refuse_picks_of_nothing(node, self.pool, self._types)
            return self._unflattened(node)
        if self._follows_sizes(node):
            if not draws(node):  # which no size follows from
                self.sizing.note(node, results, self.pool.array, self._elements, self.sized)
            self.sized.update(node.output)
        for name, array in zip(node.output, results, strict=False):
            if name:
                self.pool.add_array(name, array)
        if self._open_sizes:
            self._open_values.note(node)
        return []

    def _follows_sizes(self, node: onnx.NodeProto) -> bool:
        """Whether a constant that a node gives follows from sizes of inputs."""
        if node.op_type in ("Shape", "Size", *LIKE) and node.input[0] not in self.pool:
            return True
        return any(name in self.sized for name in node.input)

    def _infer(self, node: onnx.NodeProto) -> None:
        """Find the types of a node's results where inference over the whole graph did not."""
        if all(_known(self._types.get(name)) for name in node.output if name):
            return
        try:
            schema = defs.get_schema(node.op_type, self.opsets[node.domain], node.domain)
            types = {name: helper.make_tensor_type_proto(*self._type(name)) for name in node.input if name}
            data = {
                n: self.pool.tensor(n) for n in types if n in self.pool and self.pool.nbytes(n) <= VALUE_BYTES
            }
            imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
            found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
        except Exception:  # without types of its inputs, for one; the whole graph is tried again
            return
        for name, proto in found.items():
            if proto.HasField("tensor_type"):
                self._types[name] = tensor_type(proto.tensor_type)

    # ---- no-ops --------------------------------------------------------------------------

    def _no_op(self, node: onnx.NodeProto) -> str | None:
        """Name of the input that equals the node's output, if there is one."""
        if node.op_type == "Identity":
            return None if is_held(node) else node.input[0]
        if node.op_type == "Dropout" and self._is_inference(node):
            return node.input[0]
        if node.op_type == "Concat" and len(node.input) == 1:
            return node.input[0]
        if node.op_type in ("Cast", "Expand", "Reshape") or self._goes_forward(node):
            source, result = (self._type(name) for name in (node.input[0], node.output[0]))
            if source is not None and source == result and source[1] is not None and None not in source[1]:
                return node.input[0] if fits(node, source[1], self.pool) else None
        return None

    def _goes_forward(self, node: onnx.NodeProto) -> bool:
        """Whether this is a Slice that is known to reverse no axis."""
        if node.op_type != "Slice":
            return False
        steps = node.input[4] if len(node.input) > 4 else ""
        return not steps or (steps in self.pool and bool((self.pool.array(steps) > 0).all()))

    def _drop_empty(self, node: onnx.NodeProto) -> None:
        """Drop a Concat's operands of no elements (the part that a full rotary embedding leaves alone)."""
        if node.op_type != "Concat" or len(node.input) < 2:
            return
        types = [self._type(name) for name in node.input]
        # Of operands of one rank, one without elements adds to no axis but the joined one.
        filled = [name for name, type_ in zip(node.input, types, strict=True) if not _is_empty(type_)]
        if filled and len(filled) < len(node.input):
            node.input[:] = filled

    def _is_inference(self, node: onnx.NodeProto) -> bool:
        """Whether a Dropout is known to do nothing."""
        if len(node.output) > 1 and node.output[1]:
            return False  # somebody may read the mask
        if len(node.input) < 3 or not node.input[2]:
            return True
        return node.input[2] in self.pool and not self.pool.array(node.input[2]).any()

    def _forward(self, node: onnx.NodeProto, source: str) -> bool:
        """Let readers of a no-op read ``source``; returns whether the node can go."""
        result = node.output[0]
        if result not in self._returned:
            self._alias[result] = source
            return True
        if source in self.pool:
            self.pool.add_array(result, self.pool.array(source))
            return True
        # A graph output keeps its name: leave an Identity, which `merge_identities` removes.
        if node.op_type != "Identity":
            node.CopyFrom(helper.make_node("Identity", [source], [result], name=node.name))
        return False

    def _elements(self, name: str) -> int:
        """Number of elements of a constant; of what a node without results reads besides, more than any."""
        return math.prod(self.pool.type_of(name)[1]) if name in self.pool else sys.maxsize

    def _type(self, name: str) -> Type | None:
        """Type of a constant or of a tensor whose type is known."""
        if name in self.pool:
            return self.pool.type_of(name)
        return self._types.get(name)

    def _unflattened(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Move a softmax over the last axis before the Flatten of its operand.

        Before opset 13 a softmax flattens; where the converter to 13 does not know a rank, it
        writes that out even for the last axis, which makes attention unrecognisable.
        """
        self._made.update((name, node) for name in node.output)
        flatten = self._made.get(node.input[0]) if node.op_type in ("Softmax", "LogSoftmax") else None
        if (
            flatten is None
            or flatten.op_type != "Flatten"
            or integer_attribute(node, "axis", -1) not in (-1, 1)
        ):
            return [node]
        source = flatten.input[0]
        type_ = self._type(source)
        if not _known(type_) or integer_attribute(flatten, "axis", 1) != len(type_[1]) - 1:
            return [node]
        self._moved += 1
        result = f"{node.output[0]}/unflattened"
        self._types[result] = type_
        softmax = helper.make_node(node.op_type, [source], [result], name=node.name, axis=-1)
        after = helper.make_node(
            "Flatten", [result], [node.output[0]], name=f"{node.name}/Flatten", axis=len(type_[1]) - 1
        )
        self._made[node.output[0]] = after
        return [softmax, after]

    # ---- If with a known condition -------------------------------------------------------

    def _known_branch(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Nodes of the branch that an If takes; None when that is not known."""
        if node.op_type != "If" or node.input[0] not in self.pool:
            return None
        wanted = "then_branch" if self.pool.array(node.input[0]).reshape(-1)[0] else "else_branch"
        graph = next((a.g for a in node.attribute if a.name == wanted), None)
        if graph is None or len(graph.output) < len(node.output):
            raise ModelError(f"Node {node.name!r} (If) has no usable {wanted}.")
        nodes = in_its_place(node, graph)
        for tensor in graph.initializer:
            self.pool.add_tensor(tensor)
        if self._follows_sizes(node):
            self.branches[node.name] = wanted
            self.sizing.conditions.append(node.input[0])
        return nodes

    # ---- evaluation ----------------------------------------------------------------------

    def _evaluate(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """Results of a node of constants; None when it must stay."""
        if node.op_type == "Constant":
            return constant_value(node)
        if node.op_type in ("Shape", "Size"):
            return self._shape(node)
        if draws(node):
            return self._drawn(node)
        kept = node.op_type in _KEEP and not dequantizes_small_floats(node, self.pool)
        if kept or any(a.HasField("g") or a.graphs for a in node.attribute):
            return None
        if node.op_type not in JUDGED and all(_is_empty(self._types.get(name)) for name in node.output):
            return [self._empty(name) for name in node.output]
        inputs = [name for name in node.input if name]
        if not all(name in self.pool for name in inputs) or not self._affordable(node, inputs):
            return None
        if self._open_sizes and node.op_type in _INTERPOLATING and self._follows_sizes(node):
            self._staying.add(node.output[0])  # in other forms too, whose sizes are constants of their own
            return None
        arrays = {name: self.pool.array(name) for name in inputs}
        fast = SHORT_CUTS.get(node.op_type)
        try:
            if fast is not None and all(node.input) and not any(a.dtype == object for a in arrays.values()):
                results = fast(node, [arrays[name] for name in node.input])
                if results is not None:
                    return results
            results = self._reference(node, arrays)
        except ModelError:
            raise
        except Exception:  # whatever the evaluator cannot do is left to run time
            return None
        known = all(isinstance(result, np.ndarray | np.generic) for result in results)
        return [np.asarray(result) for result in results] if known else None

    def _empty(self, name: str) -> np.ndarray:
        """Value of a tensor without elements."""
        element, dims = self._types[name]
        return np.empty(dims, helper.tensor_dtype_to_np_dtype(element))

    def _reference(self, node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Results of a node by ONNX's own evaluator, an empty one in the place of a result without a name."""
        from onnx.reference import ReferenceEvaluator  # slow imports that few models need twice

        from hetero_tvm.frontend.onnx.evaluator import REFERENCE_OPS

        inputs = [helper.make_tensor_value_info(name, *self.pool.type_of(name)) for name in arrays]
        outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
        graph = helper.make_graph([node], "fold", inputs, outputs)
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(graph, opsets=self.opsets, new_ops=list(REFERENCE_OPS))
            found = iter(evaluator.run(None, arrays))
        return [next(found) if name else np.empty(0) for name in node.output]

    def _shape(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """Result of a Shape or Size whose operand has a known shape."""
        dims = self.pool.shape(node.input[0], self._types)
        if dims is None:
            return None
        if node.op_type == "Size":
            return [np.array(int(np.prod(dims, dtype=np.int64)), np.int64)]
        limits = {a.name: a.i for a in node.attribute}
        return [np.array(dims[slice(limits.get("start", 0), limits.get("end", len(dims)))], np.int64)]

    def _drawn(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """Result of a node that draws numbers, whose shape is known."""
        like = node.input[0] if node.op_type in LIKE else ""
        dims = self.pool.shape(like, self._types) if like else ()
        if dims is None or not _known(self._types.get(node.output[0])) or not self._affordable(node, []):
            return None
        refuse_decisions(node, self._deciding)
        numbers = drawn(node, (self._type(like)[0], dims) if like else None)
        return None if numbers is None else [numbers]

    def _affordable(self, node: onnx.NodeProto, inputs: list[str]) -> bool:
        """Whether the results are of reasonable size; hostile models ask for terabytes."""
        operands = sum(self.pool.nbytes(name) for name in inputs)
        total = 0
        for name in filter(None, node.output):
            element, dims = self._types.get(name, (0, None))
            if not element or dims is None or any(dim is None for dim in dims):
                return operands <= _BLIND_BYTES and node.op_type not in _BLIND_GROWERS
            item = 8 if element == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(element).itemsize
            total += int(np.prod(dims, dtype=np.float64)) * item
        key = next(filter(None, node.output), "")
        if key in self._staying:
            return False  # decided in an earlier round, and counted
        if not self._quick(node, inputs):
            self._staying.add(key)
            return False
        # What stays in the graph counts too: TVM makes constants of some of it.
        self._bytes_left -= total
        if self._bytes_left < 0:
            text = f"Node {node.name!r} ({node.op_type}) and those before compute too many bytes of constants"
            raise beyond("folded_bytes", text, self.limits)
        if total > (_LARGEST_RESULT if total <= _GROWTH * operands else _GROWN_BYTES):
            self._staying.add(key)
            return False
        return True

    def _quick(self, node: onnx.NodeProto, inputs: list[str]) -> bool:
        """Whether there is time to compute a node, whose results have known shapes."""
        shapes = [self.pool.type_of(name)[1] for name in inputs]
        results = sum(math.prod(self._types[name][1]) for name in node.output if name)
        if node.op_type in _SLOW:
            self._slow_left -= results + sum(math.prod(shape) for shape in shapes)
            return self._slow_left >= 0
        longest = max((dim for shape in shapes for dim in shape), default=1)
        return results * longest <= _PRODUCTS.get(node.op_type, math.inf)


def _known(type_: Type | None) -> bool:
    """Whether all dimensions are known."""
    return type_ is not None and type_[1] is not None and None not in type_[1]


def _is_empty(type_: Type | None) -> bool:
    """Whether a tensor is known to have no elements."""
    return _known(type_) and 0 in type_[1]
