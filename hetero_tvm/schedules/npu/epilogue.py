"""Epilogues in the unified buffer: what follows a product before it leaves the chip."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.npu.emit import UB, At, Kernel

Steps = Sequence[str]
GATE = "gate"
"""A step that no contract has: multiplies by another tensor of the result's shape (see ``gated_matmul``)."""
TENSORS = (RESIDUAL, GATE)


def temporaries(steps: Steps) -> int:
    """Extra tiles of the unified buffer that the steps need beside the result."""
    return max((_TEMPORARIES.get(step, 0) for step in steps), default=0) + any(t in steps for t in TENSORS)


def passes(steps: Steps, divisor: int) -> float:
    """Vector passes over the tile (in elements per lane), for cost estimates."""
    weights = {"gelu_erf": 2 + divisor, "gelu_tanh": 4 + divisor, "silu": 1 + divisor,
               "quick_gelu": 1 + divisor, "sigmoid": divisor,
               "tanh": divisor, "relu": 1.0, "relu6": 2.0, RESIDUAL: 1.0, GATE: 1.0, BIAS: 0.0}  # fmt: skip
    return sum(weights[step] for step in steps)


@dataclass(frozen=True)
class Split:
    """What the way out of the accumulators does itself, in this order, and the steps that remain."""

    bias: bool
    residual: bool
    relu: bool
    rest: tuple[str, ...]


def split(steps: Steps) -> Split:
    return _split(tuple(steps))


@functools.cache
def _split(steps: tuple[str, ...]) -> Split:
    rest = list(steps)
    done = []
    for step in (BIAS, RESIDUAL, "relu"):
        done.append(rest[:1] == [step])
        rest = rest[done[-1] :]
    return Split(*done, tuple(rest))


def supported(steps: Steps) -> str | None:
    """Why a chain cannot be emitted; None when it can."""
    unknown = [step for step in steps if step not in (BIAS, *TENSORS) and step not in ACTIVATIONS]
    return f"no vector code for {', '.join(unknown)}" if unknown else None


@dataclass(frozen=True)
class Operands:
    """Regions of the operands of the remaining steps, in order."""

    residual: Callable[[Any], None]
    """Loads the residual's tile into a buffer."""
    bias: At | None = None


def apply(
    k: Kernel, steps: Steps, tile: Any, extents: Sequence[Any], dtype: str, operands: Operands
) -> None:
    """The remaining steps, in place on ``tile`` in the unified buffer."""
    shape = [int(e) for e in tile.shape]
    count = max((_TEMPORARIES.get(step, 0) for step in steps), default=0)
    spare = [k.alloc(UB, shape, dtype) for _ in range(count)]
    whole = At(tile, lambda *i: i)
    for step in steps:
        if step in TENSORS:
            other = k.alloc(UB, shape, dtype)
            operands.residual(other)
            k.binary("add" if step == RESIDUAL else "mul", extents, whole, whole, At(other, lambda *i: i))
        elif step == BIAS:
            assert operands.bias is not None
            k.binary("add", extents, whole, whole, operands.bias)
        else:
            ACTIVATIONS[step](k, extents, whole, [At(b, lambda *i: i) for b in spare])


def _gelu_erf(k: Kernel, n: Sequence[Any], x: At, t: Sequence[At]) -> None:
    k.unary("erf", n, t[0], x, mul=math.sqrt(0.5))
    k.unary("copy", n, x, x, mul=0.5)
    k.ternary("muladd", n, x, x, t[0], x)


def _gelu_tanh(k: Kernel, n: Sequence[Any], x: At, t: Sequence[At]) -> None:
    """x / 2 * (1 + tanh(y)) = x * sigmoid(2 y), where y = c * (x + a x^3) = x * (c a x^2 + c).

    The square of a large activation would overflow float16, so it is taken at a quarter: the sigmoid is
    saturated long before.
    """
    c, a = 2 * math.sqrt(2 / math.pi), 0.044715
    k.unary("square", n, t[0], x, mul=0.25)
    k.unary("copy", n, t[0], t[0], mul=16 * c * a, add=c)
    k.binary("mul", n, t[0], t[0], x)
    k.unary("sigmoid", n, t[0], t[0])
    k.binary("mul", n, x, x, t[0])


def _silu(k: Kernel, n: Sequence[Any], x: At, t: Sequence[At]) -> None:
    k.unary("sigmoid", n, t[0], x)
    k.binary("mul", n, x, x, t[0])


def _quick_gelu(k: Kernel, n: Sequence[Any], x: At, t: Sequence[At]) -> None:
    k.unary("sigmoid", n, t[0], x, mul=1.702)
    k.binary("mul", n, x, x, t[0])


def _clip6(k: Kernel, n: Sequence[Any], x: At, t: Sequence[At]) -> None:
    k.unary("relu", n, x, x)
    k.binary("min", n, x, x, 6.0)


ACTIVATIONS: dict[str, Callable[[Kernel, Sequence[Any], At, Sequence[At]], None]] = {
    "relu": lambda k, n, x, t: k.unary("relu", n, x, x),
    "relu6": _clip6,
    "gelu_erf": _gelu_erf,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "quick_gelu": _quick_gelu,
    "sigmoid": lambda k, n, x, t: k.unary("sigmoid", n, x, x),
    "tanh": lambda k, n, x, t: k.unary("tanh", n, x, x),
}
_TEMPORARIES = {"gelu_erf": 1, "gelu_tanh": 1, "silu": 1, "quick_gelu": 1}
