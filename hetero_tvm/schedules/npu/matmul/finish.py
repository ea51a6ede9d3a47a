"""Behind the accumulators of a product: results come out through the unified buffer."""

from __future__ import annotations

from hetero_tvm.host.tvm import Buffer
from hetero_tvm.ops.matmul import BIAS, RESIDUAL, TENSORS
from hetero_tvm.schedules.emit import Index
from hetero_tvm.schedules.npu import epilogue
from hetero_tvm.schedules.npu.emit import UB, At
from hetero_tvm.schedules.npu.matmul.operands import ProductOperands
from hetero_tvm.schedules.npu.tiles import extent_at, greatest, least, tile_count


class ProductFinish(ProductOperands):
    """Emits what comes after the reduction of a tile."""

    def _operand_steps(self) -> list[str]:
        """Steps of the epilogue that have an operand, in order."""
        return [step for step in self.op.epilogue if step in (BIAS, *TENSORS)]

    def _load_biases(self) -> None:
        """Load biases whole, where there is room: tiles would wait for the latency of theirs."""
        op, k = self.op, self.k
        self.biases = {}
        steps = self._operand_steps()
        for n, step in enumerate(steps):
            if step == BIAS and BIAS in self.held:
                self.biases[n] = self.extra[n]
            elif step == BIAS and n < len(self.extra) and 64 * op.n * steps.count(BIAS) <= self.ub:
                held = self.biases[n] = k.alloc(UB, (op.n,), "float32")
                operand, first = self.extra[n], self.first_bias
                source = At(operand, lambda b, first=first: (first + b,))
                k.load((op.n,), At(held, lambda b: (b,)), source)

    def _bias_rows(self, j: Index, width: Index) -> dict[int, At]:
        """Regions of the biases of column tile ``j`` in the unified buffer, by number of the operand."""
        t, k = self.t, self.k
        rows = {}
        for n, step in enumerate(self._operand_steps()):
            if step == BIAS and n in self.biases:
                rows[n] = At(self.biases[n], lambda a, b: (j * t.tn + b,))
            elif step == BIAS:
                tile = k.alloc(UB, (t.tn,), "float32")
                source = At(self.extra[n], lambda b: (self.first_bias + j * t.tn + b,))
                k.load((width,), At(tile, lambda b: (b,)), source)
                rows[n] = At(tile, lambda a, b: (b,))
        return rows

    def _finish(self, i: Index, j: Index, s: Index, accumulators: Buffer) -> None:
        """Take tile (i, j), the ``s``-th of its panel, out of the accumulators, some rows at a time."""
        op, t, k = self.op, self.t, self.k
        high, width = extent_at(op.m, t.tm, i), extent_at(op.n, t.tn, j)
        after = epilogue.split(op.epilogue)
        operands, steps = self.extra, self._operand_steps()
        with k.loop(1, buffers=2):
            biases = self._bias_rows(j, width)
            with k.loop(tile_count(high, t.rows), buffers=self.pieces) as e:
                whole = isinstance(high, int) and high % t.rows == 0
                box = (t.rows if whole else least(t.rows, high - e * t.rows), width)
                y = k.alloc(UB, (t.rows, t.tn), self.dtype)
                piece = At(y, lambda a, b: (a, b))

                def at_output(buffer: Buffer) -> At:
                    return self._output(i * t.tm + e * t.rows, j * t.tn, buffer)

                added = at_output(operands[after.bias]) if after.residual else None
                if after.residual and RESIDUAL not in self.held:
                    k.load(box, piece, added)
                    added = piece
                products = At(accumulators, lambda a, b: (s, e * t.rows + a, b))
                bias = biases[0] if after.bias else None
                k.move_out(box, piece, products, bias=bias, residual=added, relu=after.relu)
                pending = list(range(after.bias + after.residual, len(steps)))

                def load_tensor(buffer: Buffer) -> None:
                    n = next(n for n in pending if steps[n] in TENSORS)
                    pending.remove(n)
                    k.load(box, At(buffer, lambda a, b: (a, b)), at_output(operands[n]))

                later = next((n for n in pending if steps[n] == BIAS), None)
                rest = epilogue.Operands(load_tensor, None if later is None else biases[later])
                epilogue.apply(k, after.rest, y, box, self.dtype, rest)
                k.store(box, at_output(self.y), piece)
                if self.copied:
                    self._store_copy(i * t.tm + e * t.rows, j * t.tn, box, y)

    def _store_copy(self, row: Index, column: Index, box: tuple[Index, Index], y: Buffer) -> None:
        """Store a piece that begins at (row, column) a second time, as far as it has rows that are copied."""
        begin = row - (self.op.m - self.copied)
        skip = greatest(-begin, 0)
        with self.k.when(box[0] > skip):
            self.k.store(
                (box[0] - skip, box[1]),
                At(self.copy, lambda a, b: (begin + skip + a, column + b)),
                At(y, lambda a, b: (skip + a, b)),
            )
