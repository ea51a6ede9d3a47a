"""Expressions of positions in a box: affine forms, and conditions that hold or do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hetero_tvm.host.tvm import Buffer, Expr, Var
from hetero_tvm.schedules.npu.tensor_program.blocks import has_load
from hetero_tvm.schedules.npu.tensor_program.index import (
    Affine,
    CutError,
    FactorError,
    NotAffineError,
    divided,
    holds,
)
from hetero_tvm.schedules.npu.tensor_program.values import Env, ValueTranslator


@dataclass
class Box:
    """Part of a block's domain: every variable as an affine form of the box's axes."""

    env: dict[Var, Affine]
    extents: list[int]
    reduced: list[bool]

    def cut(self, error: CutError) -> list[Box]:
        """The parts into which the request cuts the box."""
        points = [0, *error.points, self.extents[error.axis]]
        boxes = []
        for low, high in zip(points, points[1:], strict=False):
            env = {v: x + Affine(x.terms.get(error.axis, 0) * low) for v, x in self.env.items()}
            extents = list(self.extents)
            extents[error.axis] = high - low
            boxes.append(Box(env, extents, self.reduced))
        return boxes

    def factored(self, error: FactorError) -> Box:
        """The box with an axis that became two."""
        axis, inner = error.axis, error.inner

        def moved(x: Affine) -> Affine:
            terms = {a + (a > axis): c for a, c in x.terms.items() if a != axis}
            if (c := x.terms.get(axis, 0)) != 0:
                terms |= {axis: c * inner, axis + 1: c}
            return Affine(x.base, terms)

        extents = [*self.extents[:axis], self.extents[axis] // inner, inner, *self.extents[axis + 1 :]]
        reduced = [*self.reduced[: axis + 1], self.reduced[axis], *self.reduced[axis + 1 :]]
        return Box({v: moved(x) for v, x in self.env.items()}, extents, reduced)


class PositionTranslator(ValueTranslator):
    """Translates what only depends on where in ``box`` an element is."""

    box: Box

    def decide(self, condition: Any, env: Env) -> bool | None:
        if has_load(condition):
            return None
        kind = type(condition).__name__
        if kind == "IntImm":
            return bool(condition.value)
        if kind in ("And", "Or"):
            first = self.decide(condition.a, env)
            if first is (kind == "Or"):
                return first
            return self.decide(condition.b, env)
        if kind == "Not":
            return not self.decide(condition.a, env)
        if kind in ("LT", "LE", "GT", "GE", "EQ", "NE"):
            a, b = self.index(condition.a, env), self.index(condition.b, env)
            if kind in ("GT", "GE"):
                a, b = b, a
            test = {"GT": "LT", "GE": "LE", "NE": "EQ"}.get(kind, kind)
            return holds(test, a - b, self.box.extents) is (kind != "NE")
        if kind == "Cast":
            return self.decide(condition.value, env)
        raise NotAffineError(f"a condition of positions contains {kind}")

    def position(self, expr: Expr, env: Env) -> int:
        x = self.index(expr, env)
        if x.terms:
            low, high = x.range(self.box.extents)
            if low != high:
                raise NotAffineError("it computes with positions")
        return x.base

    def index(self, expr: Any, env: Env) -> Affine:
        """An integer expression of positions as an affine form of the box's axes."""
        kind = type(expr).__name__
        extents = self.box.extents
        if kind == "IntImm":
            return Affine(int(expr.value))
        if isinstance(expr, int):
            return Affine(expr)
        if kind == "Var":
            return env[expr]
        if kind == "Cast":
            return self.index(expr.value, env)
        if kind in ("Add", "Sub"):
            a, b = self.index(expr.a, env), self.index(expr.b, env)
            return a + b if kind == "Add" else a - b
        if kind == "Mul":
            a, b = self.index(expr.a, env), self.index(expr.b, env)
            if a.terms and b.terms:
                raise NotAffineError("an index multiplies positions")
            return a.scaled(b.base) if not b.terms else b.scaled(a.base)
        if kind in ("FloorDiv", "FloorMod", "Div", "Mod"):
            a, b = self.index(expr.a, env), self.index(expr.b, env)
            if b.terms or b.base <= 0 or (kind in ("Div", "Mod") and a.range(extents)[0] < 0):
                raise NotAffineError("an index divides by what is no positive constant")
            return divided(a, b.base, extents)[kind in ("FloorMod", "Mod")]
        if kind in ("Min", "Max"):
            a, b = self.index(expr.a, env), self.index(expr.b, env)
            return a if holds("LE", a - b, extents) is (kind == "Min") else b
        if kind == "Select":
            return self.index(expr.true_value if self.decide(expr.condition, env) else expr.false_value, env)
        if kind == "Call":
            name = str(expr.op.name).rpartition(".")[2]
            if name == "if_then_else":
                yes, no = expr.args[1], expr.args[2]
                return self.index(yes if self.decide(expr.args[0], env) else no, env)
            if name in ("truncmod", "truncdiv"):
                a, b = (self.index(x, env) for x in expr.args)
                if not b.terms and b.base > 0 and a.range(extents)[0] >= 0:
                    return divided(a, b.base, extents)[name == "truncmod"]
            raise NotAffineError(f"an index is computed with {name}")
        raise NotAffineError(f"an index contains {kind}")

    def flat(self, buffer: Buffer, indices: Sequence[Expr | int], env: Env) -> Affine:
        """Flat index of an element as an affine form of the box's axes."""
        at, pitch = Affine(0), 1
        for index, extent in zip(reversed(list(indices)), reversed(list(buffer.shape)), strict=True):
            if int(extent) > 1:
                at = at + self.index(index, env).scaled(pitch)
            pitch *= int(extent)
        return at
