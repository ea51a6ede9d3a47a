"""Builder of the zoo's ONNX graphs, as PyTorch's exporter writes them, with seeded weights.

Names follow the exporter: node ``/encoder/layer.0/attention/self/MatMul_1`` with output
``<node>_output_0``, scalars as ``Constant`` nodes, ``[in, out]`` weights called ``onnx::MatMul_17``.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Number that exporters write where a mask hides a position: ``torch.finfo(torch.float32).min``.
FLOAT32_MIN = np.float32(np.finfo(np.float32).min)


class GraphBuilder:
    """Collects nodes, weights, inputs and outputs of one model.

    Parameters
    ----------
    name : name of the graph.
    opset : ONNX opset; decides, for example, whether LayerNormalization exists.
    seed : seed of all weights; equal seeds give equal files.
    """

    def __init__(self, name: str, *, opset: int, seed: int):
        self.name = name
        self.opset = opset
        self.seed = seed
        self._scopes: list[str] = []
        self._names: Counter[str] = Counter()
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    # ---- graph ---------------------------------------------------------------------------

    @contextmanager
    def scope(self, path: str) -> Iterator[None]:
        """Prefix of node and parameter names, such as ``encoder/layer.0``."""
        self._scopes.append(path)
        try:
            yield
        finally:
            self._scopes.pop()

    def input(self, name: str, dtype: int, shape: Sequence[int]) -> str:
        """Declare a graph input; ``dtype`` is an ONNX element type."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, name: str, value: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> None:
        """Declare ``value`` as the graph output ``name`` (the value takes that name)."""
        for node in self._nodes:
            node.input[:] = [name if i == value else i for i in node.input]
            node.output[:] = [name if o == value else o for o in node.output]
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def op(self, op_type: str, *inputs: str, **attributes) -> str:
        """Add a node with one output; returns the name of the output."""
        return self.multi(op_type, *inputs, outputs=1, **attributes)[0]

    def multi(self, op_type: str, *inputs: str, outputs: int, **attributes) -> list[str]:
        """Add a node with several outputs; returns their names."""
        path = "/" + "/".join([*self._scopes, op_type])
        count = self._names[path]
        self._names[path] += 1
        name = f"{path}_{count}" if count else path
        results = [f"{name}_output_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results

    def const(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """Add a ``Constant`` node; Python ints become int64, floats float32."""
        array = np.asarray(value)
        if dtype is None and array.dtype.kind == "f":
            dtype = np.float32
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(array, dtype=dtype)))

    def finish(self) -> onnx.ModelProto:
        """The model with all that was added."""
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs)
        graph.initializer.extend(self._weights.values())
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 8
        model.producer_name = "hetero_tvm.zoo"
        return model

    # ---- weights -------------------------------------------------------------------------

    def parameter(self, name: str, array: np.ndarray, *, absolute: bool = False) -> str:
        """Add an initializer called by its PyTorch path (``encoder.layer.0...bias``)."""
        if not absolute:
            name = ".".join([scope.replace("/", ".") for scope in self._scopes] + [name])
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def normal(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        """Add a float32 initializer with normally distributed values."""
        return self.parameter(name, self.draw(name, shape, std, mean))

    def draw(self, name: str, shape: Sequence[int], std: float, mean: float = 0.0) -> np.ndarray:
        """Normally distributed float32 values, decided by the seed and the path of ``name``."""
        # One generator per tensor: a weight does not change when another one is added before it.
        path = "/".join([*self._scopes, name])
        generator = np.random.default_rng([self.seed, zlib.crc32(path.encode())])
        values = generator.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        return values

    # ---- pieces that every exported model repeats ------------------------------------------

    def linear(
        self, path: str, x: str, fan_in: int, fan_out: int, *, gain: float = 1.0, bias: bool = True
    ) -> str:
        """``nn.Linear`` on a tensor of rank >= 3: MatMul with an ``[in, out]`` weight, then Add."""
        with self.scope(path):
            weight = self.draw("weight", (fan_in, fan_out), gain / np.sqrt(fan_in))
            weight_name = self.parameter(f"onnx::MatMul_{len(self._weights) + 1}", weight, absolute=True)
            y = self.op("MatMul", x, weight_name)
            return self.op("Add", self.normal("bias", (fan_out,), 0.1), y) if bias else y

    def gemm(self, path: str, x: str, fan_in: int, fan_out: int, *, gain: float = 1.0) -> str:
        """``nn.Linear`` on a matrix: Gemm with PyTorch's own ``[out, in]`` weight."""
        with self.scope(path):
            weight = self.normal("weight", (fan_out, fan_in), gain / np.sqrt(fan_in))
            return self.op(
                "Gemm", x, weight, self.normal("bias", (fan_out,), 0.1), alpha=1.0, beta=1.0, transB=1
            )

    def layer_norm(self, path: str, x: str, width: int, *, epsilon: float, decomposed: bool = False) -> str:
        """LayerNormalization, or the nine nodes that exporters wrote before opset 17."""
        with self.scope(path):
            gamma = self.normal("weight", (width,), 0.1, mean=1.0)
            beta = self.normal("bias", (width,), 0.1)
            if not decomposed:
                return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
            centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
            variance = self.op("ReduceMean", self.op("Pow", centred, self.const(2.0)), axes=[-1])
            deviation = self.op("Sqrt", self.op("Add", variance, self.const(epsilon)))
            return self.op("Add", self.op("Mul", self.op("Div", centred, deviation), gamma), beta)

    def gelu_erf(self, x: str) -> str:
        """The exact GELU as PyTorch exports it: x * (1 + erf(x / sqrt(2))) * 0.5."""
        erf = self.op("Erf", self.op("Div", x, self.const(np.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.const(1.0))), self.const(0.5))

    def padding_bias(self, mask: str) -> str:
        """(1 - mask) * finfo.min, of shape [batch, 1, 1, sequence], from a mask [batch, sequence]."""
        wide = self.op("Unsqueeze", self.op("Unsqueeze", mask, self.const([1])), self.const([2]))
        hidden = self.op("Sub", self.const(1.0), self.op("Cast", wide, to=TensorProto.FLOAT))
        return self.op("Mul", hidden, self.const(FLOAT32_MIN))

    def dim(self, x: str, axis: int) -> str:
        """``x.size(axis)`` as a scalar: Shape, Gather."""
        return self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)

    def shape_list(self, parts: Sequence[str | int]) -> str:
        """A shape made of scalars and numbers: Unsqueeze each, Concat."""
        rows = [
            self.const([part]) if isinstance(part, int) else self.op("Unsqueeze", part, self.const([0]))
            for part in parts
        ]
        return self.op("Concat", *rows, axis=0)

    def expand(self, x: str, parts: Sequence[str | int]) -> str:
        """``x.expand(parts)``, with the detour over Where by which the exporter supports -1."""
        shape = self.op("Reshape", self.shape_list(parts), self.const([-1]))
        ones = self.op(
            "ConstantOfShape", self.op("Shape", shape), value=numpy_helper.from_array(np.array([1], np.int64))
        )
        keep = self.op("Equal", shape, self.op("Mul", ones, self.const(-1)))
        return self.op("Expand", x, self.op("Where", keep, ones, shape))
