"""The canonical rules, which bring every exporter's graph into one form before any fusion looks at it.

They run in this order, each once over the bindings in order, so that an operand is in its final form
before its user is looked at.  None of them is counted as a fusion.
"""

from __future__ import annotations

from hetero_tvm.relax_passes.canonical.algebra import ExpandPowers, MultiplyByReciprocal
from hetero_tvm.relax_passes.canonical.broadcasts import DropBroadcasts
from hetero_tvm.relax_passes.canonical.constants import FoldConstants
from hetero_tvm.relax_passes.canonical.duplicates import MergeDuplicates
from hetero_tvm.relax_passes.canonical.einsum import ExpandEinsum
from hetero_tvm.relax_passes.canonical.functions import (
    CompareWithLeast,
    DifferenceOfEquals,
    EqualityOfTruth,
    ExpandHyperbolic,
)
from hetero_tvm.relax_passes.canonical.identities import DropIdentities
from hetero_tvm.relax_passes.canonical.reflections import ReflectPositions
from hetero_tvm.relax_passes.canonical.sinking import SinkMoves
from hetero_tvm.relax_passes.canonical.slices import SliceOfTake
from hetero_tvm.relax_passes.canonical.transposed_sums import SumTransposed
from hetero_tvm.relax_passes.canonical.views import CancelReshapes, MergeCasts, MergeTransposes
from hetero_tvm.relax_passes.rewriting.rule import Rule

CANONICAL: tuple[Rule, ...] = (
    ExpandEinsum(),  # before constants are folded: it transposes weights
    FoldConstants(),  # early: what it leaves constant is neutral, a mask, a scale to the others
    SliceOfTake(),  # after that: its places are constant now
    MultiplyByReciprocal(),  # divisions by 1 become products by 1, which go next
    DropIdentities(),  # before chains are merged: an identity would cut them
    MergeCasts(),  # chains of one kind of operator, in any order among the three
    CancelReshapes(),
    MergeTransposes(),
    SumTransposed(),  # after them: a sum of transposed tensors has them right before it
    SinkMoves(),  # where a chain was cut by one elementwise step
    DropBroadcasts(),  # after constants are folded, which takes the small ones
    ExpandPowers(),  # before duplicates are merged: squares are also written as products
    ReflectPositions(),  # anywhere: no other rule looks at them
    EqualityOfTruth(),  # anywhere: no other rule looks at it
    CompareWithLeast(),  # likewise
    ExpandHyperbolic(),  # before duplicates are merged: cosh and sinh share their exponentials
    MergeDuplicates(),  # near the end: duplicates written in two ways are equal only now
    DifferenceOfEquals(),  # after that: equal operands are one variable now
)
