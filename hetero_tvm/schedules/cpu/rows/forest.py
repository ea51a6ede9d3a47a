"""Decision trees, several walks at a time.

Loop structure::

    parallel blocks of rows:
        whole groups of rows:                       the rows that are left, one by one:
            for each tree, for each group:              for each group of trees:
                for each of the tree's steps:               for each of their steps:
                    a step of all rows                          a step of all trees
                sums of all rows += leaves                  sums += leaves, in the trees' order

A tree serves all groups of a block while it lies in caches: deep ones are larger than L1, all than L2.
A step waits for a node, and for a feature that the node names: one walk alone is nothing but waiting, and
several walks hide each other's.  Sums are float64, in the order of the trees: a row's do not depend on what
it is batched with.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero_tvm.codegen import scalars
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, tirx
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.ops.loops.forest import BOUND, CHILD, FEATURE, WORDS, Forest
from hetero_tvm.schedules.base import DesignSpace, Knob, Point
from hetero_tvm.schedules.emit import Index, Kernel, int32, pieces_of

_STEP_CYCLES, _LATENCY = 3.0, 18.0
"""Cycles that a step takes among others, and that it waits alone."""
_FLOPS = 16
"""Operations of vectors in the time of one of a walk."""
_MOST_GROUPS, _SUMS = 16, 2048
"""Groups of rows that go through a tree one after another, and sums that are kept meanwhile."""
_MOST_UNROLLED = 4
"""Targets whose sums are written out."""


class ForestSpace(DesignSpace):
    """Design space of ``Forest``."""

    name = "cpu.forest"
    version = 1

    def refuses(self, op: FusedOp, machine: CpuModel) -> str | None:
        if not isinstance(op, Forest):
            return "no decision trees"
        if 0 in (op.rows, op.trees, op.targets):
            return "an extent is zero"
        return "more than 32 bits count" if max(op.rows * op.features, op.nodes * 4) >= 1 << 31 else None

    def knobs(self, op: Forest, machine: CpuModel) -> tuple[Knob, ...]:
        return (Knob("walks", (8, 4, 16, 2)),)

    def default(self, op: Forest, machine: CpuModel) -> Point:
        choices = self.knobs(op, machine)[0].choices
        return min(({"walks": n} for n in choices), key=lambda point: self.estimate(op, point, machine))

    def estimate(self, op: Forest, point: Point, machine: CpuModel) -> float:
        """Cycles of the thread with most to do."""
        walks = point["walks"]
        blocks, rest = divmod(op.rows, walks)
        step = max(_LATENCY, walks * _STEP_CYCLES)
        # Walks that do not fit into the registers are kept in memory.
        step *= 1.2 if 2 * walks > machine.registers else 1.0
        alone = rest * -(-op.trees // walks)
        return op.depth * step * (-(-blocks // machine.threads) * op.trees + alone)

    def features(self, op: Forest, point: Point, machine: CpuModel) -> list[float]:
        return [op.rows, op.trees, op.depth, op.targets, op.nodes, point["walks"]]

    def emit(self, op: Forest, point: Point, machine: CpuModel) -> PrimFunc:
        kernel = ForestKernel(op, point["walks"], machine.threads)
        with kernel.k as k:
            operands = [k.argument(o.name, o.shape, o.dtype) for o in op.inputs]
            kernel.loops(operands, k.argument("Y", op.output.shape), op.rows)
        return k.function


class ForestKernel:
    """Emits one kernel; ``walks`` go on at a time."""

    def __init__(self, op: Forest, walks: int, threads: int):
        self.op, self.walks, self.threads = op, walks, threads
        self.k = Kernel()

    def loops(self, operands: Sequence[Buffer], y: Buffer, rows: Index) -> None:
        """Emit all loops."""
        k, op, walks = self.k, self.op, self.walks
        x, nodes, self.steps, weights = operands
        self.x, self.y = k.view(x, (rows * op.features,)), k.view(y, (rows * op.targets,))
        self.nodes = k.view(nodes, (op.nodes * WORDS,))
        self.weights = k.view(weights, (op.nodes * op.targets,))
        # What the groups of a thread need of a tree comes from memory once.
        groups = tirx.min(pieces_of(pieces_of(rows, walks), self.threads), int32(self._most_groups()))
        groups = k.let(tirx.max(groups, int32(1)))
        block_rows = k.let(groups * walks)
        blocks, work = tirx.truncdiv(rows + block_rows - 1, block_rows), _FLOPS * op.flops
        with k.imported(scalars.ir()), k.parallel(blocks, work) as block:
            first = k.let(block * block_rows)
            left = k.let(tirx.min(rows - first, block_rows))
            whole = k.let(tirx.truncdiv(left, int32(walks)))
            with k.when(whole > int32(0)):
                self._rows_together(first, whole)
            with k.serial(left - whole * walks) as row:
                self._trees_together(k.let(first + whole * walks + row))

    def _most_groups(self) -> int:
        """Groups of rows whose sums are kept together."""
        return max(1, min(_MOST_GROUPS, _SUMS // (self.walks * self.op.targets)))

    def _rows_together(self, first: Expr, groups: Expr) -> None:
        """Groups of rows from ``first`` on go through each tree, those of a group together."""
        k, op, walks = self.k, self.op, self.walks
        sums, at = self._begin(self._most_groups() * walks), k.scratch((walks,), "int32")
        with k.serial(op.trees) as tree, k.serial(groups) as group:
            with k.unroll(walks) as n:
                k.store(at, tree, [n])
            row = k.let(first + group * walks)
            with k.serial(k.load(self.steps, [tree])), k.unroll(walks) as n:
                self._step(at, n, (row + n) * op.features)
            with k.unroll(walks) as n:
                self._add(sums, group * walks + n, k.load(at, [n]))
        with k.serial(groups * walks) as n:
            self._end(sums, n, first + n)

    def _trees_together(self, row: Expr) -> None:
        """A row goes through several trees together."""
        k, op = self.k, self.op
        walks = min(self.walks, op.trees)
        sums = self._begin(1)

        def group(first: Expr, count: int) -> None:
            at = k.scratch((count,), "int32")
            with k.unroll(count) as n:
                k.store(at, first + n, [n])
            most = k.load(self.steps, [first])
            for n in range(1, count):
                most = tirx.max(most, k.load(self.steps, [first + n]))
            with k.serial(k.let(most)), k.unroll(count) as n:
                self._step(at, n, row * op.features)
            with k.unroll(count) as n:
                self._add(sums, int32(0), k.load(at, [n]))

        with k.serial(op.trees // walks) as number:
            group(k.let(number * walks), walks)
        if op.trees % walks:
            group(int32(op.trees // walks * walks), op.trees % walks)
        self._end(sums, int32(0), row)

    def _step(self, at: Buffer, n: Expr, row: Expr) -> None:
        """Take walk ``n``, of a row that begins at ``row``, to the next node."""
        k, op = self.k, self.op
        node = k.let(k.load(at, [n]) * WORDS)
        word = k.let(k.load(self.nodes, [node + FEATURE]))
        seen = k.let(k.load(self.x, [row + op.feature_of(word)]))
        bound = tirx.reinterpret("float32", k.load(self.nodes, [node + BOUND]))
        child = k.load(self.nodes, [node + CHILD]) + op.is_taken(seen, bound, word)
        k.store(at, scalars.scalar(child), [n])

    # the sums ------------------------------------------------------------------------------------
    def _begin(self, rows: int) -> Buffer:
        sums = self.k.scratch((rows * self.op.targets,), "float64")
        with self.k.serial(rows * self.op.targets) as n:
            self.k.store(sums, tirx.const(0, "float64"), [n])
        return sums

    def _add(self, sums: Buffer, row: Expr, node: Expr) -> None:
        k, targets = self.k, self.op.targets
        leaf = k.let(node * targets)
        with k.unroll(targets) if targets <= _MOST_UNROLLED else k.serial(targets) as target:
            weight = tirx.Cast("float64", k.load(self.weights, [leaf + target]))
            place = [row * targets + target]
            k.store(sums, k.load(sums, place) + weight, place)

    def _end(self, sums: Buffer, n: Expr, row: Expr) -> None:
        k, targets = self.k, self.op.targets
        with k.serial(targets) as target:
            value = tirx.Cast("float32", k.load(sums, [n * targets + target]))
            k.store(self.y, value, [row * targets + target])
