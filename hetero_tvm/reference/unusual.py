"""Numbers that drawn inputs hardly have: zeros, NaN, negative integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import Call, IRModule, PrimFunc, TensorLoad, tirx, tvm_ffi

_ZEROS, _NANS = 8, 64
"""One element of so many is zero, or NaN."""


def unusual_inputs(inputs: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Inputs by what is unusual in them, made of drawn ones: only what these have is changed."""
    generator = np.random.default_rng(seed)

    def some(array: np.ndarray, each: int) -> np.ndarray:
        chosen = generator.integers(0, each, array.shape) == 0
        if array.size:
            chosen.reshape(-1)[generator.integers(array.size)] = True
        return chosen

    def zeros(array: np.ndarray) -> np.ndarray:
        return np.where(some(array, _ZEROS), array.dtype.type(0), array) if _is_float(array) else array

    def nans(array: np.ndarray) -> np.ndarray:
        return np.where(some(array, _NANS), array.dtype.type(np.nan), array) if _is_float(array) else array

    def signs(array: np.ndarray) -> np.ndarray:
        return np.where(some(array, 2), -array, array) if array.dtype.kind == "i" else array

    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "zeros": zeros,
        "NaN": nans,
        "negative integers": signs,
    }
    made = {what: {name: way(array) for name, array in inputs.items()} for what, way in ways.items()}
    return {what: one for what, one in made.items() if any(one[name] is not inputs[name] for name in inputs)}


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def takes_any_numbers(module: IRModule) -> bool:
    """Whether no kernel reads or writes at places that come from its inputs: these may be any numbers then.

    What is bound to a name, and C functions of a user's own, may lead anywhere.
    """
    found: list[Any] = []

    def inside(index: Any) -> None:
        tvm_ffi.structural_walk(index, [(TensorLoad, found.append)], order="pre")

    def visit(node: Any) -> None:
        for index in node.indices:
            inside(index)

    def visit_loop(node: Any) -> None:
        inside(node.extent)

    def visit_call(node: Any) -> None:
        if getattr(node.op, "name", "").startswith(("tirx.call_", "tirx.tvm_call_")):
            found.append(node)

    callbacks = [
        (TensorLoad, visit),
        (tirx.BufferStore, visit),
        (tirx.For, visit_loop),
        (Call, visit_call),
        (tirx.Let, found.append),
        (tirx.Bind, found.append),
    ]
    for function in module.functions.values():
        if isinstance(function, PrimFunc):
            tvm_ffi.structural_walk(function.body, callbacks, order="pre")
    return not found
