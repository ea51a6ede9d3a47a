"""Constants that a model of open sizes has at given ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.tvm import IRModule, relax
from hetero_tvm.relax_passes.rewriting.graph import array_of, is_constant

MOST_WIDE = 1 << 22
"""Elements of the largest constant that another may be a window of, and that is looked for."""


def constants_at(
    module_at: Callable[[Mapping[str, int]], IRModule], sizes: Mapping[str, int]
) -> list[np.ndarray]:
    """Constants of the model at other sizes; none where it cannot have these."""
    try:
        other = module_at(sizes)["main"]
    except Exception:  # a model, its importer or a fusion may refuse sizes that nobody asked for
        return []
    found: list[np.ndarray] = []

    def note(expr: Any) -> None:
        if is_constant(expr) and (array := array_of(expr)) is not None and 0 < array.ndim:
            found.append(array)

    relax.analysis.post_order_visit(other, note)
    return [array for array in found if array.size <= MOST_WIDE]


def step_places(module: IRModule) -> list[int]:
    """Places at which the truth values among a model's constants change, one for each such constant, in
    order: those of a mask of the first rows, say.  0 stands for those that change otherwise or nowhere."""
    found: list[int] = []

    def note(expr: Any) -> None:
        if is_constant(expr) and (array := array_of(expr)) is not None and array.dtype.kind == "b":
            found.append(_step_place(array) if 0 < array.size <= MOST_WIDE else 0)

    relax.analysis.post_order_visit(module["main"], note)
    return found


def _step_place(array: np.ndarray) -> int:
    found = changes_along(array)
    return int(found[2][0]) if found is not None and len(found[2]) == 1 else 0


def changes_along(array: np.ndarray) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The only axis along which a constant changes, its elements along it, and the places where these do;
    None where it changes along several, or none."""
    axes = [n for n in range(array.ndim) if (array != np.take(array, [0], n)).any()]
    if len(axes) != 1:
        return None
    line = np.moveaxis(array, axes[0], 0).reshape(array.shape[axes[0]], -1)[:, 0]
    return axes[0], line, np.flatnonzero(line[1:] != line[:-1]) + 1


def differs(arrays: Sequence[np.ndarray], axis: int) -> bool:
    """Whether constants differ in their extent along an axis."""
    return len({array.shape[axis] for array in arrays}) > 1
