"""``python -m tests.campaign.odd_files``: files that are valid, and odd as those of real exporters are.

Each kind builds small models: odd names, results that are inputs or constants, many results, types beside
each other, extents of 0 and 1, functions, sparse and external constants, old opsets, quantisers per channel.
Every model is judged as generated graphs are, beside ONNX Runtime and ONNX's own evaluator.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.campaign.graphs.judge import BROKEN, REFUSED, UNJUDGED, WRONG, Verdict, verdict
from tests.campaign.graphs.settings import CPU, Setting, add_options

Rng = np.random.Generator
F32, F64, F16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
I64, U8, BOOL = TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL


@dataclass
class Case:
    """A model in the making: its nodes, ends and constants."""

    rng: Rng
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    sparse: list[onnx.SparseTensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    special: bool = False
    """Whether NaN and infinity are among the inputs."""

    def input(self, name: str, dtype: int, shape: Iterable[int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        name = name or f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, dtype: str = "float32", name: str | None = None) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.5).astype(dtype), name)

    def node(self, op: str, *inputs: str, out: str | None = None, results: int = 1, **attributes) -> str:
        out = out or f"t{len(self.nodes)}"
        names = [out, *(f"{out}_{n}" for n in range(1, results))]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n_{out}", **attributes))
        return out

    def output(self, name: str, dtype: int, shape: Iterable[int] | None = None) -> None:
        self.outputs.append(
            helper.make_tensor_value_info(name, dtype, None if shape is None else list(shape))
        )

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "odd", self.inputs, self.outputs, self.constants, sparse_initializer=self.sparse
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.functions:
            opsets.append(helper.make_opsetid("local", 1))
        model = helper.make_model(graph, opset_imports=opsets, functions=self.functions)
        model.ir_version = 10
        for output in model.graph.output:
            if not output.type.tensor_type.HasField("shape"):
                output.type.tensor_type.ClearField("shape")
        return model

    def draw(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        draw = {}
        for value in self.inputs:
            tensor = value.type.tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            if dtype.kind == "f":
                array = rng.standard_normal(shape).astype(dtype)
                if self.special and array.size:
                    flat = array.reshape(-1)
                    at = rng.integers(0, flat.size, max(1, flat.size // 40))
                    flat[at] = rng.choice([np.nan, np.inf, -np.inf], at.size)
            elif dtype.kind == "b":
                array = rng.integers(0, 2, shape).astype(dtype)
            else:
                array = rng.integers(0, 4 if dtype.itemsize > 1 else 127, shape).astype(dtype)
            draw[value.name] = array
        return draw


KINDS: dict[str, Callable[[Case], None]] = {}


def kind(make: Callable[[Case], None]) -> Callable[[Case], None]:
    KINDS[make.__name__] = make
    return make


@kind
def names(case: Case) -> None:
    """Slashes, spaces, quotes, letters of other scripts, a name of 3,000 characters, names of C."""
    pool = [
        "a/b/c",
        "a b",
        "模型/输入",
        "x" * 3000,
        "int",
        "main",
        "0",
        "a.b:0",
        "a-b",
        "'q'",
        '"d"',
        "a\\b",
        "%x",
        "{y}",
        "é",
        "p_value",
        "relax",
        "T.x",
        "self",
        "lambda",
        "None",
        "input",
        "a\nb",
        "../up",
        "-1",
        "$",
    ]
    pool = [str(name) for name in case.rng.permutation(pool)]
    a, b, c, d, e, f = pool[:6]
    case.input(a, F32, (3, 4))
    case.weight(4, 5, name=b)
    case.node("MatMul", a, b, out=c)
    case.node("Relu", c, out=d)
    case.node("Softmax", d, out=e)
    case.nodes[-1].name = pool[6]
    case.node("ReduceMean", c, out=f, axes=[1])
    for name, shape in ((e, (3, 5)), (f, (3, 1))):
        case.output(name, F32, shape)


@kind
def alike_names(case: Case) -> None:
    """Names that become one when odd characters are replaced."""
    many = ["x.1", "x_1", "x/1", "x 1", "x:1", "X_1"]
    many = [str(name) for name in case.rng.permutation(many)]
    case.input(many[0], F32, (2, 3))
    case.input(many[1], F32, (2, 3))
    case.weight(2, 3, name=many[2])
    case.node("Add", many[0], many[2], out=many[3])
    case.node("Mul", many[3], many[1], out=many[4])
    case.node("Sub", many[4], many[0], out=many[5])
    for name in many[3:]:
        case.output(name, F32, (2, 3))


@kind
def results_of_all_kinds(case: Case) -> None:
    """Inputs, constants, one tensor twice (by Identity), and reshapes of them as results."""
    case.input("x", F32, (2, 6))
    case.input("unused", I64, (3,))
    case.input("only_shape", F32, (4, 5))
    case.weight(2, 6, name="w")
    case.node("Identity", "x", out="same")
    case.node("Identity", "w", out="weights")
    case.node("Reshape", "x", case.constant(np.array([3, 4])), out="other")
    case.node("Reshape", "w", case.constant(np.array([12])), out="flat_weights")
    case.node("Add", "x", "w", out="sum")
    case.node("Identity", "sum", out="sum_again")
    case.node("Shape", "only_shape", out="extents")
    case.node("Relu", "sum", out="relu")
    case.node("Dropout", "sum", out="dropped")
    ends = [
        ("same", F32, (2, 6)),
        ("weights", F32, (2, 6)),
        ("other", F32, (3, 4)),
        ("flat_weights", F32, (12,)),
        ("sum", F32, (2, 6)),
        ("sum_again", F32, (2, 6)),
        ("extents", I64, (2,)),
        ("relu", F32, (2, 6)),
        ("w", F32, (2, 6)),
        ("dropped", F32, (2, 6)),
        ("x", F32, (2, 6)),
    ]
    for place in case.rng.permutation(len(ends))[: case.rng.integers(2, len(ends) + 1)]:
        case.output(*ends[place])


@kind
def hundreds_of_results(case: Case) -> None:
    """Every value of a long chain is a result."""
    x = case.input("x", F32, (2, 8))
    for _ in range(300):
        op = case.rng.choice(["Relu", "Neg", "Tanh", "Sigmoid", "Abs", "Floor"])
        x = case.node(str(op), x)
        case.output(x, F32, (2, 8))


@kind
def hundreds_of_inputs(case: Case) -> None:
    """A sum and a concatenation of very many inputs."""
    many = [case.input(f"x{n}", F32, (2, 3)) for n in range(int(case.rng.integers(100, 300)))]
    case.output(case.node("Sum", *many), F32, (2, 3))
    case.output(case.node("Concat", *many, axis=0), F32, (2 * len(many), 3))
    case.output(case.node("Max", *many), F32, (2, 3))


@kind
def doubles_between(case: Case) -> None:
    """A float model with a part in float64, and results of both."""
    x = case.input("x", F32, (4, 6))
    y = case.node("MatMul", x, case.weight(6, 6))
    d = case.node("Cast", y, to=F64)
    d = case.node("MatMul", d, case.weight(6, 6, dtype="float64"))
    d = case.node("Softmax", d, axis=-1)
    case.output(d, F64, (4, 6))
    h = case.node("Cast", case.node("Log", d), to=F16)
    h = case.node("Mul", h, case.weight(6, dtype="float16"))
    case.output(h, F16, (4, 6))
    back = case.node("Cast", d, to=F32)
    case.output(case.node("LayerNormalization", back, case.weight(6), case.weight(6)), F32, (4, 6))


@kind
def bytes_of_images(case: Case) -> None:
    """An image of bytes: cast, normalised, convolved; bytes and truth values as results."""
    x = case.input("image", U8, (1, 8, 8, 3))
    t = case.node("Transpose", x, perm=[0, 3, 1, 2])
    f = case.node("Cast", t, to=F32)
    f = case.node("Sub", f, case.constant(np.array([120, 110, 100], np.float32).reshape(1, 3, 1, 1)))
    f = case.node("Div", f, case.constant(np.array([58, 57, 60], np.float32).reshape(1, 3, 1, 1)))
    f = case.node("Conv", f, case.weight(5, 3, 3, 3), case.weight(5), pads=[1, 1, 1, 1])
    f = case.node("Relu", f)
    case.output(f, F32, (1, 5, 8, 8))
    high = case.node("Greater", f, case.constant(np.float32(0.5)))
    case.output(high, BOOL, (1, 5, 8, 8))
    case.output(case.node("ArgMax", f, axis=1, keepdims=0), I64, (1, 8, 8))
    m = case.node(
        "Cast", case.node("Clip", f, case.constant(np.float32(0)), case.constant(np.float32(9))), to=U8
    )
    case.output(m, U8, (1, 5, 8, 8))
    case.output(case.node("Cast", high, to=F32), F32, (1, 5, 8, 8))
    case.output(case.node("MaxPool", t, kernel_shape=[2, 2], strides=[2, 2]), U8, (1, 3, 4, 4))


@kind
def integers_after(case: Case) -> None:
    """Detection-like work after the scores: orders, indices in int64, masks, one-hot."""
    x = case.input("scores", F32, (2, 20))
    b = case.input("boxes", F32, (2, 20, 4))
    top = case.node("TopK", x, case.constant(np.array([5])), results=2, axis=1)
    index = f"{top}_1"
    case.output(index, I64, (2, 5))
    wide = case.node("Unsqueeze", index, case.constant(np.array([2])))
    wide = case.node("Tile", wide, case.constant(np.array([1, 1, 4])))
    case.output(case.node("GatherElements", b, wide, axis=1), F32, (2, 5, 4))
    row = case.node("Div", index, case.constant(np.int64(3)))
    col = case.node("Mod", index, case.constant(np.int64(3)))
    key = case.node("Add", case.node("Mul", row, case.constant(np.int64(2**40))), col)
    case.output(key, I64, (2, 5))
    case.output(case.node("CumSum", key, case.constant(np.int64(1)), exclusive=1, reverse=1), I64, (2, 5))
    hot = case.node("OneHot", index, case.constant(np.array([20])), case.constant(np.array([0, 7])))
    case.output(hot, I64, (2, 5, 20))
    both = case.node("And", case.node("Less", row, col), case.node("Not", case.node("Equal", col, row)))
    case.output(both, BOOL, (2, 5))
    case.output(case.node("ReduceMax", key, axes=[1], keepdims=0), I64, (2,))
    case.output(case.node("Where", both, key, index), I64, (2, 5))


@kind
def ones_everywhere(case: Case) -> None:
    """Extents of 1, scalars."""
    x = case.input("x", F32, (1, 1, 1, 1))
    s = case.input("s", F32, ())
    y = case.node("Conv", x, case.weight(1, 1, 1, 1), case.weight(1))
    y = case.node(
        "BatchNormalization", y, *(case.constant(np.array([v], np.float32)) for v in (1.5, 0.2, 0.1, 2))
    )
    y = case.node("Add", y, s)
    case.output(case.node("Softmax", y, axis=1), F32, (1, 1, 1, 1))
    case.output(case.node("MatMul", y, y), F32, (1, 1, 1, 1))
    case.output(case.node("GlobalAveragePool", y), F32, (1, 1, 1, 1))
    case.output(case.node("Squeeze", y), F32, ())
    case.output(case.node("ReduceSum", y, keepdims=0), F32, ())
    case.output(case.node("ArgMax", y, axis=3), I64, (1, 1, 1, 1))
    case.output(
        case.node("Resize", y, "", case.constant(np.array([1, 1, 3, 2], np.float32)), mode="linear"),
        F32,
        (1, 1, 3, 2),
    )
    case.output(case.node("TopK", y, case.constant(np.array([1])), results=2), F32, (1, 1, 1, 1))
    case.output(case.node("Mul", s, s), F32, ())
    case.output(case.node("Einsum", y, y, equation="abcd,abcd->"), F32, ())


@kind
def no_batch(case: Case) -> None:
    """A batch of no rows through layers of all sorts."""
    x = case.input("x", F32, (0, 3, 8, 8))
    y = case.node("Conv", x, case.weight(4, 3, 3, 3), case.weight(4), pads=[1, 1, 1, 1])
    y = case.node("MaxPool", case.node("Relu", y), kernel_shape=[2, 2], strides=[2, 2])
    case.output(y, F32, (0, 4, 4, 4))
    f = case.node("Flatten", y)
    g = case.node("Gemm", f, case.weight(10, 64), case.weight(10), transB=1)
    case.output(case.node("Softmax", g), F32, (0, 10))
    case.output(case.node("LayerNormalization", g, case.weight(10), case.weight(10)), F32, (0, 10))
    case.output(case.node("Concat", g, g, axis=0), F32, (0, 10))
    case.output(case.node("Gather", g, case.constant(np.array([1, 0])), axis=1), F32, (0, 2))
    case.output(case.node("ReduceSum", g, case.constant(np.array([0])), keepdims=0), F32, (10,))
    case.output(case.node("TopK", g, case.constant(np.array([2])), results=2), F32, (0, 2))


@kind
def twin_weights(case: Case) -> None:
    """Equal constants under other names, one constant in several places, of several shapes."""
    array = (case.rng.standard_normal((6, 6)) * 0.4).astype(np.float32)
    first, second = case.constant(array), case.constant(array.copy())
    third = case.constant(array.reshape(6, 6, 1, 1))
    x = case.input("x", F32, (2, 6))
    y = case.node("MatMul", x, first)
    z = case.node("MatMul", y, second)
    t = case.node("Gemm", z, first, case.constant(array[0]), transB=1)
    case.output(t, F32, (2, 6))
    four = case.node("Reshape", t, case.constant(np.array([2, 6, 1, 1])))
    case.output(case.node("Conv", four, third), F32, (2, 6, 1, 1))
    case.output(case.node("Gather", first, case.node("ArgMax", t, axis=1, keepdims=0)), F32, (2, 6))
    case.output(
        case.node("Add", y, case.node("Slice", second, *(case.constant(np.array([n])) for n in (2, 4, 0)))),
        F32,
        (2, 6),
    )


@kind
def local_functions(case: Case) -> None:
    """Functions with attributes, optional inputs, in functions, with opsets of their own."""
    inner = helper.make_function(
        "local",
        "Scaled",
        ["a", "b"],
        ["c"],
        [
            helper.make_node("Constant", [], ["k"]),
            helper.make_node("Mul", ["a", "k"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["c"]),
        ],
        [helper.make_opsetid("", case.opset)],
        attributes=["factor"],
    )
    reference = inner.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = (
        "value_float",
        "factor",
        onnx.AttributeProto.FLOAT,
    )
    outer = helper.make_function(
        "local",
        "Block",
        ["x", "w"],
        ["y", "h"],
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Scaled", ["h", "x"], ["s"], domain="local", factor=0.25),
            helper.make_node("Relu", ["s"], ["y"]),
        ],
        [helper.make_opsetid("", case.opset), helper.make_opsetid("local", 1)],
    )
    case.functions = [inner, outer]
    x = case.input("x", F32, (3, 4))
    for number in range(3):
        w = case.weight(4, 4)
        case.nodes.append(helper.make_node("Block", [x, w], [f"y{number}", f"h{number}"], domain="local"))
        x = f"y{number}"
        case.output(f"h{number}", F32, (3, 4))
    case.nodes.append(helper.make_node("Scaled", [x, x], ["end"], domain="local", factor=-1.5))
    case.output("end", F32, (3, 4))


@kind
def sparse_constants(case: Case) -> None:
    """Sparse initialisers, by one index and by one per axis, empty ones too, and sparse Constant nodes."""

    def sparse(name: str, shape: tuple[int, ...], per_axis: bool, count: int) -> onnx.SparseTensorProto:
        size = int(np.prod(shape))
        at = np.sort(case.rng.choice(size, count, replace=False)).astype(np.int64)
        values = case.rng.standard_normal(count).astype(np.float32)
        places = np.stack(np.unravel_index(at, shape), 1).astype(np.int64) if per_axis else at
        return helper.make_sparse_tensor(
            numpy_helper.from_array(values, name), numpy_helper.from_array(places, f"{name}_at"), list(shape)
        )

    case.sparse = [sparse("a", (6, 5), True, 7), sparse("b", (5, 6), False, 4)]
    x = case.input("x", F32, (2, 6))
    y = case.node("MatMul", x, "a")
    case.output(y, F32, (2, 5))
    case.output(case.node("MatMul", y, "b"), F32, (2, 6))
    c = case.node("Constant", sparse_value=sparse("c", (5,), False, int(case.rng.integers(1, 4))))
    case.output(case.node("Add", y, c), F32, (2, 5))


@kind
def quantised_per_channel(case: Case) -> None:
    """Scales and zero points of their own for every channel, along axes of all signs."""
    x = case.input("x", F32, (2, 4, 5, 5))
    s, z = case.constant(np.float32(0.03)), case.constant(np.uint8(117))
    q = case.node("QuantizeLinear", x, s, z)
    case.output(q, U8, (2, 4, 5, 5))
    d = case.node("DequantizeLinear", q, s, z)
    w = case.constant(case.rng.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8))
    ws = case.constant(case.rng.uniform(0.001, 0.02, 6).astype(np.float32))
    wz = case.constant(case.rng.integers(-5, 6, 6).astype(np.int8))
    wd = case.node("DequantizeLinear", w, ws, wz, axis=0)
    y = case.node("Conv", d, wd, pads=[1, 1, 1, 1])
    ys = case.constant(case.rng.uniform(0.01, 0.05, 6).astype(np.float32))
    yz = case.constant(case.rng.integers(-9, 9, 6).astype(np.int8))
    yq = case.node("QuantizeLinear", y, ys, yz, axis=-3)
    case.output(case.node("DequantizeLinear", yq, ys, yz, axis=-3), F32, (2, 6, 5, 5))
    f = case.node("Flatten", d)
    g = case.constant(case.rng.integers(0, 256, (100, 7)).astype(np.uint8))
    gs = case.constant(case.rng.uniform(0.001, 0.02, 7).astype(np.float32))
    gz = case.constant(case.rng.integers(100, 150, 7).astype(np.uint8))
    gd = case.node("DequantizeLinear", g, gs, gz, axis=-1)
    case.output(case.node("MatMul", f, gd), F32, (2, 7))


@kind
def old_forms(case: Case) -> None:
    """Operators as they were: axes as attributes, Clip, Pad, Slice, Upsample, Dropout, flat Softmax."""
    case.opset = int(case.rng.integers(7, 10))
    x = case.input("x", F32, (2, 3, 4, 4))
    y = case.node("Pad", x, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5)
    y = case.node("Slice", y, axes=[2, 3], starts=[1, -5], ends=[5, 9])
    y = case.node("Clip", y, min=-1.0, max=1.5)
    if case.opset < 9:
        y = case.node("Upsample", y, scales=[1.0, 1.0, 2.0, 1.5], mode="nearest")
    y = case.node("Dropout", y)
    case.output(y, F32)
    case.output(case.node("Softmax", y, axis=2), F32)
    case.output(case.node("LogSoftmax", y), F32)
    case.output(case.node("Squeeze", case.node("Unsqueeze", y, axes=[0, 2]), axes=[0, 2]), F32)
    case.output(case.node("ReduceSum", y, axes=[1, 3]), F32)
    case.output(case.node("TopK", y, k=2, axis=3, results=2), F32)
    case.output(case.node("Flatten", y, axis=2), F32)
    case.output(case.node("Gemm", case.node("Flatten", x), case.weight(48, 5), case.weight(5)), F32, (2, 5))


def family(make: Callable[[Case], None]) -> Callable[[Case], None]:
    """A kind whose inputs hold NaN and infinities: layers that kernels are fused of."""

    def special(case: Case) -> None:
        case.special = True
        make(case)

    KINDS[f"nan_{make.__name__}"] = special
    return make


@family
def gelus(case: Case) -> None:
    x = case.node("MatMul", case.input("x", F32, (9, 16)), case.weight(16, 16))
    x = case.node("Add", x, case.weight(16))
    half, one = case.constant(np.float32(0.5)), case.constant(np.float32(1))
    erf = case.node("Erf", case.node("Div", x, case.constant(np.float32(2**0.5))))
    case.output(case.node("Mul", case.node("Mul", x, case.node("Add", erf, one)), half), F32, (9, 16))
    cube = case.node("Pow", x, case.constant(np.float32(3)))
    inner = case.node("Add", x, case.node("Mul", cube, case.constant(np.float32(0.044715))))
    tanh = case.node("Tanh", case.node("Mul", inner, case.constant(np.float32(0.7978845608))))
    case.output(case.node("Mul", half, case.node("Mul", x, case.node("Add", tanh, one))), F32, (9, 16))
    gate = case.node("MatMul", "x", case.weight(16, 16))
    silu = case.node("Mul", gate, case.node("Sigmoid", gate))
    case.output(case.node("MatMul", case.node("Mul", silu, x), case.weight(16, 8)), F32, (9, 8))
    case.output(case.node("HardSwish", x), F32, (9, 16))
    case.output(case.node("Mish", x) if case.opset >= 18 else case.node("Softplus", x), F32, (9, 16))


@family
def norms(case: Case) -> None:
    x = case.input("x", F32, (8, 6, 24))
    r = case.node("Add", x, case.input("r", F32, (8, 6, 24)))
    case.output(r, F32, (8, 6, 24))
    case.output(case.node("LayerNormalization", r, case.weight(24), case.weight(24)), F32, (8, 6, 24))
    square = case.node("ReduceMean", case.node("Mul", r, r), axes=[-1])
    root = case.node("Sqrt", case.node("Add", square, case.constant(np.float32(1e-6))))
    case.output(case.node("Mul", case.node("Div", r, root), case.weight(24)), F32, (8, 6, 24))
    case.output(case.node("InstanceNormalization", r, case.weight(6), case.weight(6)), F32, (8, 6, 24))
    case.output(case.node("LpNormalization", r, axis=-1, p=2), F32, (8, 6, 24))
    case.output(case.node("MeanVarianceNormalization", r, axes=[0, 2]), F32, (8, 6, 24))


@family
def convolutions(case: Case) -> None:
    c = int(case.rng.choice([3, 16]))
    x = case.input("x", F32, (1, c, 12, 12))
    y = case.node("Conv", x, case.weight(16, c, 1, 1), case.weight(16))
    y = case.node(
        "BatchNormalization",
        y,
        *(case.constant(case.rng.uniform(0.5, 1, 16).astype(np.float32)) for _ in range(4)),
    )
    y = case.node("Clip", y, case.constant(np.float32(0)), case.constant(np.float32(6)))
    d = case.node("Conv", y, case.weight(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    case.output(case.node("Relu", case.node("Add", d, y)), F32, (1, 16, 12, 12))
    p = case.node("MaxPool", d, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    a = case.node("AveragePool", d, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    case.output(case.node("Concat", p, a, axis=1), F32, (1, 32, 6, 6))
    s = case.node("Conv", case.node("GlobalAveragePool", d), case.weight(16, 16, 1, 1))
    case.output(case.node("Mul", d, case.node("HardSigmoid", s)), F32, (1, 16, 12, 12))
    case.output(
        case.node("Resize", p, "", case.constant(np.array([1, 1, 2, 2], np.float32))), F32, (1, 16, 12, 12)
    )


@family
def attentions(case: Case) -> None:
    q, k, v = (case.input(n, F32, (2, 3, 7, 8)) for n in "qkv")
    t = case.node("Transpose", k, perm=[0, 1, 3, 2])
    s = case.node("Mul", case.node("MatMul", q, t), case.constant(np.float32(8**-0.5)))
    form = int(case.rng.integers(0, 3))
    if form == 1:
        # Not causal: what lies behind a causal mask is not read (docs/numerics.md).
        hidden = (case.rng.random((7, 7)) < 0.3) & ~np.eye(7, dtype=bool)
        s = case.node("Add", s, case.constant(np.where(hidden, -np.inf, 0).astype(np.float32)))
    elif form == 2:
        keep = case.input("keep", BOOL, (2, 1, 1, 7))
        s = case.node("Where", keep, s, case.constant(np.float32(np.finfo(np.float32).min)))
    y = case.node("MatMul", case.node("Softmax", s, axis=-1), v)
    case.output(y, F32, (2, 3, 7, 8))
    flat = case.node(
        "Reshape", case.node("Transpose", y, perm=[0, 2, 1, 3]), case.constant(np.array([2, 7, 24]))
    )
    case.output(case.node("MatMul", flat, case.weight(24, 24)), F32, (2, 7, 24))


@family
def reductions(case: Case) -> None:
    x = case.input("x", F32, (5, 7, 9))
    for op in (
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceSumSquare",
    ):
        case.output(case.node(op, x, axes=[int(case.rng.integers(0, 3))], keepdims=0), F32)
    case.output(case.node("ArgMax", x, axis=1), I64)
    case.output(case.node("TopK", x, case.constant(np.array([3])), axis=2, results=2), F32)
    case.output(case.node("CumSum", x, case.constant(np.int64(1))), F32)
    case.output(case.node("IsNaN", case.node("Sub", x, x)), BOOL)
    case.output(case.node("IsInf", case.node("Exp", x)), BOOL)
    case.output(case.node("Max", x, case.weight(9)), F32)
    case.output(case.node("Where", case.node("GreaterOrEqual", x, case.weight(9)), x, case.weight(7, 1)), F32)
    case.output(case.node("Not", case.node("Equal", x, x)), BOOL)


@family
def recurrences(case: Case) -> None:
    x = case.input("x", F32, (5, 2, 4))
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        out = case.node(
            op,
            x,
            case.weight(1, gates * 6, 4),
            case.weight(1, gates * 6, 6),
            case.weight(1, gates * 12),
            hidden_size=6,
            results=2,
        )
        case.output(out, F32, (5, 1, 2, 6))
        case.output(f"{out}_1", F32, (1, 2, 6))


def make(name: str, seed: int) -> Case:
    case = Case(np.random.default_rng(seed))
    KINDS[name](case)
    return case


def run(
    seeds: Iterable[int], wanted: Iterable[str], setting: Setting = CPU
) -> Iterator[tuple[str, int, Verdict]]:
    """(kind, seed, verdict) of each model."""
    for name in wanted:
        for seed in seeds:
            case = make(name, seed)
            draws = [case.draw(2 * seed), case.draw(2 * seed + 1)]
            yield name, seed, verdict(case.model(), draws, setting=setting)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.odd_files", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3, help="models of each kind")
    parser.add_argument("--kinds", nargs="*", choices=sorted(KINDS), default=list(KINDS))
    add_options(parser)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    counts: Counter[str] = Counter()
    for name, seed, how in run(seeds, options.kinds, Setting.of(options)):
        counts[how.kind] += 1
        if how.kind in (WRONG, BROKEN, REFUSED, UNJUDGED):
            print(f"{how.kind}: {name} {seed}: {how.reason[:500]} {how.note[:300]}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts[WRONG] + counts[BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main())
