"""ONNX nodes in the making, for front ends that go through ONNX."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SMALL = 4096
"""Bytes of a constant that is compared with the others."""


class Untranslatable(ValueError):
    """An operator in a form that has no translation; says which part."""


def onnx_type(dtype: str) -> int:
    """ONNX's number of a NumPy type name."""
    import ml_dtypes

    return helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, dtype, None) or dtype))


class Nodes:
    """ONNX nodes and constants of one graph while it is made; names of their results begin with ``#``.

    What is asked for twice is made once: frameworks compute the mean of a norm again for its variance.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0
        self._stored: dict[tuple[Any, ...], str] = {}
        self._values: dict[str, np.ndarray] = {}
        self._made: ChainMap[tuple[Any, ...], str] = ChainMap()
        self._makers: dict[str, onnx.NodeProto] = {}
        self.at = ""
        """Name of the nodes that are being made: where in the source they come from."""

    def maker(self, name: str) -> onnx.NodeProto | None:
        """The node that makes a tensor; None for constants and inputs."""
        return self._makers.get(name)

    def value(self, name: str) -> np.ndarray | None:
        """Value of a small constant; None for anything else."""
        return self._values.get(name)

    @contextlib.contextmanager
    def inside(self) -> Iterator[list[onnx.NodeProto]]:
        """Let nodes go to a subgraph, whose list this gives; the graph around it does not see them."""
        outside, self.nodes = self.nodes, []
        self._made = self._made.new_child()
        try:
            yield self.nodes
        finally:
            self.nodes, self._made = outside, self._made.parents

    def fresh(self) -> str:
        self._count += 1
        return f"#{self._count}"

    def constant(self, value: Any, dtype: str | np.dtype) -> str:
        array = np.asarray(value, dtype)
        key = (array.dtype, array.shape, array.tobytes() if array.nbytes <= _SMALL else self.fresh())
        if key not in self._stored:
            self._stored[key] = name = self.fresh()
            self.constants.append(numpy_helper.from_array(array, name))
            if array.nbytes <= _SMALL:
                self._values[name] = array
        return self._stored[key]

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of a node's result."""
        key = (kind, inputs, repr(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = output = self.fresh()
            name = f"{self.at}{output}"
            self.nodes.append(helper.make_node(kind, list(inputs), [output], name, **attributes))
            self._makers[output] = self.nodes[-1]
        return self._made[key]

    def several(self, kind: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Names of the results of a node that has several."""
        outputs = [self.fresh() for _ in range(count)]
        name = f"{self.at}{outputs[0]}"
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, name, **attributes))
        return outputs
