"""ONNX nodes in the making, for front ends that go through ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Nodes:
    """ONNX nodes and constants of one graph while it is made; names of their results begin with ``#``."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0
        self.at = ""
        """Name of the nodes that are being made: where in the source they come from."""

    def fresh(self) -> str:
        self._count += 1
        return f"#{self._count}"

    def constant(self, value: Any, dtype: str | np.dtype) -> str:
        name = self.fresh()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of a node's result."""
        output = self.fresh()
        self.nodes.append(helper.make_node(kind, list(inputs), [output], f"{self.at}{output}", **attributes))
        return output
