"""Sum of embeddings, normalised: the first operator of the BERT family."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand, suffix
from hetero_tvm.ops.normalization import Normalization

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import PrimFunc


@dataclass(frozen=True)
class Lookup:
    """A lookup ``factor * T[indices]`` in a table T of ``rows`` rows.

    ``indices`` is the indices' shape, of the rank of the operator's lead and broadcast to it.  Negative
    indices count from the end, as in ONNX Gather; beyond that they wrap around, which ONNX leaves
    undefined: nothing outside the table is ever read.
    """

    rows: int
    indices: tuple[int, ...]
    dtype: str = "int64"
    factor: float = 1.0


@dataclass(frozen=True)
class EmbeddingNorm(FusedOp):
    """``norm(sum of lookups + added) * scale + shift`` over the last axis; arithmetic is float32.

    Parameters
    ----------
    lead : leading dimensions of the result, [batch, sequence]; their product is the number of rows.
    n : length of a row.
    lookups : lookups by indices that are known at run time only, as :class:`Lookup` or its fields.
    added : shape [..., n] of a constant that is broadcast to the result and added (positions, token
        types that never change); () for none.
    eps, centered, shifted : attributes of the norm, see :class:`hetero_tvm.ops.normalization.Normalization`.
    dtype : type of tables, ``added`` and the result.

    Operands: for each lookup indices and table [rows, n] (constant), then ``added`` (constant), scale
    [n], and shift [n] when ``shifted``.
    """

    kind: ClassVar[str] = "embedding_norm"

    lead: tuple[int, ...]
    n: int
    lookups: tuple[Lookup, ...]
    added: tuple[int, ...]
    eps: float
    centered: bool = True
    shifted: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        # From JSON a lookup comes as a mapping.
        lookups = tuple(x if isinstance(x, Lookup) else _lookup(x) for x in self.lookups)
        object.__setattr__(self, "lookups", lookups)

    @property
    def norm(self) -> Normalization:
        """Contract of the norm alone."""
        return Normalization(self.lead, self.n, self.eps, self.centered, self.shifted, self.dtype)

    @property
    def rows(self) -> int:
        """Number of vectors that are normalised."""
        return math.prod(self.lead)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        operands = []
        for i, lookup in enumerate(self.lookups):
            operands.append(Operand(f"indices{i}", lookup.indices, lookup.dtype))
            operands.append(Operand(f"table{i}", (lookup.rows, self.n), self.dtype, constant=True))
        if self.added:
            operands.append(Operand("added", self.added, self.dtype, constant=True))
        return (*operands, *self.norm.inputs[1:])

    @property
    def output(self) -> Operand:
        return self.norm.output

    @property
    def flops(self) -> int:
        return self.norm.flops + self.rows * self.n * (len(self.lookups) + bool(self.added))

    @property
    def nbytes(self) -> int:
        """Bytes that one call must at least move: of a table only the rows that are looked up."""
        read = sum(math.prod(x.indices) * (self.n * np.dtype(self.dtype).itemsize + 8) for x in self.lookups)
        rest = sum(operand.nbytes for operand in self.inputs[2 * len(self.lookups) :])
        return read + rest + self.output.nbytes

    @property
    def label(self) -> str:
        kind = "layer_norm" if self.centered else "rms_norm"
        name = f"embedding{len(self.lookups)}{'_added' if self.added else ''}_{kind}_{self.rows}x{self.n}"
        return "_".join([name, *suffix(self.dtype)])

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        count = 2 * len(self.lookups)
        rest = list(arrays[count:])
        total = rest.pop(0) if self.added else 0
        for lookup, indices, table in zip(self.lookups, arrays[:count:2], arrays[1:count:2], strict=True):
            total = total + lookup.factor * table[np.mod(indices.astype(np.int64), lookup.rows)]
        return self.norm.reference(np.broadcast_to(total, (*self.lead, self.n)), *rest)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import te, tirx
        from hetero_tvm.ops.te_workload import broadcast_index, prim_func, wide

        def compute(*operands):
            count = 2 * len(self.lookups)
            rest = list(operands[count:])
            added = rest.pop(0) if self.added else None

            def total(*i):
                value = wide(added[broadcast_index(self.added, i)]) if added is not None else None
                for x, at, table in zip(self.lookups, operands[:count:2], operands[1:count:2], strict=True):
                    index = at[broadcast_index(x.indices, i[:-1])]
                    row = tirx.floormod(index, tirx.const(x.rows, x.dtype))
                    term = wide(table[row, i[-1]]) * tirx.const(x.factor, "float32")
                    value = term if value is None else value + term
                return value

            embedded = te.compute(self.output.shape, total, name="embedded")
            return self.norm.compute(embedded, *rest)

        return prim_func(self, compute)


def _lookup(value: Mapping[str, Any]) -> Lookup:
    """A lookup from its fields as JSON gives them."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    return Lookup(**fields)
