"""A graph under construction: every node is computed as it is added, so that shapes and values are known.

A node that its schema, the reference evaluator or the sane range of values refuses raises
:class:`Rejected`; the generator then takes back what it has added and tries something else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.campaign.graphs.compute import check_types, compute, schema_of
from tests.campaign.graphs.values import (
    FLOATS,
    UNSIGNED,
    Rejected,
    Source,
    Value,
    numpy_type,
)

MOST_ELEMENTS = 20_000
LARGEST = {"float16": 200.0, "bfloat16": 200.0}
EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 8, 9, 12, 16, 17, 19, 33)


@dataclass
class Mark:
    """Lengths of a builder's lists, to go back to."""

    lengths: tuple[int, ...]


@dataclass
class Builder:
    """The graph so far.

    Parameters
    ----------
    special : whether inputs hold NaN and infinity, and results may.
    """

    rng: np.random.Generator
    opset: int
    floats: str = "float32"
    special: bool = False
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    outputs: list[Value] = field(default_factory=list)
    count: int = 0

    # ---- going back --------------------------------------------------------------------------

    def mark(self) -> Mark:
        return Mark(tuple(map(len, (self.values, self.nodes, self.weights, self.sources, self.outputs))))

    def back(self, mark: Mark) -> None:
        lists = (self.values, self.nodes, self.weights, self.sources, self.outputs)
        for things, length in zip(lists, mark.lengths, strict=True):
            del things[length:]

    # ---- choices -----------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def number(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def extent(self) -> int:
        return int(self.one(EXTENTS))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        rank = self.number(low, high)
        while True:
            shape = tuple(self.extent() for _ in range(rank))
            if np.prod(shape, dtype=np.int64) <= 3000:
                return shape

    def axis(self, value: Value, negative: bool = True) -> int:
        """An axis of a value, half of the time counted from the end."""
        if not value.rank:
            raise Rejected("no axis")
        axis = self.number(0, value.rank - 1)
        return axis - value.rank if negative and self.chance(0.4) else axis

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    # ---- values ------------------------------------------------------------------------------

    def source(self, dtype: str, shape: Sequence[int], low: float = -2, high: float = 2) -> Value:
        """A new input of the graph."""
        if dtype in UNSIGNED:
            low = max(low, 0)
        name = self.name("x")
        special = self.special and dtype in FLOATS and self.chance(0.6)
        source = Source(name, dtype, tuple(shape), low, high, special)
        self.sources.append(source)
        return self._keep(Value(name, source.draw(self.rng)))

    def const(self, array: Any, dtype: str | None = None, keep: bool = False) -> Value:
        """A new constant: an initializer, or the value of a Constant node."""
        array = np.array(array, numpy_type(dtype) if dtype else None)
        name = self.name("c")
        tensor = numpy_helper.from_array(array, name)
        value = Value(name, array, const=True)
        # Until opset 9 a Constant node holds floats alone.
        if self.chance(0.15) and (self.opset >= 9 or array.dtype.name in FLOATS[:3]):
            scalar = self.opset >= 12 and array.ndim == 0 and array.dtype == np.float32
            given = {"value_float": float(array)} if scalar else {"value": tensor}
            self.nodes.append(helper.make_node("Constant", [], [name], **given))
        else:
            self.weights.append(tensor)
        if keep:
            self.values.append(value)
        return value

    def weight(self, dtype: str, shape: Sequence[int], low: float = -2, high: float = 2) -> Value:
        """A constant of random numbers."""
        if dtype in UNSIGNED:
            low = max(low, 0)
        return self.const(Source("", dtype, tuple(shape), low, high).draw(self.rng), dtype)

    def fresh(
        self, dtype: str, shape: Sequence[int], low: float = -2, high: float = 2, p_const: float = 0.4
    ) -> Value:
        """A constant, or an input where there are few of them."""
        if len(self.sources) and (len(self.sources) >= 6 or self.chance(p_const)):
            return self.weight(dtype, shape, low, high)
        return self.source(dtype, shape, low, high)

    def pick(
        self,
        dtypes: Sequence[str] | None = None,
        low: int = 0,
        high: int = 5,
        where: Callable[[Value], bool] = lambda value: True,
        shape: Callable[[], Sequence[int]] | None = None,
    ) -> Value:
        """A value of one of ``dtypes`` with ``low`` to ``high`` axes: one that is there, or a new one."""
        dtypes = dtypes or (self.floats,)
        fits = [v for v in self.values if v.dtype in dtypes and low <= v.rank <= high and where(v)]
        unread = [v for v in fits if v.name not in self.used]
        if fits and self.chance(0.85):
            return self.one(unread) if unread and self.chance(0.65) else self.one(fits)
        for _ in range(20):
            dtype = self.floats if self.floats in dtypes and self.chance(0.7) else self.one(dtypes)
            value_shape = tuple(shape()) if shape else self.shape(low, min(high, 4))
            mark = self.mark()
            value = self.fresh(dtype, value_shape, p_const=0.25)
            if value.const:
                self.values.append(value)
            if where(value):
                return value
            self.back(mark)
        raise Rejected("no such value")

    def partner(self, value: Value, dtype: str | None = None, low: float = -2, high: float = 2) -> Value:
        """Something that broadcasts with a value."""
        dtype = dtype or value.dtype
        fits = [v for v in self.values if v.dtype == dtype and _broadcasts(v.shape, value.shape)]
        if fits and self.chance(0.55) and low <= -2:
            return self.one(fits)
        shape = list(value.shape)
        kind = self.number(0, 3)
        if kind == 0:
            shape = []
        elif kind == 1:
            shape = [1 if self.chance(0.5) else extent for extent in shape]
        elif kind == 2:
            shape = shape[self.number(0, len(shape)) :]
            shape = [1 if self.chance(0.2) else extent for extent in shape]
        return self.fresh(dtype, shape, low, high, 0.6)

    # ---- values in a range ---------------------------------------------------------------------

    def positive(self, value: Value) -> Value:
        """Something above zero made of a float, unless anything goes."""
        if self.special and self.chance(0.3):
            return value
        kind = self.number(0, 2)
        if kind == 0:
            return self.op("Add", [self.op("Abs", [value]), self.const(0.5, value.dtype)])
        if kind == 1:
            return self.op("Sigmoid", [value])
        squared = self.op("Mul", [value, value])
        return self.op("Add", [squared, self.const(0.25, value.dtype)])

    def bounded(self, value: Value) -> Value:
        """Something in (-1, 1) made of a float."""
        if self.special and self.chance(0.3):
            return value
        return self.op(self.one(["Tanh", "Sin"]), [value])

    def far_from(self, value: Value, step: Callable[[np.ndarray], np.ndarray]) -> None:
        """Refuse a value for which a small error changes the result of ``step``."""
        sample = np.asarray(value.sample, np.float64)
        with np.errstate(all="ignore"):
            for factor in (1 - 2e-3, 1 + 2e-3):
                if not np.array_equal(step(sample), step(sample * factor), equal_nan=True):
                    raise Rejected("near a step")

    # ---- nodes -------------------------------------------------------------------------------

    def op(self, op_type: str, inputs: Sequence[Value | None], domain: str = "", **attributes: Any) -> Value:
        """The first result of a new node."""
        return self.node(op_type, inputs, 1, domain, **attributes)[0]

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[bool] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Add a node; ``outputs`` says how many results it has, or which of them are wanted."""
        wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
        schema = schema_of(op_type, self.opset, domain)
        if schema is not None:
            check_types(schema, inputs)
        attributes = {
            k: v for k, v in attributes.items() if v is not None and not (isinstance(v, list) and not v)
        }
        names = [self.name(op_type.lower()) if w else "" for w in wanted]
        node = helper.make_node(
            op_type, [v.name if v else "" for v in inputs], names, domain=domain or None, **attributes
        )
        if self.chance(0.7):
            node.name = self.one([f"/block/{names[0]}", f"node.{names[0]}", names[0].upper()])
        results = compute(node, [v for v in inputs if v], self.opset)
        made = []
        for name, result in zip(names, results, strict=False):
            if name:
                self._refuse(result)
                made.append(Value(name, np.asarray(result), const=all(v.const for v in inputs if v)))
        self.nodes.append(node)
        self.used.update(v.name for v in inputs if v)
        self.values.extend(made)
        return made

    def _refuse(self, result: Any) -> None:
        if not isinstance(result, np.ndarray | np.generic):
            raise Rejected("no tensor")
        if result.size > MOST_ELEMENTS or result.ndim > 7:
            raise Rejected("too large")
        if result.dtype.name in FLOATS and result.size and not self.special:
            wide = np.abs(np.asarray(result, np.float64))
            if not np.isfinite(wide).all() or wide.max() > LARGEST.get(result.dtype.name, 1e4):
                raise Rejected("out of range")

    def _keep(self, value: Value) -> Value:
        self.values.append(value)
        return value

    # ---- the end -----------------------------------------------------------------------------

    def output(self, value: Value) -> Value:
        """Make a value a result of the graph as well."""
        self.outputs.append(value)
        return value


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a, b), dtype=np.int64)) <= MOST_ELEMENTS // 4
    except ValueError:
        return False
