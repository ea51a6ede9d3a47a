"""Matrix product whose constant weights are stored in few bits: what they mean, and what X is rounded to.

Weights are halves (float16, bfloat16), or integers of 8 or 4 bits with a float16 scale, and perhaps a zero
point, for every ``group`` neighbours along K (``ops/decoding/storage.py``).  They take a half to an eighth
of the memory and of its traffic.  Arithmetic is float32; where integer instructions multiply integers, X is
rounded to ``x_bits`` bits with a scale per row and group, and where the machine multiplies bfloat16, to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.ops.matmul import ConstantProduct, finished, finished_workload
from hetero_tvm.runtime.arrays import numpy_dtype

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Expr, PrimFunc, TETensor


@dataclass(frozen=True)
class StoredMatmul(ConstantProduct):
    """``Y[..., n] = epilogue(X[..., k] @ W.T)``, or of two products of X ``gate(X @ G.T) * (X @ U.T)``.

    Parameters
    ----------
    lead, n, k, epilogue : as in :class:`hetero_tvm.ops.matmul.Matmul`; of a gated product the epilogue is
        empty or ``("bias",)``, which comes before the gate.
    form, group, zero_points, scales : as in :class:`hetero_tvm.ops.decoding.storage.Storage`.
    gate : activation of a gated product; empty for a plain one.
    x_bits : bits that X is rounded to, 8 or 16; 0 for none.  Beside bfloat16 weights 16: X is bfloat16 too.

    Operands: X [*lead, k], Q [columns, k] (uint8 below ``2**bits``, or halves), and for integers S [columns,
    groups] and perhaps Z [columns, groups] uint8; then those of the epilogue.  All but X and a
    residual are constant.  A gated product has the columns of G, then those of U.
    """

    kind: ClassVar[str] = "stored_matmul"
    _OMITTED_AT_DEFAULT: ClassVar[tuple[str, ...]] = ("scales",)

    epilogue: tuple[str, ...] = ()
    form: str = "int8"
    group: int = 0
    zero_points: bool = False
    gate: str = ""
    x_bits: int = 0
    dtype: str = "float32"
    scales: str = "float16"

    @property
    def storage(self) -> Storage:
        """Form of the weights."""
        return Storage(self.form, self.group, self.zero_points, self.scales)

    @property
    def columns(self) -> int:
        """Rows of Q: a gated product has twice as many as results."""
        return self.n * (2 if self.gate else 1)

    @property
    def groups(self) -> int:
        """Groups along K; 0 of halves."""
        return -(-self.k // self.group) if self.group else 0

    @property
    def inputs(self) -> tuple[Operand, ...]:
        dtype = "uint8" if self.storage.bits else self.storage.dtype
        shape = (self.columns, self.groups)
        parts = [Operand("X", (*self.lead, self.k)), Operand("Q", (self.columns, self.k), dtype, True)]
        if self.storage.bits:
            parts.append(Operand("S", shape, self.scales, constant=True))
        if self.zero_points:
            parts.append(Operand("Z", shape, "uint8", constant=True))
        if self.gate:
            return (*parts, *[Operand("bias", (self.columns,), constant=True)] * len(self.epilogue))
        return (*parts, *self._epilogue_operands(self.epilogue))

    @property
    def weights(self) -> int:
        """Number of operands that the weights are: integers, scales, zero points."""
        return 1 + bool(self.storage.bits) + self.zero_points

    @property
    def flops(self) -> int:
        return 2 * self.m * self.columns * self.k

    @property
    def label(self) -> str:
        form = self.form + (f"g{self.group}" if self.group else "") + "s32" * (self.scales == "float32")
        parts = ["stored_matmul", form, f"{self.m}x{self.k}x{self.n}", *self.epilogue]
        return "_".join([*parts, self.gate] if self.gate else parts)

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, *weights = arrays[: 1 + self.weights]
        extra = list(arrays[1 + self.weights :])
        y = self._rounded(x) @ self._dequantized(weights, x.dtype).T
        if not self.gate:
            return finished(y, self.epilogue, extra)
        y = finished(y, self.epilogue, extra)
        return ACTIVATIONS[self.gate](y[..., : self.n]) * y[..., self.n :]

    def _dequantized(self, weights: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
        """Weights [columns, k] in ``dtype``."""
        q = weights[0].astype(dtype)
        if not self.storage.bits:
            return q
        scale, *zero = (np.repeat(part.astype(dtype), self.group, 1)[:, : self.k] for part in weights[1:])
        return (q - (zero[0] if zero else self.storage.middle)) * scale

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        """X as its ``x_bits`` bits make it; rows of what is not finite become NaN in their groups."""
        if not self.x_bits:
            return x
        if not self.storage.bits:
            return x.astype(np.float32).astype(numpy_dtype(self.storage.dtype)).astype(x.dtype)
        limit = np.float32((1 << (self.x_bits - 1)) - 1)
        padded = np.zeros((*x.shape[:-1], self.groups * self.group), np.float32)
        padded[..., : self.k] = x
        parts = padded.reshape(*x.shape[:-1], self.groups, self.group)
        peak = np.abs(parts).max(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inverse = np.where(peak > 0, limit / peak, np.float32(0))
            steps = np.floor(parts * inverse + np.float32(0.5))
            rounded = steps.astype(x.dtype) * (peak * (np.float32(1) / limit)).astype(x.dtype)
        return rounded.reshape(*x.shape[:-1], -1)[..., : self.k]

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import activation, prim_func

        def weight(parts: tuple[TETensor, ...]) -> TETensor:
            middle = tirx.const(float(self.storage.middle), "float32") if self.storage.bits else None

            def element(column: Expr, at: Expr) -> Expr:
                value = parts[0][column, at].astype("float32")
                if middle is None:
                    return value
                scale, *zero = (part[column, tirx.floordiv(at, self.group)] for part in parts[1:])
                return (value - (zero[0].astype("float32") if zero else middle)) * scale.astype("float32")

            return te.compute((self.columns, self.k), element, name="W")

        def rounded(x: TETensor) -> TETensor:
            if not self.x_bits:
                return x
            if not self.storage.bits:
                half = self.storage.dtype
                return te.compute(x.shape, lambda *at: x(*at).astype(half).astype("float32"), name="rounded")
            limit, none = float((1 << (self.x_bits - 1)) - 1), tirx.const(0.0, "float32")
            j = te.reduce_axis((0, self.group), name="j")

            def size(*at: Expr) -> Expr:
                place = at[-1] * self.group + j
                value = te.if_then_else(place < self.k, x(*at[:-1], tirx.min(place, self.k - 1)), none)
                return te.max(tirx.max(value, none - value), axis=j)

            peak = te.compute((*self.lead, self.groups), size, name="peak")

            def step(*at: Expr) -> Expr:
                most = peak(*at[:-1], tirx.floordiv(at[-1], self.group))
                inverse = tirx.Select(most > none, tirx.const(limit, "float32") / most, none)
                whole = tirx.floor(x(*at) * inverse + tirx.const(0.5, "float32"))
                return whole * (most * tirx.const(1.0 / limit, "float32"))

            return te.compute(x.shape, step, name="rounded")

        def compute(x: TETensor, *rest: TETensor) -> TETensor:
            w, extra, left = weight(rest[: self.weights]), rest[self.weights :], rounded(x)
            axis = te.reduce_axis((0, self.k), name="k")
            y = te.compute(
                (*self.lead, self.columns),
                lambda *i: te.sum(left[(*i[:-1], axis)] * w[i[-1], axis], axis=axis),
                name="product",
            )
            y = finished_workload(y, self.epilogue, extra)
            if not self.gate:
                return y
            return te.compute(
                self.output.shape,
                lambda *i: activation(self.gate, y(*i)) * y(*i[:-1], i[-1] + self.n),
                name="gated",
            )

        return prim_func(self, compute)
