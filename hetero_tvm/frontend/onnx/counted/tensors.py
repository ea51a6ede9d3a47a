"""Padded tensors, the counts of their axes, and the writer of nodes that know of both.

The result of a NonZero has as many columns as its operand has elements that are not zero.  Here it has as
many as there could be, and a scalar beside it tells how many of them count: such an axis is *counted*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from hetero_tvm.frontend.onnx.bodies.promised import PromisedBody
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types


@dataclass(frozen=True)
class Count:
    """Number of elements along a padded axis that count.

    Parameters
    ----------
    key, factor : what it is: two counts of equal key and factor are equal whenever the model runs.
    name : the tensor that holds it, int64 without dimensions.
    most : elements of the padded axis.
    rest_of : the count and the number of which this count is the difference, where it is one.
    """

    key: str
    name: str = field(compare=False)
    most: int
    factor: int = 1
    rest_of: tuple[Count, int] | None = field(default=None, compare=False)


Axes = Mapping[int, Count]
"""Count of each counted axis of a tensor."""
Value = int | Count
"""Element of a tensor of whole numbers, as far as it is known before the model runs."""


class Unfit(Exception):
    """Reason why an operator cannot take a counted tensor."""


class Unknown(Unfit):
    """Shape that an operator on a counted tensor must know, and that is not known yet."""


@dataclass
class Counted:
    """Knowledge of a graph's counted tensors.

    Parameters
    ----------
    axes : counted axes by tensor.
    values : elements of vectors and scalars that shapes are computed from, in order.
    seen : first results of the nodes that have been looked at.
    """

    axes: dict[str, Axes] = field(default_factory=dict)
    values: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def concerns(self, node: onnx.NodeProto) -> bool:
        """Whether a node reads a counted tensor or a value that depends on one."""
        return any(name in self.axes or name in self.values for name in node.input if name)


class Step(PromisedBody):
    """Writer of what stands for one node that reads counted tensors.

    Without nodes written the node stays as it is.  Results are counted as :meth:`mark` says.
    """

    def __init__(
        self, node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool, counted: Counted
    ) -> None:
        super().__init__(node, opset, types, pool, {})
        self._prefix = f"{next(filter(None, node.output))}/counted"
        self.counted = counted
        self.stays = False
        """Whether the node itself stays, behind those that are written."""

    def mark(self, index: int, axes: Axes) -> None:
        """Say which axes of a result are counted."""
        if self.wants(index) and axes:
            self.counted.axes[self.wants(index)] = dict(axes)

    def note(self, values: tuple[Value, ...]) -> None:
        """Say the elements of the first result."""
        self.counted.values[self.wants(0)] = values

    def axes(self, index: int) -> Axes:
        """Counted axes of an input."""
        return self.counted.axes.get(self.input(index), {})

    def extents(self, index: int) -> tuple[int, ...]:
        """Padded shape of an input."""
        shape = self._pool.shape(self.input(index), self._types)
        if shape is None:
            raise Unknown(f"the shape of {self.input(index)!r} is not known")
        return shape

    def elements(self, index: int) -> tuple[Value, ...] | None:
        """Elements of an input of whole numbers, as far as they are known; None otherwise."""
        if not self.input(index):
            return None
        array = self.value(index)
        if array is not None:
            return tuple(int(value) for value in array.reshape(-1)) if array.dtype.kind in "iu" else None
        return self.counted.values.get(self.input(index))

    def numbers(self, index: int, what: str) -> list[int]:
        """Elements of an input that are constants."""
        found = self.elements(index)
        if found is None or any(isinstance(value, Count) for value in found):
            raise Unfit(f"its {what} come at run time")
        return [value for value in found if isinstance(value, int)]

    def reduced_axes(self, rank: int) -> list[int] | None:
        """Axes of a reduction, None where it is one of all."""
        given = self.attributes.get("axes")
        if given is None and self.input(1):
            given = self.numbers(1, "axes")
        if not given:
            return None
        return [int(axis) % rank for axis in given]

    # ---- counts --------------------------------------------------------------------------------

    def times(self, count: Count, factor: int) -> Count:
        """A multiple of a count."""
        if factor == 1:
            return count
        name = self.op("Mul", count.name, self.ints(factor))
        rest = count.rest_of and (self.times(count.rest_of[0], factor), count.rest_of[1] * factor)
        return Count(count.key, name, count.most * factor, count.factor * factor, rest)

    def over(self, count: Count, divisor: int) -> Count:
        """A count that is known to be a multiple, divided."""
        if divisor == 1:
            return count
        if count.most % divisor:
            raise Unfit(f"up to {count.most} elements become rows of {divisor}")
        name = self.op("Div", count.name, self.ints(divisor))
        if count.factor % divisor:
            return Count(f"({count.key})*{count.factor}/{divisor}", name, count.most // divisor)
        return Count(count.key, name, count.most // divisor, count.factor // divisor)

    def least(self, count: Count, limit: int) -> Count:
        """A count, or ``limit`` where that is less."""
        if limit >= count.most:
            return count
        name = self.op("Min", count.name, self.ints(limit))
        return Count(f"min({_text(count)},{limit})", name, limit)

    def lesser(self, one: Count, other: Count) -> Count:
        """The less of two counts."""
        name = self.op("Min", one.name, other.name)
        return Count(f"min({_text(one)},{_text(other)})", name, min(one.most, other.most))

    def less(self, count: Count, number: int) -> Count:
        """Rest of a count after the first ``number``."""
        if not number:
            return count
        name = self.op("Max", self.op("Sub", count.name, self.ints(number)), self.ints(0))
        return Count(f"({_text(count)})-{number}", name, max(count.most - number, 0))

    def rest(self, number: int, count: Count) -> Count:
        """Difference of a number and a count that does not exceed it."""
        name = self.op("Sub", self.ints(number), count.name)
        return Count(f"{number}-({_text(count)})", name, number, rest_of=(count, number))

    def plus(self, *counts: Value) -> Value:
        """Sum of counts and numbers."""
        total, most, name, keys = 0, 0, "", []
        for count in counts:
            if isinstance(count, int):
                total += count
                continue
            name = self.op("Add", name, count.name) if name else count.name
            most += count.most
            keys.append(_text(count))
        if not name:
            return total
        if len(keys) == 1 and not total:
            return next(count for count in counts if isinstance(count, Count))
        if total:
            name = self.op("Add", name, self.ints(total))
        return Count("+".join([*keys, str(total)]), name, most + total)

    def as_vector(self, values: tuple[Value, ...]) -> str:
        """Elements as a tensor that is computed when the model runs, int64 [n]."""
        parts = [
            self.ints([value]) if isinstance(value, int) else self.op("Reshape", value.name, self.ints([1]))
            for value in values
        ]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    # ---- what does not count -------------------------------------------------------------------

    def mask(self, count: Count, axis: int, rank: int) -> str:
        """Mask of the elements along an axis that count: bool, broadcast against a tensor of ``rank``."""
        places = np.arange(count.most).reshape([-1] + [1] * (rank - axis - 1))
        return self.op("Less", self.ints(places), count.name)

    def masked(self, index: int, value: object, only: set[int] | None = None) -> str:
        """An input with ``value`` where it does not count, along all axes or ``only`` some."""
        axes = {a: c for a, c in self.axes(index).items() if only is None or a in only}
        x = self.input(index)
        return self.masked_tensor(x, axes, len(self.extents(index)), value, self.dtype(x))

    def masked_tensor(self, x: str, axes: Axes, rank: int, value: object, dtype: str) -> str:
        """``x`` with ``value`` where it does not count."""
        for axis, count in axes.items():
            mask = self.mask(count, axis, rank)
            if dtype == "bool":  # onnxruntime, which judges, has no Where of booleans
                x = self.op("Or", self.op("Not", mask), x) if value else self.op("And", mask, x)
            else:
                x = self.op("Where", mask, x, self.const(value, dtype))
        return x

    def places(self, index: int, count: Count | None) -> str:
        """Indices of which those that do not count are 0; of a counted axis, none lies behind what counts."""
        places, own = self.input(index), self.axes(index)
        if count is not None:
            rank = len(self.extents(index))
            places = self.from_end(self.whole(places), count.name)
            inside = self.op("Less", places, count.name)
            for axis, mine in own.items():
                inside = self.op("Or", inside, self.op("Not", self.mask(mine, axis, rank)))
            places = self.guard(places, inside, what="the indices", dtype="int64")
            return self.masked_tensor(places, own, rank, 0, "int64")
        return self.masked(index, 0) if own else places

    def lowest(self, index: int) -> object:
        """Least value of an input's type."""
        return _limit(self.dtype(self.input(index)), False)

    def highest(self, index: int) -> object:
        """Greatest value of an input's type."""
        return _limit(self.dtype(self.input(index)), True)

    def found(self, flags: str, length: int, key: str) -> tuple[str, Count]:
        """Places where a boolean vector holds, in order, padded with zeros; and their count."""
        if not length:
            return self.ints(np.zeros(0)), Count(key, self.ints(0), 0)
        number = self.op("Cast", flags, to=TensorProto.INT64)
        ends = self.op("CumSum", number, self.ints(0))
        count = Count(key, self.at(ends, length - 1), length)
        # What does not hold goes to a place behind all others, which is cut off.
        places = self.op("Where", flags, self.op("Sub", ends, self.ints(1)), self.ints(length))
        kept = self.op(
            "ScatterElements", self.ints(np.zeros(length + 1)), places, self.ints(np.arange(length))
        )
        return self.cut(kept, 0, 0, length), count

    def again_as(self, kind: str, inputs: Mapping[int, str]) -> None:
        """Write the node as another operator without attributes, with its own first result."""
        self.op(kind, *(inputs[n] for n in sorted(inputs)), output=self.wants(0))

    def beside(self, write: Callable[[], Value]) -> Value:
        """Result of ``write``, by nodes that stand before this one, which stays."""
        self.stays = True
        return write()

    def finish(self, index: int, value: str) -> None:
        """Give the last node written the name of a result, so that no tensor in between goes unmarked."""
        if not self.wants(index):
            return
        last = self.nodes[-1]
        if last.output[0] == value and len(last.output) == 1:
            last.output[0] = self.wants(index)
        else:
            self.end(index, value)


def _text(count: Count) -> str:
    return count.key if count.factor == 1 else f"({count.key})*{count.factor}"


def _limit(dtype: str, greatest: bool) -> object:
    if dtype == "bool":
        return greatest
    if "float" in dtype:
        return np.inf if greatest else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if greatest else limits.min
