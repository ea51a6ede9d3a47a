"""Ensembles of decision trees: what rows find at the leaves of all trees, added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hetero_tvm.ops.base import FusedOp, Operand

if TYPE_CHECKING:
    from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc

FEATURE, BOUND, CHILD, WORDS = 0, 1, 2, 4
"""Words of a node: its feature, the bits of its bound, its first child; and how many there are."""


@dataclass(frozen=True)
class Forest(FusedOp):
    """Sums of the weights at the leaves that rows end at, one in each tree.

    A node asks whether its feature of the row is at most its bound.  Where it is, the walk goes on at the
    node behind the first child, else, and for NaN, at the first child.  A leaf is its own child, its feature
    word 0 and its bound NaN, so that a walk may go on there.

    Parameters
    ----------
    rows, features : extents of X.
    trees : their roots are the first nodes.
    nodes : of all trees.
    targets : numbers that a leaf has, and a row gets.
    depth : steps to the deepest leaf.
    missing : whether the lowest bit of a node's feature word, of which the feature is the rest, says that NaN
        goes the way of what is at most the bound.

    Operands: X [rows, features], nodes [nodes, 4] (words), steps [trees] (to the deepest leaf of each),
    weights [nodes, targets].  Result: Y [rows, targets], a sum in float64 that is rounded once.
    """

    kind: ClassVar[str] = "forest"

    rows: int
    features: int
    trees: int
    nodes: int
    targets: int
    depth: int
    missing: bool = False

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (
            Operand("X", (self.rows, self.features)),
            Operand("nodes", (self.nodes, WORDS), "int32", constant=True),
            Operand("steps", (self.trees,), "int32", constant=True),
            Operand("weights", (self.nodes, self.targets), constant=True),
        )

    @property
    def output(self) -> Operand:
        return Operand("Y", (self.rows, self.targets))

    @property
    def flops(self) -> int:
        return self.rows * self.trees * (4 * self.depth + self.targets)

    @property
    def label(self) -> str:
        return f"forest_{self.rows}x{self.trees}x{self.depth}"

    def admissible(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        x, nodes, steps, weights = arrays
        words, own = np.abs(nodes.astype(np.int64)), np.arange(self.nodes)
        width = max(2, -(-self.nodes // (self.depth + 1)))
        level = own // width
        child = (level + 1) * width + words[:, CHILD] % (width - 1)
        leaf = child + 1 >= self.nodes
        kept = nodes.astype(np.int32)
        kept[:, FEATURE] = np.where(leaf, 0, words[:, FEATURE] % (self.features << self.missing))
        bounds = np.where(leaf, np.nan, np.linspace(-1, 1, 37)[words[:, BOUND] % 37])
        kept[:, BOUND] = bounds.astype(np.float32).view(np.int32)
        kept[:, CHILD] = np.where(leaf, own, child)
        deepest = level[-1] - level[: self.trees]
        return [x, kept.astype(nodes.dtype), deepest.astype(steps.dtype), weights]

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        x, nodes, steps, weights = arrays
        words = nodes.astype(np.int32)
        bounds = np.ascontiguousarray(words[:, BOUND]).view(np.float32)
        at = np.broadcast_to(np.arange(self.trees), (self.rows, self.trees))
        for step in range(self.depth):
            feature = words[at, FEATURE]
            seen = np.take_along_axis(x, feature >> 1 if self.missing else feature, 1)
            taken = seen <= bounds[at]
            if self.missing:
                taken |= np.isnan(seen) & (feature & 1).astype(bool)
            at = np.where(step < steps.astype(np.int64), words[at, CHILD] + taken, at)
        return weights[at].sum(1, dtype=np.float64).astype(x.dtype)

    def workload(self) -> PrimFunc:
        from hetero_tvm.host.tvm import IRBuilder, T, s_tir, tirx
        from hetero_tvm.ops.te_workload import OP_ATTR

        builder = IRBuilder()
        with builder, T.prim_func(s_tir=True):
            at = {o.name: T.arg(o.name, T.buffer(o.shape, o.dtype)) for o in (*self.inputs, *self.outputs)}
            with T.serial(0, self.rows) as row:
                sums, node = T.alloc_buffer((self.targets,), "float64"), T.alloc_buffer((1,), "int32")
                with T.serial(0, self.targets) as target:
                    T.buffer_store(sums, tirx.const(0, "float64"), [target])
                with T.serial(0, self.trees) as tree:
                    T.buffer_store(node, tree, [0])
                    with T.serial(0, at["steps"][tree]):
                        words, place = at["nodes"], node[0]
                        seen = at["X"][row, self.feature_of(words[place, FEATURE])]
                        bound = tirx.reinterpret("float32", words[place, BOUND])
                        taken = self.is_taken(seen, bound, words[place, FEATURE])
                        T.buffer_store(node, words[place, CHILD] + taken, [0])
                    with T.serial(0, self.targets) as target:
                        weight = tirx.Cast("float64", at["weights"][node[0], target])
                        T.buffer_store(sums, sums[target] + weight, [target])
                with T.serial(0, self.targets) as target:
                    self._rounded(at["Y"], sums, row, target)
        function = builder.get()
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", function.body))
        named = function.with_body(root)
        return named.with_attr({OP_ATTR: self.to_json(), "op_pattern": 8, "tirx.noalias": True})

    def feature_of(self, word: Expr) -> Expr:
        """The feature that a node's word tells."""
        from hetero_tvm.host.tvm import tirx

        return tirx.shift_right(word, tirx.const(1, "int32")) if self.missing else word

    def is_taken(self, seen: Expr, bound: Expr, word: Expr) -> Expr:
        """1 where a row goes on behind the first child, else 0."""
        from hetero_tvm.host.tvm import tirx

        taken = tirx.Cast("int32", seen <= bound)
        if not self.missing:
            return taken
        lost = tirx.Cast("int32", tirx.isnan(seen))
        return tirx.bitwise_or(taken, tirx.bitwise_and(lost, word))

    @staticmethod
    def _rounded(y: Buffer, sums: Buffer, row: Expr, target: Expr) -> None:
        from hetero_tvm.host.tvm import T, tirx

        T.buffer_store(y, tirx.Cast("float32", sums[target]), [row, target])
