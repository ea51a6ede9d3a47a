"""Find the node that the import converted wrongly: from its framework, from the file, or to Relax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_tvm.frontend import ImportedModel, source_names
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.reference import intermediate, program_tensors, source_tensors, tensors_of_nodes
from hetero_tvm.relax_passes.forms import roi_align
from hetero_tvm.relax_passes.rewriting.graph import is_tensor
from hetero_tvm.targets.registry import parse_target

_CONVERTED_WRONG = 1e-3
"""Share of a tensor's largest value that no rounding of float32 explains where all before it is right."""

_TURNED = 0.01
"""Share of results of 8 bits that rounding may put one step away."""


def import_fault(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> str | None:
    """Line that names the node at whose result the import leaves the model; None where it is right."""
    if not model.clean.proto.graph.node:  # an operator that was TVM's already
        return None
    for departure in (_program_departure, _source_departure, _relax_departure):
        if (found := departure(model, inputs)) is not None:
            return f"the import is wrong: {found}"
    return None


def _program_departure(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> str | None:
    """The first value of the program that its translation to ONNX does not have."""
    if model.original is None or not model.original.available:
        return None
    names = [name for outputs in tensors_of_nodes(model).values() for name in outputs]
    expected = program_tensors(model, inputs, names)
    actual = intermediate(model, inputs, expected)
    for name, truth in expected.items():
        same = actual[name].shape == truth.shape  # else the names mean different values
        if same and (found := _difference(actual[name], truth)) is not None:
            return f"the translation of {name!r} from {model.original.engine} to ONNX: {found}"
    outputs = [spec.name for spec in model.signature.results]
    truths = model.original.run(inputs, double=True)
    for name, truth in zip(outputs, truths, strict=True):
        if (found := _difference(intermediate(model, inputs, [name])[name], truth)) is not None:
            return f"the translation to ONNX of what makes output {name!r}: {found}"
    return None


def _source_departure(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> str | None:
    """The first tensor of the file that its conversion to newer, plainer ONNX does not have."""
    names = {name for outputs in tensors_of_nodes(model).values() for name in outputs}
    expected = source_tensors(model, inputs, names)
    actual = intermediate(model, inputs, expected)
    right: set[str] = set()
    for name, truth in expected.items():
        if (found := _difference(actual[name], truth)) is not None:
            return f"the conversion of {_suspects(model, name, right)}: {found}"
        right.add(name)
    return None


def _suspects(model: ImportedModel, name: str, right: set[str]) -> str:
    """Rewritten nodes of the file between the tensors that are ``right`` and one that is wrong."""
    made_by = {output: node for node in model.source.proto.graph.node for output in node.output}
    kept = {(node.name, node.op_type) for node in model.clean.proto.graph.node}
    found, waiting, seen = [], [name], set(right)
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor not in made_by:
            continue
        seen.add(tensor)
        node = made_by[tensor]
        waiting += node.input
        if node not in found:
            found.append(node)
    rewritten = [node for node in found if (node.name, node.op_type) not in kept] or found[:1]
    listed = ", ".join(f"node {node.name or node.output[0]} ({node.op_type})" for node in rewritten[:3])
    return listed + (", ..." if len(rewritten) > 3 else "")


def _relax_departure(model: ImportedModel, inputs: Mapping[str, np.ndarray]) -> str | None:
    """The first node whose conversion to Relax does not compute what ONNX says."""
    outputs_of = tensors_of_nodes(model)
    operators = {node.name: node.op_type for node in model.clean.proto.graph.node}
    module = relax.transform.ToNonDataflow()(model.module)
    main = module["main"]
    found = [
        (binding.var, source_names(binding.var))
        for block in main.body.blocks
        for binding in block.bindings
        if is_tensor(binding.var) and binding.var.name in outputs_of
    ]
    values = _values(module, [var for var, _ in found], model, inputs)
    expected = intermediate(model, inputs, [outputs_of[node][0] for _, node in found])
    for (_, node), value in zip(found, values, strict=True):
        if (text := _difference(value, expected[outputs_of[node][0]])) is not None:
            return f"the conversion of node {node} ({operators[node]}) to Relax: {text}"
    return None


def _values(
    module: Any, variables: list[Any], model: ImportedModel, inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Variables of ``main`` as TVM computes them without any of our passes."""
    main = module["main"]
    body = relax.SeqExpr(list(main.body.blocks), relax.Tuple(variables))
    returns = relax.TupleType([var.ty for var in variables])
    function = relax.Function(main.params, body, returns, main.is_pure, main.attrs)
    module.update_func(module.get_global_var("main"), function)
    module = relax.transform.LegalizeOps(roi_align.LEGALIZERS)(module)  # ours, not TVM's
    target = tvm.target.Target(parse_target("cpu").machine.codegen_target())
    machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    given = (tvm.runtime.tensor(inputs[spec.name]) for spec in model.signature.inputs)
    return [tensor.numpy() for tensor in machine["main"](*given)]


def _difference(value: np.ndarray, truth: np.ndarray) -> str | None:
    """Difference of two results that should be the same but for rounding, in words; None without one."""
    if value.shape != truth.shape:
        return f"shape {list(value.shape)} instead of {list(truth.shape)}"
    if not value.size:
        return None
    a, b = np.asarray(value, "float64"), np.asarray(truth, "float64")
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        special = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if special.any():
        return f"{int(special.sum())} NaN or infinite values differ"
    largest = float(np.abs(b[finite]).max(initial=0))
    error = float(np.abs(a - b)[finite].max(initial=0))
    if error <= _CONVERTED_WRONG * (largest or 1.0):
        return None
    if truth.dtype in (np.int8, np.uint8) and error <= 1 and (a != b).mean() <= _TURNED:
        return None
    return f"error {error:.3g} of values up to {largest:.3g}"
