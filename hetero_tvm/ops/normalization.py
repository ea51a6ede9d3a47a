"""Layer normalisation and RMS normalisation over one axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, strided_view, suffix

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc, TETensor


@dataclass(frozen=True)
class Normalization(FusedOp):
    """``(x - mean) / sqrt(variance + eps) * scale + shift`` over one axis (Ba et al., 2016).

    Parameters
    ----------
    lead : leading dimensions.
    n : extent of the normalised axis.
    eps : added to the variance.
    centered : False gives RMS normalisation (Zhang and Sennrich, 2019): no mean is subtracted.
    shifted : whether there is a shift operand.
    dtype : type of X and Y; scale and shift are float32, and so is all arithmetic.
    trail : dimensions behind the normalised axis (channels of an image: ``(H, W)``).
    source, place : extents of the operand that holds x, and the place of x in it, taken as flat memory:
        offset, then the stride of each leading axis.  The last axis has stride 1.  Empty when x is the
        operand; never with ``trail``.

    Operands: X [*lead, n, *trail], scale [n], and shift [n] when ``shifted``.
    """

    kind: ClassVar[str] = "normalize"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("trail", "source", "place")

    lead: tuple[int, ...]
    n: int
    eps: float
    centered: bool = True
    shifted: bool = True
    dtype: str = "float32"
    trail: tuple[int, ...] = ()
    source: tuple[int, ...] = ()
    place: tuple[int, ...] = ()

    @property
    def special(self) -> str | None:
        """Reason for spaces of dense rows to refuse this norm; None when they need not."""
        if self.trail:
            return "the normalised axis is not the last"
        return "the rows lie at strides of their own" if self.place else None

    @property
    def rows(self) -> int:
        """Number of vectors of n elements that are normalised."""
        return math.prod(self.lead) * math.prod(self.trail)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        vectors = [Operand("scale", (self.n,), constant=True)]
        if self.shifted:
            vectors.append(Operand("shift", (self.n,), constant=True))
        return (Operand("X", self.source or self.output.shape, self.dtype), *vectors)

    @property
    def output(self) -> Operand:
        return Operand("Y", (*self.lead, self.n, *self.trail), self.dtype)

    @property
    def flops(self) -> int:
        return self.rows * self.n * (7 if self.centered else 4)

    @property
    def nbytes(self) -> int:
        """Bytes that one call must at least move: x, maybe a part of its operand, counts as much as y."""
        return 2 * self.output.nbytes + sum(operand.nbytes for operand in self.inputs[1:])

    @property
    def label(self) -> str:
        shape = "x".join(map(str, (math.prod(self.lead), self.n, *(math.prod(t) for t in [self.trail] if t))))
        name = f"{'layer_norm' if self.centered else 'rms_norm'}_{shape}"
        return "_".join([name, *(["strided"] if self.place else []), *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, *vectors = arrays
        if self.place:
            x = strided_view(x, self.output.shape, (*self.place, 1))
        axis = len(self.lead)
        scale, *shift = (vector.reshape(-1, *(1 for _ in self.trail)) for vector in vectors)
        if self.centered:
            x = x - x.mean(axis, keepdims=True)
        y = x / np.sqrt((x * x).mean(axis, keepdims=True) + x.dtype.type(self.eps)) * scale
        return y + shift[0] if self.shifted else y

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te
        from hetero_tvm.ops.te_workload import at_flat, prim_func

        def compute(x, *vectors):
            if self.place:

                def row(*index):
                    *lead, c = index
                    steps = (i * stride for i, stride in zip(lead, self.place[1:], strict=True))
                    return at_flat(x, sum(steps, self.place[0]) + c)

                return self.compute(te.compute(self.output.shape, row, name="x"), *vectors)
            return self.compute(x, *vectors)

        return prim_func(self, compute)

    def compute(self, x: TETensor, scale: TETensor, *shift: TETensor) -> TETensor:
        """Tensor expressions of the norm of ``x`` [*lead, n, *trail]."""
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import wide

        at, others = len(self.lead), (*self.lead, *self.trail)

        def mean_of(value, name):
            axis = te.reduce_axis((0, self.n), name="k")
            total = te.compute(
                others, lambda *i: te.sum(wide(value(*i[:at], axis, *i[at:])), axis=axis), name=name
            )
            return lambda *i: total(*i[:at], *i[at + 1 :]) * tirx.const(1.0 / self.n, "float32")

        if self.centered:
            mean = mean_of(x, "sum")
            centered = te.compute(x.shape, lambda *i: wide(x(*i)) - mean(*i), name="centered")
        elif self.dtype == "float32":
            centered = x
        else:
            centered = te.compute(x.shape, lambda *i: wide(x(*i)), name="wide")
        square = te.compute(x.shape, lambda *i: centered(*i) * centered(*i), name="square")
        variance = mean_of(square, "sum_of_squares")
        eps = tirx.const(self.eps, "float32")

        def normalized(*i):
            y = centered(*i) * tirx.rsqrt(variance(*i) + eps) * scale[i[at]]
            y = y + shift[0][i[at]] if self.shifted else y
            return y if self.dtype == "float32" else y.astype(self.dtype)

        return te.compute(x.shape, normalized, name="normalized")
