"""Functions and windows of programs of open sizes, in forms that StableHLO's refinement of shapes takes.

The refinement gives a function one set of shapes: ``jnp.where``, called with ``n`` and with ``n + 1``
rows, is refused. A composite (``top_k``, ``erf``) keeps the open types of its decomposition. JAX writes
reductions over windows of an open size as calls by name, which the refinement does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_MOST_CALLS = 1 << 14
"""Calls beyond which none is written out: functions that call each other grow by their product."""
DYNAMIC_WINDOW = "stablehlo.dynamic_reduce_window"
"""Name of JAX's call of a reduction over windows of an open size."""
RUNNING, REVERSE = "hetero_tvm.running", "hetero_tvm.reverse"
"""Attributes of such a call: the open axis that it runs along, and that it runs from the end."""
_WINDOW_OPERANDS = ("window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding")


def operations(block: Any) -> Iterator[Any]:
    """Operations of a block and of the regions in them, each before those that it holds."""
    for op in block.operations:
        yield op
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from operations(inner)


def functions_of(module: Any) -> dict[str, Any]:
    """Functions of a module by name."""
    functions = (op for op in module.body.operations if op.operation.name == "func.func")
    return {str(op.attributes["sym_name"]).strip('"'): op for op in functions}


def inline_calls(module: Any) -> None:
    """Write what main calls in its place: sizes that are constants then are constants everywhere."""
    functions = functions_of(module)
    left = _MOST_CALLS
    while calls := _calls(functions):
        for call in calls:
            if (left := left - 1) < 0:
                return
            _inline(call, functions[_called(call)].regions[0].blocks[0])


def _calls(functions: Mapping[str, Any]) -> list[Any]:
    """Calls in main of functions that are there."""
    block = functions["main"].regions[0].blocks[0]
    return [op for op in operations(block) if op.operation.name == "func.call" and _called(op) in functions]


def _called(op: Any) -> str:
    return str(op.attributes["callee"]).lstrip("@").strip('"')


def _inline(call: Any, source: Any) -> None:
    from jaxlib.mlir import ir

    values = dict(zip(source.arguments, call.operands, strict=True))
    results = _copy_operations(source, values, ir.InsertionPoint(call))
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.operation.erase()


def _copy_operations(source: Any, values: dict[Any, Any], place: Any) -> list[Any]:
    """Copy a function's operations to a place, where ``values`` stand for its own; what it returns."""
    for op in source.operations:
        if op.operation.name == "func.return":
            return [values[value] for value in op.operands]
        copy = op.operation.clone(ip=place)
        _replace_operands(copy, values)
        for region in copy.regions:
            for block in region.blocks:
                for inner in operations(block):
                    _replace_operands(inner.operation, values)
        values.update(zip(op.results, copy.results, strict=True))
    return []


def _replace_operands(op: Any, values: Mapping[Any, Any]) -> None:
    for n, value in enumerate(op.operands):
        if value in values:
            op.operands[n] = values[value]


def write_windows(module: Any) -> bool:
    """Write calls of windows whose sizes are known now as ``reduce_window``; whether there was one."""
    functions = functions_of(module)
    found = []
    for function in functions.values():
        for op in operations(function.regions[0].blocks[0]):
            if is_window(op):
                found.append(op)
    return any([_write_window(op, functions) for op in found])


def is_window(op: Any) -> bool:
    """Whether an operation is a reduction over windows of an open size."""
    is_call = op.operation.name == "stablehlo.custom_call"
    return bool(is_call and str(op.attributes["call_target_name"]).strip('"') == DYNAMIC_WINDOW)


def _write_window(op: Any, functions: dict[str, Any]) -> bool:
    """Write one call as ``reduce_window``; whether its sizes are known."""
    from jaxlib.mlir import ir

    count = len(op.results)
    operands = list(op.operands)
    data = operands[: 2 * count]
    numbers = [_numbers(value) for value in operands[2 * count :]]
    shape = list(data[0].type.shape)
    if any(number is None for number in numbers) or any(extent < 0 for extent in shape):
        return False
    sizes, strides, spread, dilations, pads = (np.asarray(number) for number in numbers)
    attributes: dict[str, Any] = {
        name: ir.DenseI64ArrayAttr.get([int(n) for n in number.reshape(-1)])
        for name, number in zip(_WINDOW_OPERANDS[:-1], (sizes, strides, spread, dilations), strict=True)
    }
    attributes["padding"] = ir.DenseIntElementsAttr.get(pads.astype(np.int64))
    attributes |= {name: op.attributes[name] for name in (RUNNING, REVERSE) if name in op.attributes}
    types = [result.type for result in op.results]  # which the refinement of shapes settles
    with op.operation.location:
        made = ir.Operation.create(
            "stablehlo.reduce_window", types, data, attributes, regions=1, ip=ir.InsertionPoint(op)
        )
    called = str(op.attributes["called_computations"][0]).lstrip("@").strip('"')
    _copy_body(functions[called].regions[0].blocks[0], made.regions[0])
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.operation.erase()
    return True


def _copy_body(source: Any, region: Any) -> None:
    """Copy a function's block into a region, whose end returns to StableHLO."""
    from jaxlib.mlir import ir

    arguments = list(source.arguments)
    block = region.blocks.append(*[a.type for a in arguments], arg_locs=[a.location for a in arguments])
    values = dict(zip(arguments, block.arguments, strict=True))
    end = ir.InsertionPoint(block)
    results = _copy_operations(source, values, end)
    with source.owner.location:
        ir.Operation.create("stablehlo.return", [], results, ip=end)


def _numbers(value: Any) -> np.ndarray | None:
    """Numbers of a constant; None for any other value."""
    made = getattr(value.owner, "opview", value.owner)
    if "value" not in getattr(made, "attributes", {}) or made.operation.name != "stablehlo.constant":
        return None
    given = made.attributes["value"]
    shape: Sequence[int] = tuple(value.type.shape)
    if given.is_splat:
        return np.full(shape, int(given.get_splat_value().value), np.int64)
    return np.asarray(given).reshape(shape)
