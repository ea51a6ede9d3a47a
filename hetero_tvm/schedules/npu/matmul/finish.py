"""Behind the accumulators of a product: results come out through the unified buffer."""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import tirx
from hetero_tvm.ops.matmul import BIAS, RESIDUAL
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.emit import UB, At
from hetero_tvm.schedules.npu.matmul.operands import Operands
from hetero_tvm.schedules.npu.tiles import extent_at


class Finish(Operands):
    """What comes after the reduction of a tile."""

    def _load_biases(self) -> None:
        """Biases whole, where there is room: tiles would wait for the latency of theirs."""
        op, k = self.op, self.k
        self.biases = {}
        order = [step for step in self.op.epilogue if step in (BIAS, *epilogue.TENSORS)]
        for n, step in enumerate(order):
            if step == BIAS and BIAS in self.held:
                self.biases[n] = self.extra[n]
            elif step == BIAS and n < len(self.extra) and 64 * op.n * order.count(BIAS) <= self.ub:
                held = self.biases[n] = k.alloc(UB, (op.n,), "float32")
                operand, first = self.extra[n], self.first_bias
                k.load((op.n,), At(held, lambda b: (b,)), At(operand, lambda b: (first + b,)))  # noqa: B023

    def _finish(self, i: Any, j: Any, s: Any, c: Any) -> None:
        """Tile (i, j): out of the accumulators, piece by piece of some rows."""
        op, t, k = self.op, self.t, self.k
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        after = epilogue.split(self.op.epilogue)
        operands = self.extra
        with k.loop(1, buffers=2):
            order = [step for step in self.op.epilogue if step in (BIAS, *epilogue.TENSORS)]
            tiles = {}
            for n, step in enumerate(order):
                if step == BIAS and n in self.biases:
                    tiles[n] = At(self.biases[n], lambda a, b: (j * t.tn + b,))
                elif step == BIAS:
                    tile = k.alloc(UB, (t.tn,), "float32")
                    k.load(
                        (width,), At(tile, lambda b: (b,)),
                        At(operands[n], lambda b: (self.first_bias + j * t.tn + b,)),
                    )  # fmt: skip
                    tiles[n] = At(tile, lambda a, b: (b,))
            pieces = (high + t.rows - 1) // t.rows
            with k.loop(pieces, buffers=self.pieces) as e:
                part = t.rows if isinstance(high, int) and high % t.rows == 0 else least(
                    t.rows, high - e * t.rows
                )  # fmt: skip
                y = k.alloc(UB, (t.rows, t.tn), self.dtype)

                def at_output(buffer: Any) -> At:
                    return self._output(i * t.tm + e * t.rows, j * t.tn, buffer)

                added = at_output(operands[after.bias]) if after.residual else None
                if after.residual and RESIDUAL not in self.held:
                    k.load((part, width), At(y, lambda a, b: (a, b)), added)
                    added = At(y, lambda a, b: (a, b))
                k.move_out(
                    (part, width), At(y, lambda a, b: (a, b)), At(c, lambda a, b: (s, e * t.rows + a, b)),
                    bias=tiles[0] if after.bias else None, residual=added, relu=after.relu,
                )  # fmt: skip
                pending = list(range(after.bias + after.residual, len(order)))

                def residual(buffer: Any) -> None:
                    n = next(n for n in pending if order[n] in epilogue.TENSORS)
                    pending.remove(n)
                    k.load((part, width), At(buffer, lambda a, b: (a, b)), at_output(operands[n]))

                later = next((n for n in pending if order[n] == BIAS), None)
                bias_row = None if later is None else tiles[later]
                operands_of = epilogue.Operands(residual, bias_row)
                epilogue.apply(k, after.rest, y, (part, width), self.dtype, operands_of)
                k.store((part, width), at_output(self.y), At(y, lambda a, b: (a, b)))
                if self.copied:
                    begin = i * t.tm + e * t.rows - (op.m - self.copied)
                    skip = tirx.max(-begin, 0)
                    with k.when(part > skip):
                        k.store(
                            (part - skip, width),
                            At(self.copy, lambda a, b: (begin + skip + a, j * t.tn + b)),
                            At(y, lambda a, b: (skip + a, b)),
                        )  # fmt: skip


def least(a: int, b: Any) -> Any:
    return min(a, b) if isinstance(b, int) else tirx.min(a, b)
