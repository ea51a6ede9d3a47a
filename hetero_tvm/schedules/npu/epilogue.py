"""Epilogues in the unified buffer: what follows a product before it leaves the chip."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero_tvm.host.activation_names import ByName
from hetero_tvm.host.tvm import Buffer
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, TENSORS
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu.emit import UB, At, Kernel

Steps = Sequence[str]


def temporaries(steps: Steps) -> int:
    """Extra tiles of the unified buffer that the steps need beside the result."""
    return _spare_tiles(steps) + any(t in steps for t in TENSORS)


def _spare_tiles(steps: Steps) -> int:
    return max((ACTIVATIONS[step].temporaries for step in steps if step in ACTIVATIONS), default=0)


def passes(steps: Steps, divisor: int) -> float:
    """Vector passes over the tile (in elements per lane), for cost estimates.

    ``divisor`` is the number of passes that a transcendental function takes as long as.
    """
    total = 0.0
    for step in steps:
        if step in ACTIVATIONS:
            total += ACTIVATIONS[step].passes + divisor * ACTIVATIONS[step].transcendental
        else:
            total += step in TENSORS
    return total


@dataclass(frozen=True)
class Split:
    """Steps that the way out of the accumulators takes itself, in this order, and those that remain."""

    bias: bool
    residual: bool
    relu: bool
    rest: tuple[str, ...]


def split(steps: Steps) -> Split:
    """Split an epilogue at the end of what the way out of the accumulators can do."""
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
    """Reason why a chain cannot be emitted; None when it can."""
    unknown = [step for step in steps if step not in (BIAS, *TENSORS) and step not in ACTIVATIONS]
    return f"no vector code for {', '.join(unknown)}" if unknown else None


@dataclass(frozen=True)
class Operands:
    """Operands of the remaining steps.

    ``load_tensor`` loads the tile of the next residual (or gate) into a buffer; ``bias`` is the region of the
    one bias that may be left.
    """

    load_tensor: Callable[[Buffer], None]
    bias: At | None = None


def apply(
    k: Kernel, steps: Steps, tile: Buffer, extents: Sequence[Index], dtype: str, operands: Operands
) -> None:
    """Emit the remaining steps, in place on ``tile`` in the unified buffer."""
    shape = [int(e) for e in tile.shape]
    spare = [k.alloc(UB, shape, dtype) for _ in range(_spare_tiles(steps))]
    whole = At(tile, lambda *i: i)
    for step in steps:
        if step in TENSORS:
            other = k.alloc(UB, shape, dtype)
            operands.load_tensor(other)
            k.binary("add" if step == RESIDUAL else "mul", extents, whole, whole, At(other, lambda *i: i))
        elif step == BIAS:
            assert operands.bias is not None
            k.binary("add", extents, whole, whole, operands.bias)
        else:
            ACTIVATIONS[step].emit(k, extents, whole, [At(b, lambda *i: i) for b in spare])


@dataclass(frozen=True)
class Activation:
    """Code and cost of an activation on a tile ``x``.

    Parameters
    ----------
    emit : ``emit(kernel, extents, x, temporaries)`` writes its instructions, in place on ``x``.
    passes : its instructions but for a transcendental function.
    transcendental : whether it has one.
    temporaries : tiles that it needs beside ``x``.
    """

    emit: Callable[[Kernel, Sequence[Index], At, Sequence[At]], None]
    passes: float = 0.0
    transcendental: bool = True
    temporaries: int = 0


def _gelu_erf(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
    k.unary("erf", n, t[0], x, mul=math.sqrt(0.5))
    k.unary("copy", n, x, x, mul=0.5)
    k.ternary("muladd", n, x, x, t[0], x)


def _gelu_tanh(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
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


def _silu(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
    k.unary("sigmoid", n, t[0], x)
    k.binary("mul", n, x, x, t[0])


def _quick_gelu(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
    k.unary("sigmoid", n, t[0], x, mul=1.702)
    k.binary("mul", n, x, x, t[0])


def _hard_swish(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
    k.unary("relu", n, t[0], x, mul=1 / 6, add=0.5)
    k.binary("min", n, t[0], t[0], 1.0)
    k.binary("mul", n, x, x, t[0])


def _relu6(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
    k.unary("relu", n, x, x)
    k.binary("min", n, x, x, 6.0)


def _leaky_relu(slope: float) -> Activation:
    def emit(k: Kernel, n: Sequence[Index], x: At, t: Sequence[At]) -> None:
        k.unary("copy", n, t[0], x, mul=slope)
        k.binary("max", n, x, x, t[0])

    return Activation(emit, passes=2.0, transcendental=False, temporaries=1)


_KNOWN = {
    "relu": Activation(lambda k, n, x, t: k.unary("relu", n, x, x), passes=1.0, transcendental=False),
    "relu6": Activation(_relu6, passes=2.0, transcendental=False),
    "gelu_erf": Activation(_gelu_erf, passes=2.0, temporaries=1),
    "gelu_tanh": Activation(_gelu_tanh, passes=4.0, temporaries=1),
    "silu": Activation(_silu, passes=1.0, temporaries=1),
    "quick_gelu": Activation(_quick_gelu, passes=1.0, temporaries=1),
    "hard_swish": Activation(_hard_swish, passes=3.0, transcendental=False, temporaries=1),
    "sigmoid": Activation(lambda k, n, x, t: k.unary("sigmoid", n, x, x)),
    "tanh": Activation(lambda k, n, x, t: k.unary("tanh", n, x, x)),
}
ACTIVATIONS = ByName(_KNOWN, _leaky_relu)
