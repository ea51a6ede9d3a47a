"""Single operators as real models have them, each an ONNX file of its own."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TYPES = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("float64"): TensorProto.DOUBLE,
    np.dtype("int32"): TensorProto.INT32,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("bool"): TensorProto.BOOL,
    np.dtype("uint8"): TensorProto.UINT8,
}


@dataclass
class Net:
    """An ONNX graph that is being written; random numbers depend on the name alone."""

    name: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    integer_outputs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(zlib.crc32(self.name.encode()))

    def x(self, *shape: int) -> str:
        """A run-time input of normal numbers."""
        return self.given(self.random.standard_normal(shape).astype("float32"))

    def given(self, array: np.ndarray) -> str:
        """A run-time input that holds ``array``."""
        name = f"x{len(self.values)}"
        self.values[name] = array
        return name

    def w(self, *shape: int) -> str:
        """A constant of small normal numbers."""
        return self.c((self.random.standard_normal(shape) * 0.1).astype("float32"))

    def c(self, array: Any, dtype: str | None = None) -> str:
        """A constant; integers are int64."""
        array = np.asarray(array, dtype=dtype)
        array = array.astype("float32") if array.dtype == np.float64 and dtype is None else array
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def op(self, kind: str, *operands: str, outputs: int = 1, **attributes: Any) -> str:
        """A node; its first result."""
        names = [f"y{len(self.nodes)}" if n == 0 else f"y{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(operands), names, **attributes))
        return names[0]

    def model(self) -> onnx.ModelProto:
        """The file: all results of the last node are outputs."""
        inputs = [
            helper.make_tensor_value_info(name, _TYPES[array.dtype], array.shape)
            for name, array in self.values.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.nodes[-1].output if name]
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        inferred = onnx.shape_inference.infer_shapes(model)
        known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.output)}
        del model.graph.output[:]
        model.graph.output.extend(known[value.name] for value in outputs)
        return model


Case = Callable[[Net], Any]
CASES: dict[str, Case] = {}


def _case(name: str, make: Case) -> None:
    assert name not in CASES, name
    CASES[name] = make


def build(name: str, cases: Mapping[str, Case] = CASES) -> Net:
    """The graph of one case."""
    net = Net(name)
    cases[name](net)
    return net


# convolutions ------------------------------------------------------------------------------------
def _conv(name: str, x: tuple[int, ...], filters: int, kernel: tuple[int, ...], bias: bool = True, **kw: Any):
    groups = kw.get("group", 1)

    def make(n: Net) -> None:
        operands = [n.x(*x), n.w(filters, x[1] // groups, *kernel)]
        n.op("Conv", *operands, *([n.w(filters)] if bias else []), kernel_shape=list(kernel), **kw)

    _case(f"conv{len(kernel)}d {name}", make)


_conv("k3 pointwise of TCN", (1, 256, 1000), 256, (1,))
_conv("k3", (1, 256, 1000), 256, (3,), pads=[1, 1])
_conv("k7", (1, 128, 2000), 128, (7,), pads=[3, 3])
_conv("k5 strided", (1, 128, 4000), 256, (5,), pads=[2, 2], strides=[2])
_conv("k3 dilated 8", (1, 128, 2000), 128, (3,), pads=[8, 8], dilations=[8])
_conv("k2 causal dilated", (1, 64, 8000), 128, (2,), pads=[16, 0], dilations=[16])
_conv("stem of Whisper", (1, 80, 3000), 384, (3,), pads=[1, 1])
_conv("second of Whisper", (1, 384, 3000), 384, (3,), pads=[1, 1], strides=[2])
_conv("wav2vec stem k10 s5", (1, 1, 16000), 512, (10,), strides=[5], bias=False)
_conv("grouped k128", (1, 768, 200), 768, (128,), pads=[64, 63], group=16)
_conv("depthwise k31", (1, 256, 1000), 256, (31,), pads=[15, 15], group=256)
_conv("depthwise causal k4 of Mamba", (1, 1536, 512), 1536, (4,), pads=[3, 0], group=1536)
_conv("1x1", (1, 256, 28, 28), 512, (1, 1))
_conv("1x1 stride 2", (1, 256, 56, 56), 512, (1, 1), strides=[2, 2])
_conv("3x3", (1, 64, 56, 56), 64, (3, 3), pads=[1, 1, 1, 1])
_conv("3x3 deep", (1, 256, 14, 14), 256, (3, 3), pads=[1, 1, 1, 1])
_conv("3x3 stride 2", (1, 128, 56, 56), 128, (3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
_conv("3x3 odd", (1, 100, 37, 37), 70, (3, 3), pads=[1, 1, 1, 1])
_conv("3x3 batch 8", (8, 64, 28, 28), 64, (3, 3), pads=[1, 1, 1, 1])
_conv("3x3 dilated 2", (1, 128, 32, 32), 128, (3, 3), pads=[2, 2, 2, 2], dilations=[2, 2])
_conv("3x3 grouped 32", (1, 256, 28, 28), 256, (3, 3), pads=[1, 1, 1, 1], group=32)
_conv("5x5", (1, 48, 28, 28), 64, (5, 5), pads=[2, 2, 2, 2])
_conv("1x7", (1, 192, 17, 17), 192, (1, 7), pads=[0, 3, 0, 3])
_conv("7x1", (1, 192, 17, 17), 192, (7, 1), pads=[3, 0, 3, 0])
_conv("7x7 stem", (1, 3, 224, 224), 64, (7, 7), pads=[3, 3, 3, 3], strides=[2, 2])
_conv("patches 16", (1, 3, 224, 224), 768, (16, 16), strides=[16, 16])
_conv("depthwise 3x3", (1, 144, 56, 56), 144, (3, 3), pads=[1, 1, 1, 1], group=144)
_conv("depthwise 7x7", (1, 96, 56, 56), 96, (7, 7), pads=[3, 3, 3, 3], group=96)
_conv("3 channels out", (1, 64, 128, 128), 3, (3, 3), pads=[1, 1, 1, 1])
_conv("3x3x3", (1, 16, 16, 56, 56), 32, (3, 3, 3), pads=[1] * 6)
_conv("stem of a video net", (1, 3, 16, 112, 112), 32, (3, 7, 7), pads=[1, 3, 3, 1, 3, 3], strides=[1, 2, 2])
_conv("1x1x1", (1, 64, 8, 28, 28), 128, (1, 1, 1))


def _deconv(name: str, x: tuple[int, ...], filters: int, kernel: tuple[int, ...], **kw: Any):
    def make(n: Net) -> None:
        operands = [n.x(*x), n.w(x[1], filters // kw.get("group", 1), *kernel), n.w(filters)]
        n.op("ConvTranspose", *operands, kernel_shape=list(kernel), **kw)

    _case(f"conv_transpose{len(kernel)}d {name}", make)


_deconv("vocoder k16 s8", (1, 256, 100), 128, (16,), pads=[4, 4], strides=[8])
_deconv("k4 s2", (1, 64, 4000), 32, (4,), pads=[1, 1], strides=[2])
_deconv("2x2 s2 of U-Net", (1, 128, 64, 64), 64, (2, 2), strides=[2, 2])
_deconv("4x4 s2 of DCGAN", (1, 256, 16, 16), 128, (4, 4), pads=[1, 1, 1, 1], strides=[2, 2])
_deconv("3x3 s1", (1, 64, 32, 32), 64, (3, 3), pads=[1, 1, 1, 1])
_deconv("2x2x2 s2", (1, 32, 8, 16, 16), 16, (2, 2, 2), strides=[2, 2, 2])


# pooling, reductions --------------------------------------------------------------------------------
def _one(name: str, kind: str, *shapes: tuple[int, ...], outputs: int = 1, **kw: Any) -> None:
    _case(name, lambda n: n.op(kind, *(n.x(*shape) for shape in shapes), outputs=outputs, **kw))


def _pool(name: str, kind: str, x: tuple[int, ...], kernel: list[int], **kw: Any) -> None:
    _one(f"{kind.lower()} {name}", kind, x, kernel_shape=kernel, **kw)


_pool("3x3 s2", "MaxPool", (1, 64, 112, 112), [3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
_pool("2x2 s2", "MaxPool", (1, 64, 128, 128), [2, 2], strides=[2, 2])
_pool("5x5 s1 of YOLO", "MaxPool", (1, 256, 20, 20), [5, 5], pads=[2, 2, 2, 2])
_pool("13x13 s1", "MaxPool", (1, 256, 20, 20), [13, 13], pads=[6, 6, 6, 6])
_pool("1-D", "MaxPool", (1, 128, 4000), [3], strides=[2])
_pool("2x2x2", "MaxPool", (1, 32, 16, 56, 56), [2, 2, 2], strides=[2, 2, 2])
_pool("3x3 s1", "AveragePool", (1, 192, 35, 35), [3, 3], pads=[1, 1, 1, 1])
_pool("2x2 s2", "AveragePool", (1, 256, 56, 56), [2, 2], strides=[2, 2])
_one("global average pool", "GlobalAveragePool", (1, 2048, 14, 14))
_one("global max pool", "GlobalMaxPool", (8, 256, 28, 28))


def _reduce(name: str, kind: str, x: tuple[int, ...], axes: list[int] | None, keepdims: int = 0) -> None:
    def make(n: Net) -> None:
        n.op(kind, n.x(*x), *([n.c(axes, "int64")] if axes is not None else []), keepdims=keepdims)

    _case(f"reduce {name}", make)


_reduce("sum of the last axis", "ReduceSum", (2048, 1024), [1])
_reduce("sum of the first axis", "ReduceSum", (2048, 1024), [0])
_reduce("mean of the middle axis", "ReduceMean", (16, 256, 768), [1])
_reduce("mean of two axes", "ReduceMean", (8, 256, 56, 56), [2, 3], 1)
_reduce("max of channels", "ReduceMax", (1, 256, 80, 80), [1], 1)
_reduce("mean of all", "ReduceMean", (4, 1024, 1024), None)
_reduce("norm of rows", "ReduceL2", (4096, 512), [1], 1)
_reduce("first and last", "ReduceSum", (32, 256, 256), [0, 2])
_reduce("log sum exp", "ReduceLogSumExp", (1024, 1000), [1])
_case("argmax of a vocabulary", lambda n: n.op("ArgMax", n.x(32, 32000), axis=1))
_case("argmax of channels", lambda n: n.op("ArgMax", n.x(1, 21, 256, 256), axis=1, keepdims=0))

# softmax, norms --------------------------------------------------------------------------------------
_one("softmax of the last axis", "Softmax", (12, 256, 256), axis=-1)
_one("softmax of a middle axis", "Softmax", (1, 21, 256, 256), axis=1)
_one("softmax of a vocabulary", "Softmax", (16, 50257), axis=-1)
_one("log softmax of a vocabulary", "LogSoftmax", (128, 32000), axis=-1)
_case("layer norm 197x768", lambda n: n.op("LayerNormalization", n.x(1, 197, 768), n.w(768), n.w(768)))
_case("layer norm 1024x1024", lambda n: n.op("LayerNormalization", n.x(1024, 1024), n.w(1024), n.w(1024)))
_case("rms norm", lambda n: _rms(n, n.x(1, 512, 2048), 2048))
_case("instance norm", lambda n: n.op("InstanceNormalization", n.x(1, 64, 128, 128), n.w(64), n.w(64)))
_case("instance norm 1-D", lambda n: n.op("InstanceNormalization", n.x(4, 128, 2000), n.w(128), n.w(128)))
_case("group norm", lambda n: _group_norm(n, (1, 320, 64, 64), 32))
_case("group norm small", lambda n: _group_norm(n, (1, 1280, 16, 16), 32))
_case(
    "batch norm",
    lambda n: n.op(
        "BatchNormalization", n.x(1, 256, 56, 56), n.w(256), n.w(256), n.w(256), n.c(np.ones(256))
    ),
)


def _rms(n: Net, x: str, width: int) -> str:
    square = n.op("ReduceMean", n.op("Mul", x, x), n.c([-1], "int64"), keepdims=1)
    scale = n.op("Reciprocal", n.op("Sqrt", n.op("Add", square, n.c(1e-6))))
    return n.op("Mul", n.op("Mul", x, scale), n.w(width))


def _group_norm(n: Net, shape: tuple[int, ...], groups: int) -> str:
    """As PyTorch exports it: an instance norm of groups."""
    x = n.op("Reshape", n.x(*shape), n.c([0, groups, -1], "int64"))
    y = n.op("InstanceNormalization", x, n.c(np.ones(groups)), n.c(np.zeros(groups)))
    y = n.op("Reshape", y, n.c(list(shape), "int64"))
    return n.op("Add", n.op("Mul", y, n.w(shape[1], 1, 1)), n.w(shape[1], 1, 1))


# data movement ---------------------------------------------------------------------------------------
_one("transpose 2048x2048", "Transpose", (2048, 2048), perm=[1, 0])
_one("transpose of heads", "Transpose", (1, 512, 12, 64), perm=[0, 2, 1, 3])
_one("transpose 3-D", "Transpose", (64, 512, 96), perm=[0, 2, 1])
_one("transpose to NHWC", "Transpose", (1, 256, 56, 56), perm=[0, 2, 3, 1])
_one("transpose from NHWC", "Transpose", (1, 224, 224, 3), perm=[0, 3, 1, 2])
_one("transpose reversed", "Transpose", (48, 64, 96), perm=[2, 1, 0])
_one("concat of channels", "Concat", (1, 256, 56, 56), (1, 128, 56, 56), (1, 64, 56, 56), axis=1)
_one("concat of the last axis", "Concat", (1, 2048, 320), (1, 2048, 192), axis=2)
_case("split in three", lambda n: n.op("Split", n.x(1, 512, 2304), outputs=3, axis=2, num_outputs=3))


def _pad(name: str, x: tuple[int, ...], pads: list[int], **kw: Any) -> None:
    _case(f"pad {name}", lambda n: n.op("Pad", n.x(*x), n.c(pads, "int64"), **kw))


_pad("constant", (1, 64, 112, 112), [0, 0, 1, 1, 0, 0, 1, 1])
_pad("reflect", (1, 32, 256, 256), [0, 0, 3, 3, 0, 0, 3, 3], mode="reflect")
_pad("edge", (1, 32, 256, 256), [0, 0, 2, 2, 0, 0, 2, 2], mode="edge")


def _slice(
    name: str, x: tuple[int, ...], starts: list[int], ends: list[int], axes: list[int], steps: list[int]
):
    def make(n: Net) -> None:
        n.op("Slice", n.x(*x), *(n.c(part, "int64") for part in (starts, ends, axes, steps)))

    _case(f"slice {name}", make)


_slice("every second pixel", (1, 64, 256, 256), [0, 0], [256, 256], [2, 3], [2, 2])
_slice("of a middle axis", (4, 512, 1024), [100], [400], [1], [1])
_slice("reversed", (512, 2048), [-1], [-5000], [1], [-1])
_case(
    "gather of embeddings",
    lambda n: n.op("Gather", n.w(30000, 384), n.given(n.random.integers(0, 30000, (4, 256)))),
)
_case(
    "gather of columns",
    lambda n: n.op("Gather", n.x(1024, 1024), n.c(n.random.permutation(1024), "int64"), axis=1),
)
_case(
    "gather elements",
    lambda n: n.op(
        "GatherElements", n.x(1024, 1000), n.given(n.random.integers(0, 1000, (1024, 256))), axis=1
    ),
)
_case(
    "gather nd",
    lambda n: n.op("GatherND", n.x(64, 256, 256), n.given(n.random.integers(0, 64, (4096, 2)))),
)
_case(
    "scatter nd",
    lambda n: n.op(
        "ScatterND",
        n.x(2048, 512),
        n.given(n.random.permutation(2048)[:256].reshape(-1, 1).astype("int64")),
        n.x(256, 512),
    ),
)
_case("expand", lambda n: n.op("Expand", n.x(1, 256, 1, 1), n.c([4, 256, 56, 56], "int64")))
_case("tile", lambda n: n.op("Tile", n.x(64, 1, 768), n.c([1, 32, 1], "int64")))
_one("depth to space", "DepthToSpace", (1, 128, 64, 64), blocksize=2, mode="CRD")
_one("space to depth", "SpaceToDepth", (1, 16, 256, 256), blocksize=2)


def _resize(name: str, x: tuple[int, ...], scale: float, **kw: Any) -> None:
    def make(n: Net) -> None:
        n.op("Resize", n.x(*x), "", n.c([1.0, 1.0, scale, scale]), **kw)

    _case(f"resize {name}", make)


_resize(
    "nearest 2x",
    (1, 128, 40, 40),
    2.0,
    mode="nearest",
    coordinate_transformation_mode="asymmetric",
    nearest_mode="floor",
)
_resize("nearest 1.5x", (1, 64, 64, 64), 1.5, mode="nearest")
_resize("linear 2x", (1, 64, 64, 64), 2.0, mode="linear")
_resize(
    "linear aligned corners",
    (1, 64, 64, 64),
    2.0,
    mode="linear",
    coordinate_transformation_mode="align_corners",
)
_resize("linear 0.5x", (1, 32, 256, 256), 0.5, mode="linear")
_resize("cubic 2x", (1, 16, 64, 64), 2.0, mode="cubic")


# selection, scans -----------------------------------------------------------------------------------
def _topk(x: tuple[int, ...], k: int, **kw: Any) -> None:
    rows = "x".join(map(str, x))
    _case(f"top {k} of {rows}", lambda n: n.op("TopK", n.x(*x), n.c([k], "int64"), outputs=2, **kw))


_topk((64, 1000), 1)
_topk((64, 1000), 5)
_topk((8, 50257), 50)
_topk((1, 8400), 100)
_topk((1, 50000), 1000)
_topk((256, 1000), 1000)
_case("cumsum of the last axis", lambda n: n.op("CumSum", n.x(512, 2048), n.c(1, "int64")))
_case("cumsum of the first axis", lambda n: n.op("CumSum", n.x(512, 2048), n.c(0, "int64")))
_case(
    "where",
    lambda n: n.op(
        "Where", n.given(n.random.random((1, 1, 512, 512)) > 0.5), n.x(1, 12, 512, 512), n.c(-1e9)
    ),
)
_case(
    "one hot",
    lambda n: n.op(
        "OneHot", n.given(n.random.integers(0, 1000, (1024,))), n.c([1000], "int64"), n.c([0.0, 1.0])
    ),
)
_case("cast to int64", lambda n: n.op("Cast", n.x(1024, 1024), to=TensorProto.INT64))
_case("clip", lambda n: n.op("Clip", n.x(1, 256, 56, 56), n.c(0.0), n.c(6.0)))

# elementwise chains ---------------------------------------------------------------------------------
_case("erf gelu", lambda n: _gelu(n, n.x(1, 512, 3072)))
_case("exp", lambda n: n.op("Exp", n.x(1024, 1024)))
_case("sigmoid", lambda n: n.op("Sigmoid", n.x(1024, 1024)))
_case("tanh", lambda n: n.op("Tanh", n.x(1024, 1024)))
_case("hard swish", lambda n: n.op("HardSwish", n.x(1, 256, 56, 56)))
_case("mish", lambda n: n.op("Mish", n.x(1, 256, 56, 56)))
_case("pow", lambda n: n.op("Pow", n.op("Abs", n.x(1024, 1024)), n.c(1.7)))
_case("swiglu", lambda n: _swiglu(n, n.x(512, 2048), n.x(512, 2048)))
_case("add of a row", lambda n: n.op("Add", n.x(1, 1024, 1024), n.x(1024)))
_case("add of channels", lambda n: n.op("Add", n.x(1, 256, 56, 56), n.x(256, 1, 1)))
_case("sin and cos", lambda n: n.op("Add", n.op("Sin", n.x(512, 1024)), n.op("Cos", n.x(512, 1024))))


def _gelu(n: Net, x: str) -> str:
    inner = n.op("Add", n.op("Erf", n.op("Div", x, n.c(1.4142135))), n.c(1.0))
    return n.op("Mul", n.op("Mul", x, inner), n.c(0.5))


def _swiglu(n: Net, x: str, gate: str) -> str:
    return n.op("Mul", n.op("Mul", gate, n.op("Sigmoid", gate)), x)


# products -------------------------------------------------------------------------------------------
def _matmul(m: int, k: int, n: int, name: str = "") -> None:
    _case(name or f"matmul {m}x{k}x{n}", lambda net: net.op("MatMul", net.x(m, k), net.w(k, n)))


for _m in (1, 4, 16, 197):
    _matmul(_m, 768, 3072)
_matmul(1, 2048, 1000)
_matmul(2048, 64, 64, "matmul tall and narrow")
_matmul(16, 4096, 1024)
_matmul(1000, 300, 77, "matmul odd")
_case("matmul batched", lambda n: n.op("MatMul", n.x(12, 256, 64), n.x(12, 64, 256)))
_case("matmul of two inputs", lambda n: n.op("MatMul", n.x(512, 512), n.x(512, 512)))
_case("gemm with a transposed", lambda n: n.op("Gemm", n.x(768, 256), n.w(768, 768), n.w(768), transA=1))
_case("gemm with b transposed", lambda n: n.op("Gemm", n.x(256, 768), n.x(512, 768), n.w(512), transB=1))
_case(
    "einsum of heads",
    lambda n: n.op("Einsum", n.x(2, 128, 12, 64), n.x(2, 128, 12, 64), equation="bqhd,bkhd->bhqk"),
)
_case(
    "einsum with weights",
    lambda n: n.op("Einsum", n.x(2, 128, 768), n.w(768, 12, 64), equation="bsd,dhe->bshe"),
)
_case(
    "matmul integers",
    lambda n: n.op(
        "MatMul",
        n.given(n.random.integers(-9, 9, (128, 256)).astype("int32")),
        n.given(n.random.integers(-9, 9, (256, 128)).astype("int32")),
    ),
)


# the rest --------------------------------------------------------------------------------------------
def _recurrent(kind: str, gates: int) -> None:
    def make(n: Net) -> None:
        x, w, r, b = (
            n.x(64, 1, 256),
            n.w(1, gates * 256, 256),
            n.w(1, gates * 256, 256),
            n.w(1, 2 * gates * 256),
        )
        n.op(kind, x, w, r, b, hidden_size=256, outputs=3 if kind == "LSTM" else 2)

    _case(kind.lower(), make)


_recurrent("LSTM", 4)
_recurrent("GRU", 3)
_case(
    "grid sample",
    lambda n: n.op(
        "GridSample",
        n.x(1, 32, 64, 64),
        n.given(n.random.uniform(-1.1, 1.1, (1, 64, 64, 2)).astype("float32")),
        mode="linear",
    ),
)
_case(
    "lrn",
    lambda n: n.op("LRN", n.x(1, 96, 55, 55), size=5),
)
