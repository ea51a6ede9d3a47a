"""Eigenvalues and singular values, which JAX writes for the CPU as calls of LAPACK, by Jacobi's rotations.

In each round half as many rotations as there are columns run side by side: column ``i`` meets column
``i + half``, then all columns but the first move on, as players of a tournament do.  A loop ends when a whole
tournament had nothing to turn.  All is computed in float64: rounding adds up over some hundred rounds.

Vectors are unique up to their signs, and up to rotations among those of equal values: LAPACK's may be others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper

from hetero_tvm.frontend.nodes import onnx_type
from hetero_tvm.frontend.stablehlo.matrices import Matrices, orthogonal, qr
from hetero_tvm.frontend.stablehlo.op import Op, dtype_of, shape_of

_TOURNAMENTS = 30
"""Most tournaments; ten do for 64 columns, more where many values are equal."""
_NEGLIGIBLE = {"float32": 1e-10, "float64": 4e-16}
"""Cosine of two columns that counts as zero, for each row."""
_NOISE = 1e-29
"""Products of columns that are rounding errors, among numbers of which the largest is 1."""

Round = Callable[[Sequence[str]], tuple[Sequence[str], str]]
"""Writes one round: from the states before to those after it, and whether anything was turned."""


def eigenvectors(op: Op) -> Sequence[str]:
    """``syevd``: eigenvectors of symmetric matrices, eigenvalues in rising order, and 1 for those of NaN."""
    m = Matrices(op, "float64")
    rows = op.shape()[-1]
    is_upper = m.option("uplo") == "U"
    given = op.inputs[0]
    half = np.triu if is_upper else np.tril
    kept = m.emit(
        "Where",
        op.const(half(np.ones((rows, rows), bool)), "bool"),
        given,
        m.turned(given, len(op.shape())),
    )
    matrix, scale, bad = _scaled(op, m, kept)
    t = _Tournament(op, m, rows)
    matrix = t.filled(t.filled(matrix, -1), -2)
    limit = m.const(_NEGLIGIBLE[op.dtype()] * rows)

    def turn(states: Sequence[str]) -> tuple[Sequence[str], str]:
        matrix, vectors = states
        ends = m.sum(m.emit("Mul", matrix, m.const(np.eye(t.count))), -2)
        left, right = m.part(ends, -1, 0, t.half), m.part(ends, -1, t.half)
        corner = m.part(m.part(matrix, -2, 0, t.half), -1, t.half)
        product = m.sum(m.emit("Mul", corner, m.const(np.eye(t.half))), -2)
        active = m.emit("Greater", m.emit("Abs", product), limit)
        angle = _angle(m, left, right, product, active)
        matrix = t.moved(t.moved(matrix, angle, -1), angle, -2)
        return [matrix, t.moved(vectors, angle, -1)], active

    matrix, vectors = t.play(turn, [matrix, t.identity()])
    ends = m.sum(m.emit("Mul", matrix, m.const(np.eye(t.count))), -2)
    values, order = t.sorted(ends, vectors, largest=False)
    vectors = t.picked(m.part(vectors, -2, 0, rows), rows, order)
    values = m.emit("Mul", values, scale)
    return [_as(op, vectors, 0), _as(op, m.emit("Squeeze", values, op.const([-2])), 1), bad]


def singular_values(op: Op) -> Sequence[str]:
    """``gesdd``: the operand, singular values, vectors on both sides, and 1 for matrices of NaN.

    Columns are turned until they are orthogonal to one another: their lengths are the values.  Householder's
    reflections of these columns are the vectors beside them, also where lengths are 0.
    """
    m = Matrices(op, "float64")
    shape, kinds = op.shape(), [value.type for value in op.raw.results]
    rank, is_wide = len(shape), shape[-2] < shape[-1]
    rows, columns = max(shape[-2:]), min(shape[-2:])
    given = m.turned(op.inputs[0], rank) if is_wide else op.inputs[0]
    matrix, scale, bad = _scaled(op, m, given)
    t = _Tournament(op, m, columns)
    limit, noise = m.const(_NEGLIGIBLE[op.dtype()] * rows), m.const(_NOISE)

    def turn(states: Sequence[str]) -> tuple[Sequence[str], str]:
        matrix, vectors = states
        left, right = m.part(matrix, -1, 0, t.half), m.part(matrix, -1, t.half)
        squares = [m.sum(m.emit("Mul", one, one), -2) for one in (left, right)]
        product = m.sum(m.emit("Mul", left, right), -2)
        size = m.emit("Sqrt", m.emit("Mul", *squares))
        least = m.emit("Max", m.emit("Mul", size, limit), noise)
        active = m.emit("Greater", m.emit("Abs", product), least)
        angle = _angle(m, *squares, product, active)
        return [t.moved(one, angle, -1) for one in (matrix, vectors)], active

    matrix, vectors = t.play(turn, [t.filled(matrix, -1), t.identity()])
    lengths = m.emit("Sqrt", m.sum(m.emit("Mul", matrix, matrix), -2))
    values, order = t.sorted(lengths, vectors, largest=True)
    values = m.emit("Squeeze", m.emit("Mul", values, scale), op.const([-2]))
    if m.option("mode") == "N":
        sides = [op.emit("Expand", m.const(0.0), op.const(shape_of(kind))) for kind in kinds[2:4]]
    else:
        packed, factors = qr(m, t.picked(matrix, rows, order), [*shape[:-2], rows, columns])
        wanted = shape_of(kinds[3])[-2] if is_wide else shape_of(kinds[2])[-1]
        beside = orthogonal(m, packed, factors, columns, [*shape[:-2], rows, wanted])
        ends = m.sum(m.emit("Mul", m.part(packed, -2, 0, columns), m.const(np.eye(columns))), -2)
        signs = m.emit("Where", m.emit("Less", ends, m.const(0.0)), m.const(-1.0), m.const(1.0))
        if wanted > columns:
            ones = op.emit("Expand", m.const(1.0), op.const([*shape[:-2], 1, wanted - columns]))
            signs = op.emit("Concat", signs, ones, axis=-1)
        beside = m.emit("Mul", beside, signs)
        along = t.picked(m.part(vectors, -2, 0, columns), columns, order)
        sides = [along, m.turned(beside, rank)] if is_wide else [beside, m.turned(along, rank)]
    u, v = sides
    return [op.inputs[0], _as(op, values, 1), _as(op, u, 2), _as(op, v, 3), bad]


class _Tournament:
    """Rounds in which each column of a matrix meets each other one.

    Parameters
    ----------
    columns : their number; one of zeros is added where it is odd.
    """

    def __init__(self, op: Op, m: Matrices, columns: int):
        self.op, self.m, self.columns = op, m, columns
        self.count = columns + columns % 2
        self.half = half = self.count // 2
        self._batch = list(op.shape()[:-2])
        left, right = list(range(half)), list(range(half, self.count))
        left, right = [0, *right[:1], *left[1:-1]][:half], [*right[1:], half - 1 if half > 1 else 1]
        self._order = np.array([*left, *right])
        self._partners = (self._order + half) % self.count

    def filled(self, name: str, axis: int) -> str:
        """A matrix with one more row (axis -2) or column (-1) of zeros, where their number is odd."""
        if self.count == self.columns:
            return name
        edges = np.zeros((2, len(self._batch) + 2), int)
        edges[1, axis] = 1
        return self.op.emit("Pad", name, self.op.const(edges.reshape(-1)), self.m.const(0.0))

    def identity(self) -> str:
        shape = [*self._batch, self.count, self.count]
        return self.op.emit("Expand", self.m.const(np.eye(self.count)), self.op.const(shape))

    def moved(self, name: str, angle: tuple[str, str], axis: int) -> str:
        """Columns (axis -1) or rows (-2), turned and in the order of the next round."""
        m, op = self.m, self.op
        cosine, sine = (m.emit("Gather", one, op.const(self._order % self.half), axis=-1) for one in angle)
        sine = m.emit("Mul", sine, m.const(np.where(self._order < self.half, -1.0, 1.0)))
        if axis == -2:
            cosine, sine = (m.turned(one, len(self._batch) + 2) for one in (cosine, sine))
        own, other = (
            m.emit("Gather", name, op.const(one), axis=axis) for one in (self._order, self._partners)
        )
        return m.emit("Add", m.emit("Mul", own, cosine), m.emit("Mul", other, sine))

    def play(self, turn: Round, states: Sequence[str]) -> list[str]:
        """States after rounds until none of a whole tournament turned anything."""
        op, nodes, rounds = self.op, self.op.nodes, self.count - 1
        number, going, quiet = (nodes.fresh() for _ in range(3))
        with nodes.inside() as inside:
            before = [nodes.fresh() for _ in states]
            after, active = turn(before)
            turned = op.emit("Cast", active, to=onnx_type("int32"))
            some = op.emit("ReduceMax", turned, keepdims=0)
            more = op.emit("Add", quiet, op.const(1, "int32"))
            more = op.emit("Mul", more, op.emit("Sub", op.const(1, "int32"), some))
            is_on = op.emit("Less", more, op.const(rounds, "int32"))
        body = helper.make_graph(
            inside,
            "rotations",
            [
                helper.make_tensor_value_info(number, TensorProto.INT64, []),
                helper.make_tensor_value_info(going, TensorProto.BOOL, []),
                helper.make_tensor_value_info(quiet, TensorProto.INT32, []),
                *(helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in before),
            ],
            [
                helper.make_tensor_value_info(is_on, TensorProto.BOOL, []),
                helper.make_tensor_value_info(more, TensorProto.INT32, []),
                *(helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in after),
            ],
        )
        limit, start = op.const(_TOURNAMENTS * rounds), op.const(True, "bool")
        none = op.const(0, "int32")
        return nodes.several("Loop", limit, start, none, *states, count=1 + len(states), body=body)[1:]

    def sorted(self, values: str, vectors: str, *, largest: bool) -> tuple[str, str]:
        """Values (a row beside each matrix) in order, and the columns that they come from."""
        m = self.m
        if self.count > self.columns:  # the column of zeros is where the vectors' last row has a one
            last = m.emit("Abs", m.part(vectors, -2, self.columns))
            is_added = m.emit("Greater", last, m.const(0.5))
            values = m.emit("Where", is_added, m.const(-np.inf if largest else np.inf), values)
        options = {"axis": -1, "largest": int(largest), "sorted": 1}
        found, order = self.op.nodes.several(
            "TopK", values, self.op.const([self.columns]), count=2, **options
        )
        return found, order

    def picked(self, matrix: str, rows: int, order: str) -> str:
        """Columns of a matrix in an order."""
        shape = self.op.const([*self._batch, rows, self.columns])
        axis = len(self._batch) + 1
        return self.op.emit("GatherElements", matrix, self.op.emit("Expand", order, shape), axis=axis)


def _angle(m: Matrices, left: str, right: str, product: str, active: str) -> tuple[str, str]:
    """Cosine and sine of the smaller turn that makes columns orthogonal; 1 and 0 where none is active."""
    one, zero = m.const(1.0), m.const(0.0)
    twice = m.emit("Where", active, m.emit("Add", product, product), one)
    slope = m.emit("Div", m.emit("Sub", right, left), twice)
    root = m.emit("Sqrt", m.emit("Add", m.emit("Mul", slope, slope), one))
    sign = m.emit("Where", m.emit("Less", slope, zero), m.const(-1.0), one)
    tangent = m.emit("Div", sign, m.emit("Add", m.emit("Abs", slope), root))
    tangent = m.emit("Where", active, tangent, zero)
    cosine = m.emit("Div", one, m.emit("Sqrt", m.emit("Add", m.emit("Mul", tangent, tangent), one)))
    return cosine, m.emit("Mul", cosine, tangent)


def _scaled(op: Op, m: Matrices, name: str) -> tuple[str, str, str]:
    """Matrices whose largest number is 1, their scales, and 1 for those with NaN or infinities, else 0."""
    wide = m.emit("Cast", name, to=onnx_type("float64"))
    zero = m.const(0.0)
    is_good = m.emit("Equal", m.emit("Sub", wide, wide), zero)
    wide = m.emit("Where", is_good, wide, zero)
    flags = m.emit("Cast", m.emit("Not", is_good), to=onnx_type("int32"))
    bad = op.emit("ReduceMax", flags, op.const([-2, -1]), keepdims=0)
    most = op.emit("ReduceMax", m.emit("Abs", wide), op.const([-2, -1]), keepdims=1)
    scale = m.emit("Where", m.emit("Greater", most, zero), most, m.const(1.0))
    return m.emit("Div", wide, scale), scale, bad


def _as(op: Op, name: str, result: int) -> str:
    """A tensor in the type of a result."""
    return op.emit("Cast", name, to=onnx_type(dtype_of(op.raw.results[result].type)))
