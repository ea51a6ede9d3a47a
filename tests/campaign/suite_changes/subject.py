"""A node test of the suite as data that changes apply to: a node, its values, which of them are constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.graphs.values import numpy_type, onnx_type

_KINDS = "biuf"
_OPSET = 20
"""Version of ONNX's own operators for tests of another domain alone."""
_SAY_SHAPES = frozenset(
    "axes axis shape split sizes scales roi pads steps starts ends k K repeats depth trip_count tensor_shape "
    "image_shape block_shape dft_length frame_step frame_length size output_shape start limit delta".split()
)
"""Inputs of the suite's tests that tell shapes: in files of users they are constants."""


@dataclass(frozen=True)
class Subject:
    """One node with values for its inputs, and what its model adds to it."""

    node: onnx.NodeProto
    opset: int
    values: Mapping[str, np.ndarray]
    """Value by name of an input, in the order of the test."""
    results: Mapping[str, int]
    """ONNX element type by name of an output."""
    constants: frozenset[str] = frozenset()
    """Inputs that are initializers."""
    opened: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Name of the open size by (input, axis)."""
    domains: Mapping[str, int] = field(default_factory=dict)
    """Version by domain of other operator sets."""
    before: tuple[onnx.NodeProto, ...] = ()
    after: tuple[onnx.NodeProto, ...] = ()
    more_results: Mapping[str, int] = field(default_factory=dict)
    """ONNX element type by name of an output that ``before`` and ``after`` make."""

    @staticmethod
    def of(case: Any) -> Subject | None:
        """The subject of a test; None where it has several nodes, or values other than arrays of numbers."""
        model = case.model
        if model is None or len(model.graph.node) != 1 or model.graph.initializer or model.functions:
            return None
        ends = [*model.graph.input, *model.graph.output]
        if any(not end.type.HasField("tensor_type") for end in ends) or not case.data_sets:
            return None
        arrays = [
            numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v)
            for v in case.data_sets[0][0]
        ]
        if any(a.dtype.kind not in _KINDS and a.dtype.name != "bfloat16" for a in arrays):
            return None
        versions = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
        return Subject(
            model.graph.node[0],
            versions.pop("", _OPSET),
            dict(zip((i.name for i in model.graph.input), arrays, strict=True)),
            {o.name: o.type.tensor_type.elem_type for o in model.graph.output},
            frozenset(i.name for i in model.graph.input if i.name in _SAY_SHAPES),
            domains=versions,
        )

    def model(self) -> onnx.ModelProto:
        """The model of the subject; outputs have no shapes."""
        inputs, constants = [], []
        for name, array in self.values.items():
            element = onnx_type(array.dtype.name)
            if name in self.constants:
                constants.append(numpy_helper.from_array(array, name))
                continue
            shape = [self.opened.get((name, axis), size) for axis, size in enumerate(array.shape)]
            inputs.append(helper.make_tensor_value_info(name, element, shape))
        outputs = []
        for name, element in {**self.results, **self.more_results}.items():
            value = helper.make_tensor_value_info(name, element, None)
            outputs.append(value)
        graph = helper.make_graph(
            [*self.before, self.node, *self.after], "changed", inputs, outputs, constants
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 10
        return model

    def draw(self) -> dict[str, np.ndarray]:
        """Values of the inputs that are no constants."""
        return {name: array for name, array in self.values.items() if name not in self.constants}

    def with_values(self, values: Mapping[str, np.ndarray]) -> Subject:
        """The subject with other values of some inputs."""
        return replace(self, values={**self.values, **values})

    def with_attributes(self, **attributes: Any) -> Subject:
        """The subject with some attributes of its node replaced; None removes one."""
        node = onnx.NodeProto()
        node.CopyFrom(self.node)
        del node.attribute[:]
        node.attribute.extend(a for a in self.node.attribute if a.name not in attributes)
        node.attribute.extend(
            helper.make_attribute(n, v) for n, v in attributes.items() if v not in (None, [])
        )
        return replace(self, node=node)

    def schema(self) -> onnx.defs.OpSchema | None:
        """ONNX's description of the operator at the subject's opset."""
        version = self.domains.get(self.node.domain, self.opset)
        try:
            return onnx.defs.get_schema(self.node.op_type, version, self.node.domain)
        except Exception:
            return None

    def type_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Type variable by name of an input, and of an output; fixed types are left out."""
        schema = self.schema()
        if schema is None:
            return {}, {}
        variables = {constraint.type_param_str for constraint in schema.type_constraints}

        def named(actual: Any, formal: Any) -> dict[str, str]:
            found = {}
            for index, name in enumerate(actual):
                if name and formal:
                    kind = formal[min(index, len(formal) - 1)].type_str
                    if kind in variables:
                        found[name] = kind
            return found

        return named(self.node.input, schema.inputs), named(self.node.output, schema.outputs)


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Values in another type; negative ones that it lacks become positive, large ones wrap."""
    to = numpy_type(dtype)
    with np.errstate(all="ignore"):
        if to.kind == "b":
            return array.astype(np.float64) > 0
        if to.kind in "iu":
            limits = np.iinfo(to)
            wide = np.nan_to_num(array.astype(np.float64) * (3 if array.dtype.kind == "f" else 1))
            wide = np.abs(wide) if to.kind == "u" else wide
            return np.clip(np.rint(wide), max(limits.min, -(2**62)), min(limits.max, 2**62)).astype(to)
        return array.astype(np.float64).astype(to)
