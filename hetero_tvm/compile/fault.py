"""Find the kernel at which a compiled model leaves the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hetero_tvm.compile.import_fault import import_fault
from hetero_tvm.compile.kernels import apply_choices
from hetero_tvm.compile.linking import machine
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.host.tvm import IRModule, relax, tvm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.layout import Layout
from hetero_tvm.records.choose import Choice
from hetero_tvm.reference import intermediate, tensors_of_nodes
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.relax_passes.rewriting.fused import contract, is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import array_of, is_tensor

_SUSPICIOUS = 10.0
"""Error at which an intermediate result counts as wrong, in the target's tolerances: float32 kernels
stay near 1e-6 of the largest value where 1e-5 is allowed, a wrong one is off by far more."""


_IN_FEW_BITS = (
    "every kernel gives what its arithmetic asks for, and the model loses more in few bits than it may"
)


def first_fault(
    optimized: OptimizedModel, choices: Mapping[str, Choice], inputs: Mapping[str, np.ndarray]
) -> str:
    """Line that names what went wrong first, with its nodes and error.

    A kernel is at fault when its output is not what its contract makes of its own inputs.  When
    every kernel keeps its contract, the import is at fault if what it made already leaves the model as it
    came; else the fusion is at whose result the model first does.
    """
    results = every_result(optimized, choices, inputs)
    bindings = [binding for binding, _, _ in results]
    contracts = {binding.var: op for binding, op, _ in results}
    values = results[0][2] if results else {}
    broken = _broken_contract(optimized, bindings, contracts, values)
    if broken is None and in_few_bits(optimized):
        return f"{_IN_FEW_BITS}: in float32 the import and the fusions would show whether they are wrong"
    return (
        broken
        or import_fault(optimized.model, inputs)
        or _first_departure(optimized, bindings, contracts, values, inputs)
        or "no single kernel deviates from the reference: errors accumulate over the model"
    )


def in_few_bits(optimized: OptimizedModel) -> bool:
    """Whether outputs are judged by their direction: the arithmetic alone may move them far."""
    return optimized.target.least_cosine > -1.0


def every_result(
    optimized: OptimizedModel, choices: Mapping[str, Choice], inputs: Mapping[str, np.ndarray]
) -> list[tuple[Any, FusedOp | None, Mapping[Any, np.ndarray]]]:
    """Run a model and keep all that it computes: (binding, contract, values by variable) in order.

    The values, parameters among them, are one mapping that all entries share.
    """
    module = relax.transform.ToNonDataflow()(optimized.module)
    bindings = [
        binding
        for block in module["main"].body.blocks
        for binding in block.bindings
        if is_tensor(binding.var)
    ]
    given = (inputs[spec.name] for spec in optimized.model.signature.inputs)
    values = dict(zip(list(module["main"].params), given, strict=True))
    contracts = {b.var: contract(module, b.value) for b in bindings if is_call_tir(b.value)}
    actual = _run_returning(optimized, choices, module, [binding.var for binding in bindings], inputs)
    values.update(zip((binding.var for binding in bindings), actual, strict=True))
    return [(binding, contracts.get(binding.var), values) for binding in bindings]


def _broken_contract(
    optimized: OptimizedModel,
    bindings: list[Any],
    contracts: Mapping[Any, Any],
    values: Mapping[Any, np.ndarray],
) -> str | None:
    """The first fused kernel whose output its contract does not give."""
    for binding in bindings:
        op = contracts.get(binding.var)
        if op is None:
            continue
        arguments = [
            values[arg] if isinstance(arg, relax.Var) else array_of(arg)
            for arg in binding.value.args[1].fields
        ]
        with np.errstate(all="ignore"):
            truth = op.reference(*(argument.astype("float64") for argument in arguments))
        message = _report(optimized, binding, values[binding.var], truth)
        if message is not None:
            return f"first wrong kernel: {message}"
    return None


def _first_departure(
    optimized: OptimizedModel,
    bindings: list[Any],
    contracts: Mapping[Any, Any],
    values: Mapping[Any, np.ndarray],
    inputs: Mapping[str, np.ndarray],
) -> str | None:
    """The first kernel whose output is not the source model's tensor."""
    outputs_of = tensors_of_nodes(optimized.model)
    wanted = {}
    for binding in bindings:
        last = optimized.sources.get(binding.var.name, (binding.var.name,))[-1]
        if is_call_tir(binding.value) and last in outputs_of:
            wanted[binding.var] = outputs_of[last][0]
    expected = intermediate(optimized.model, inputs, sorted(set(wanted.values())))
    for binding in bindings:
        truth = expected.get(wanted.get(binding.var, ""))
        value = _as_source(contracts.get(binding.var), values[binding.var])
        in_blocks = truth is not None and (value.ndim, truth.ndim) == (5, 4)  # a generic kernel on an image
        if truth is not None and truth.size == value.size and not in_blocks:
            message = _report(optimized, binding, value, truth)
            if message is not None:
                return f"first wrong result: {message}"
    return None


def _as_source(op: FusedOp, value: np.ndarray) -> np.ndarray:
    """A result as the source model has it, images as plain NCHW."""
    if getattr(op, "y_layout", None) is not None:
        return Layout.parse(op.y_layout).unpack(value, op.out_image[1])
    return value


def _report(optimized: OptimizedModel, binding: Any, value: np.ndarray, truth: np.ndarray) -> str | None:
    error, scale = _deviation(value.reshape(truth.shape), truth)
    if error <= _SUSPICIOUS * optimized.target.relative_tolerance * scale:
        return None
    nodes = ", ".join(optimized.sources.get(binding.var.name, ()))
    return f"{binding.value.args[0].name_hint}, nodes {nodes}: error {error:.3g} of values up to {scale:.3g}"


def _deviation(value: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Largest error and largest value; where float32 overflows, the same infinity or NaN is no error."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = truth.astype(value.dtype)
        difference = np.abs(value.astype("float64") - truth)
    difference = np.where((rounded == value) | ((rounded != rounded) & (value != value)), 0.0, difference)
    largest = np.max(np.abs(truth), where=np.isfinite(rounded), initial=0.0)
    return float(np.max(difference, initial=0.0)), float(largest) or 1.0


def _run_returning(
    optimized: OptimizedModel,
    choices: Mapping[str, Choice],
    module: IRModule,
    variables: list[Any],
    inputs: Mapping[str, np.ndarray],
) -> list[np.ndarray]:
    """Build the same kernels once more in a function that returns every intermediate tensor."""
    main = module["main"]
    result = relax.Tuple(variables)
    body = relax.SeqExpr(list(main.body.blocks), result)
    returns = relax.TupleType([var.ty for var in variables])
    module.update_func(
        module.get_global_var("main"),
        relax.Function(main.params, body, returns, main.is_pure, main.attrs),
    )
    target = optimized.variants()[0].target
    devices, _ = target.running()
    lowered, _ = lower(apply_choices(module, optimized.tasks, choices, target), in_place=target.in_place)
    vm = machine(target.compile(lowered).executable, devices)
    specs = optimized.model.signature.inputs
    arguments = [tvm.runtime.tensor(inputs[spec.name], devices[0]) for spec in specs]
    return [tensor.numpy() for tensor in vm["main"](*arguments)]
