"""Arithmetic of the sizes of a model's inputs, as it is folded at one of them.

It says how the sizes are compared, and so where among them the model may be another one
(:mod:`hetero_tvm.compile.dynamic.choices`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

_MOST_ELEMENTS = 4096
"""Elements of a number that takes part: what is larger is a table."""


@dataclass
class Sizing:
    """Arithmetic of sizes.

    Attributes
    ----------
    nodes : in the order in which they are computed, of names that ``leaves`` and ``constants`` hold or that
        nodes before give; what is missing is not known.
    leaves : extents that the model asks for, by the name of the result.
    constants : other operands.
    conditions : names of what decides an If.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    leaves: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)

    def note(
        self,
        node: onnx.NodeProto,
        results: Sequence[np.ndarray],
        value: Callable[[str], np.ndarray],
        elements: Callable[[str], int],
        sized: Container[str],
    ) -> None:
        """Keep a node that is folded, with its results; ``value`` and number of ``elements`` of constants."""
        if node.op_type in ("Shape", "Size"):
            self.leaves[node.output[0]] = results[0]
            return
        self.nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
        for name in node.input:
            if name and name not in sized and name not in self.constants and elements(name) <= _MOST_ELEMENTS:
                self.constants[name] = value(name)
