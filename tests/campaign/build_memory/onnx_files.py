"""ONNX files of a given size for :mod:`tests.campaign.build_memory`, with weights in many forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

WIDTH, INNER, ROWS = 1024, 4096, 4
_CHANNELS, _PIXELS = 256, 14
_BLOCK = 32
_STEPS = 3


@dataclass
class Parts:
    """Nodes and initializers of a graph that is being written, from tensor ``x`` on."""

    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def node(self, kind: str, inputs: list[str], output: str, **attributes: object) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))

    def keep(self, name: str, array: np.ndarray) -> None:
        """Store an array as an initializer."""
        self.tensors.append(numpy_helper.from_array(array, name))

    def constant(self, name: str, array: np.ndarray) -> None:
        """Store an array as a node."""
        self.nodes.append(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
        )

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape, dtype=np.float32) / np.float32(2 * shape[-2] ** 0.5)

    def bytes(self, *shape: int) -> np.ndarray:
        return self.rng.integers(-100, 100, shape, dtype=np.int8)


Weight = Callable[[Parts, str, int, int], str]
"""Adds a matrix (name, rows, columns) to the parts and gives the name of the float32 tensor that it is."""


def _initializer(parts: Parts, name: str, rows: int, columns: int) -> str:
    parts.keep(name, parts.floats(rows, columns))
    return name


def _node(parts: Parts, name: str, rows: int, columns: int) -> str:
    parts.constant(name, parts.floats(rows, columns))
    return name


def _dequantized(parts: Parts, name: str, rows: int, columns: int) -> str:
    parts.keep(f"{name}_q", parts.bytes(rows, columns))
    parts.keep(f"{name}_s", np.full(columns, 0.01 / rows**0.5, np.float32))
    parts.node("DequantizeLinear", [f"{name}_q", f"{name}_s"], name, axis=1)
    return name


def _layers(parts: Parts, weight: Weight, x: str, count: int, prefix: str = "") -> str:
    """Residual MLPs on ``x``; gives the name of the last tensor."""
    for n in range(count):
        up = weight(parts, f"{prefix}up{n}", WIDTH, INNER)
        down = weight(parts, f"{prefix}down{n}", INNER, WIDTH)
        a, b, c, y = (f"{prefix}{letter}{n}" for letter in "abcy")
        parts.node("MatMul", [x, up], a)
        parts.node("Relu", [a], b)
        parts.node("MatMul", [b, down], c)
        parts.node("Add", [c, x], y)
        x = y
    return x


def _value(name: str, shape: list[object], element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def _plain(weight: Weight) -> Callable[[int, Path], None]:
    def write(count: int, path: Path) -> None:
        parts = Parts()
        parts.node("Relu", [_layers(parts, weight, "x", count)], "y")
        _save(parts, path)

    return write


def _external(count: int, path: Path) -> None:
    parts = Parts()
    parts.node("Relu", [_layers(parts, _initializer, "x", count)], "y")
    _save(parts, path, external=True)


def _open(count: int, path: Path) -> None:
    """External data, and a number of rows that stays open."""
    parts = Parts()
    parts.node("Relu", [_layers(parts, _initializer, "x", count)], "y")
    _save(parts, path, external=True, rows="rows")


def _functions(count: int, path: Path) -> None:
    """Every layer is a function of the model's own, with its weights inside."""
    main, functions = Parts(), []
    x = "x"
    for n in range(count):
        parts = Parts()
        last = _layers(parts, _node, "x", 1)
        functions.append(
            helper.make_function(
                "own", f"Layer{n}", ["x"], [last], parts.nodes, [helper.make_opsetid("", 17)]
            )
        )
        main.node(f"Layer{n}", [x], f"l{n}", domain="own")
        x = f"l{n}"
    main.node("Relu", [x], "y")
    _save(main, path, functions=functions)


