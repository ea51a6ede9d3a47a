"""Marks in programs of open sizes: what the refinement to fixed sizes would hide.

At fixed sizes the rounds of a loop over an open axis are a number like any other, and a running sum over one
element is a sum of nothing.  Both are marked before, as attributes that passes keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_tvm.frontend.stablehlo.open.functions import DYNAMIC_WINDOW, REVERSE, RUNNING, operations

SIZED_ROUNDS = "hetero_tvm.sized_rounds"
"""Attribute of a loop whose number of rounds may follow from an open size."""


def mark_open(module: Any) -> None:
    """Mark loops and windows of a module whose functions have one caller each."""
    functions = {
        str(op.attributes["sym_name"]).strip('"'): op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    _Marks(functions).function("main", {})


class _Marks:
    """Values that follow from constants and sizes alone, from main down into what it calls.

    ``known`` : such values; True for those that follow from an open size.
    """

    def __init__(self, functions: Mapping[str, Any]):
        self._functions = functions
        self._known: dict[Any, bool] = {}

    def function(self, name: str, given: Mapping[int, bool]) -> list[bool | None]:
        """Follow one function, of which these arguments are known; what is known of its results."""
        block = self._functions[name].regions[0].blocks[0]
        self._known.update({block.arguments[n]: sized for n, sized in given.items()})
        self._block(block)
        last = block.operations[len(block.operations) - 1]
        return [self._known.get(value) for value in last.operands]

    def _block(self, block: Any) -> None:
        for op in block.operations:
            self._operation(op, str(op.operation.name))

    def _operation(self, op: Any, kind: str) -> None:
        known = [self._known.get(value) for value in op.operands]
        if kind == "stablehlo.get_dimension_size":
            self._known[op.results[0]] = True
        elif kind == "func.call":
            called = str(op.attributes["callee"]).lstrip("@").strip('"')
            if called not in self._functions:
                return
            given = {n: sized for n, sized in enumerate(known) if sized is not None}
            for value, sized in zip(op.results, self.function(called, given), strict=True):
                if sized is not None:
                    self._known[value] = sized
        elif kind == "stablehlo.while":
            self._loop(op)
        elif kind == "stablehlo.custom_call":
            if str(op.attributes["call_target_name"]).strip('"') == DYNAMIC_WINDOW:
                self._window(op)
        elif op.operation.regions:
            for region in op.operation.regions:
                for block in region.blocks:
                    self._block(block)
        elif None not in known:
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
        self._block(test)
        read = [value for one in operations(test) for value in one.operands]
        if any(value in limits or self._known.get(value) for value in read):
            from jaxlib.mlir import ir

            op.attributes[SIZED_ROUNDS] = ir.UnitAttr.get()
        self._block(body)

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
