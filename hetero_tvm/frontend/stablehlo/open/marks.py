"""Marks in programs of open sizes: what the refinement to fixed sizes would hide.

At fixed sizes the rounds of a loop over an open axis are a number like any other, and a running sum over one
element is a sum of nothing.  Both are marked before, as attributes that passes keep.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.frontend.stablehlo.open.functions import (
    REVERSE,
    RUNNING,
    functions_of,
    is_window,
    operations,
)

SIZED_ROUNDS = "hetero_tvm.sized_rounds"
"""Attribute of a loop whose number of rounds may follow from an open size."""


def mark_open(module: Any) -> None:
    """Mark loops and windows of a module whose main calls nothing."""
    _Marks().block(functions_of(module)["main"].regions[0].blocks[0])


class _Marks:
    """Values that follow from constants and sizes alone.

    ``known`` : such values; True for those that follow from an open size.
    """

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}

    def block(self, block: Any) -> None:
        """Follow the operations of a block."""
        for op in block.operations:
            self._operation(op, str(op.operation.name))

    def _operation(self, op: Any, kind: str) -> None:
        known = [self._known.get(value) for value in op.operands]
        if kind == "stablehlo.get_dimension_size":
            self._known[op.results[0]] = True
        elif kind == "stablehlo.while":
            self._loop(op)
        elif is_window(op):
            self._window(op)
        elif op.operation.regions:
            for region in op.operation.regions:
                for block in region.blocks:
                    self.block(block)
        elif kind != "stablehlo.custom_call" and None not in known:
            self._known.update(dict.fromkeys(op.results, any(known)))

    def _loop(self, op: Any) -> None:
        test, body = (region.blocks[0] for region in op.operation.regions)
        returned = list(body.operations[len(body.operations) - 1].operands)
        limits = set()
        for n, value in enumerate(op.operands):
            if (sized := self._known.get(value)) is None:
                continue
            if sized:
                limits.add(test.arguments[n])
            if returned[n] == body.arguments[n]:  # the same in every round
                self._known[test.arguments[n]] = self._known[body.arguments[n]] = sized
        self.block(test)
        read = [value for one in operations(test) for value in one.operands]
        if any(value in limits or self._known.get(value) for value in read):
            from jaxlib.mlir import ir

            op.attributes[SIZED_ROUNDS] = ir.UnitAttr.get()
        self.block(body)

    def _window(self, op: Any) -> None:
        """Mark a running reduction along an open axis: its axis, and whether it runs from the end."""
        from jaxlib.mlir import ir

        count = 2 * len(op.results)
        sizes, pads = _parts(op.operands[count]), _parts(op.operands[count + 4])
        axes = [n for n, value in enumerate(sizes) if self._known.get(value)]
        if len(axes) != 1 or len(pads) != len(sizes):
            return
        ends = _parts(pads[axes[0]])
        sized = [bool(self._known.get(value)) for value in ends]
        if sized in ([True, False], [False, True]):
            op.attributes[RUNNING] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axes[0])
            if sized[1]:
                op.attributes[REVERSE] = ir.UnitAttr.get()


def _parts(value: Any) -> list[Any]:
    """Values that are concatenated to one, through reshapes; the value itself where none are."""
    made = getattr(value.owner, "opview", value.owner)
    while getattr(made, "name", "") and str(made.operation.name) == "stablehlo.reshape":
        value = made.operands[0]
        made = getattr(value.owner, "opview", value.owner)
    if hasattr(made, "operation") and str(made.operation.name) == "stablehlo.concatenate":
        return list(made.operands)
    return [value]