def _branches(count: int, path: Path) -> None:
    """An ``If`` of two branches; each has half of the weights."""
    halves = []
    for prefix, number in (("then_", count - count // 2), ("else_", count // 2)):
        parts = Parts()
        last = _layers(parts, _initializer, "x", number, prefix)
        parts.node("Relu", [last], f"{prefix}result")
        halves.append(
            helper.make_graph(
                parts.nodes, prefix, [], [_value(f"{prefix}result", [ROWS, WIDTH])], parts.tensors
            )
        )
    main = Parts()
    main.node("If", ["which"], "chosen", then_branch=halves[0], else_branch=halves[1])
    main.node("Relu", ["chosen"], "y")
    _save(main, path, more=[_value("which", [], TensorProto.BOOL)])


def _loop(count: int, path: Path) -> None:
    """A ``Loop`` whose body has the weights; how often it runs comes at run time."""
    body, main = Parts(), Parts()
    last = _layers(body, _initializer, "state", count)
    body.node("Tanh", [last], "state_out")
    body.node("Identity", ["go"], "go_out")
    graph = helper.make_graph(
        body.nodes,
        "body",
        [
            _value("i", [], TensorProto.INT64),
            _value("go", [], TensorProto.BOOL),
            _value("state", [ROWS, WIDTH]),
        ],
        [_value("go_out", [], TensorProto.BOOL), _value("state_out", [ROWS, WIDTH])],
        body.tensors,
    )
    main.keep("steps", np.array(_STEPS, np.int64))
    main.keep("true", np.array(True))
    main.node("Loop", ["steps", "true", "x"], "last", body=graph)
    main.node("Relu", ["last"], "y")
    _save(main, path)


def _quantized(count: int, path: Path) -> None:
    """Weights and activations behind pairs of QuantizeLinear and DequantizeLinear."""
    parts, x = Parts(), "x"
    parts.keep("s", np.array(0.05, np.float32))
    parts.keep("z", np.array(0, np.int8))

    def pair(name: str) -> str:
        parts.node("QuantizeLinear", [name, "s", "z"], f"{name}_q8")
        parts.node("DequantizeLinear", [f"{name}_q8", "s", "z"], f"{name}_dq")
        return f"{name}_dq"

    for n in range(count):
        up, down = _dequantized(parts, f"up{n}", WIDTH, INNER), _dequantized(parts, f"down{n}", INNER, WIDTH)
        parts.node("MatMul", [pair(x), up], f"a{n}")
        parts.node("Relu", [f"a{n}"], f"b{n}")
        parts.node("MatMul", [pair(f"b{n}"), down], f"c{n}")
        parts.node("Add", [f"c{n}", x], f"y{n}")
        x = f"y{n}"
    parts.node("Relu", [x], "y")
    _save(parts, path)


def _packed(count: int, path: Path) -> None:
    """``MatMulNBits``: 4 bits in blocks."""
    parts, x = Parts(), "x"

    def product(name: str, source: str, k: int, n: int) -> str:
        blocks = k // _BLOCK
        parts.keep(f"{name}_b", parts.rng.integers(0, 256, (n, blocks, _BLOCK // 2), dtype=np.uint8))
        parts.keep(f"{name}_s", np.full(n * blocks, 0.2 / k**0.5, np.float32))
        parts.node(
            "MatMulNBits",
            [source, f"{name}_b", f"{name}_s"],
            f"{name}_y",
            domain="com.microsoft",
            K=k,
            N=n,
            bits=4,
            block_size=_BLOCK,
        )
        return f"{name}_y"

    for n in range(count):
        parts.node("Relu", [product(f"up{n}", x, WIDTH, INNER)], f"b{n}")
        parts.node("Add", [product(f"down{n}", f"b{n}", INNER, WIDTH), x], f"y{n}")
        x = f"y{n}"
    parts.node("Relu", [x], "y")
    _save(parts, path)


def _returned(count: int, path: Path) -> None:
    """Weights that are results themselves, beside being used."""
    parts = Parts()
    parts.node("Relu", [_layers(parts, _initializer, "x", count)], "y")
    outputs = [_value(tensor.name, list(tensor.dims)) for tensor in parts.tensors]
    _save(parts, path, results=outputs)


def _added(count: int, path: Path) -> None:
    """The sum of each weight with a number that comes in is a result."""
    parts = Parts()
    parts.node("ReduceMax", ["x"], "number", keepdims=0)
    outputs = []
    for n in range(2 * count):
        parts.keep(f"w{n}", parts.floats(WIDTH, INNER))
        parts.node("Add", [f"w{n}", "number"], f"sum{n}")
        outputs.append(_value(f"sum{n}", [WIDTH, INNER]))
    parts.node("Relu", ["x"], "y")
    _save(parts, path, results=outputs)


def _convolutions(dequantize: bool) -> Callable[[int, Path], None]:
    def write(count: int, path: Path) -> None:
        parts, x = Parts(), "x"
        for n in range(count):
            name = f"w{n}"
            if dequantize:
                parts.keep(f"{name}_q", parts.bytes(_CHANNELS, _CHANNELS, 3, 3))
                parts.keep(f"{name}_s", np.full(_CHANNELS, 2e-4, np.float32))
                parts.node("DequantizeLinear", [f"{name}_q", f"{name}_s"], name, axis=0)
            else:
                parts.keep(name, parts.floats(_CHANNELS, _CHANNELS, 3, 3) / np.float32(30))
            parts.node("Conv", [x, name], f"c{n}", pads=[1, 1, 1, 1])
            parts.node("Relu", [f"c{n}"], f"y{n}")
            x = f"y{n}"
        parts.node("Relu", [x], "y")
        _save(parts, path, shape=[1, _CHANNELS, _PIXELS, _PIXELS])

    return write


def _save(
    parts: Parts,
    path: Path,
    *,
    external: bool = False,
    rows: object = ROWS,
    shape: list[object] | None = None,
    more: list[onnx.ValueInfoProto] | None = None,
    results: list[onnx.ValueInfoProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> None:
    shape = shape or [rows, WIDTH]
    inputs, outputs = [_value("x", shape), *(more or [])], [_value("y", shape), *(results or [])]
    graph = helper.make_graph(parts.nodes, "net", inputs, outputs, parts.tensors)
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("own", 1),
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions or [])
    if external:
        onnx.save(model, str(path), save_as_external_data=True, location="model.data")
    else:
        onnx.save(model, str(path))


_LAYER = 2 * WIDTH * INNER
_KERNEL = _CHANNELS * _CHANNELS * 9

WRITERS: dict[str, tuple[int, int, Callable[[int, Path], None]]] = {
    "external": (4 * _LAYER, 4 * _LAYER, _external),
    "single": (4 * _LAYER, 4 * _LAYER, _plain(_initializer)),
    "constants": (4 * _LAYER, 4 * _LAYER, _plain(_node)),
    "range": (4 * _LAYER, 4 * _LAYER, _open),
    "functions": (4 * _LAYER, 4 * _LAYER, _functions),
    "branches": (4 * _LAYER, 4 * _LAYER, _branches),
    "loop": (4 * _LAYER, 4 * _LAYER, _loop),
    "returned": (4 * _LAYER, 4 * _LAYER, _returned),
    "added": (4 * _LAYER, 4 * _LAYER, _added),
    "dequantize": (_LAYER, 4 * _LAYER, _plain(_dequantized)),
    "qdq": (_LAYER, 4 * _LAYER, _quantized),
    "nbits": (_LAYER * 5 // 8, 4 * _LAYER, _packed),
    "conv": (4 * _KERNEL, 4 * _KERNEL, _convolutions(False)),
    "dequantize_conv": (_KERNEL, 4 * _KERNEL, _convolutions(True)),
}
"""By kind: bytes of one layer in the file and in float32, and what writes a file of so many layers."""
