"""ONNX's RNN, GRU and LSTM: left to one kernel where they have its form, else plain nodes, step by step.

The kernel (``ops/loops/recurrence.py``) has constant weights of the state, and activations as in PyTorch and
Keras.
Elsewhere, what the gates take from the input is one product for all time steps; a step then multiplies the
state only.  Its gates stay packed in one product, and steps of zero state have none.  The sequence is
taken apart and put together by trees of ``Split`` and ``Concat``, so that all steps are the same kernels and
none has hundreds of operands.  Of a model that is imported at several sizes the steps are a loop.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend.onnx.bodies.cells import CELLS, Activation, Cell, Step, activations
from hetero_tvm.frontend.onnx.bodies.loops import backwards
from hetero_tvm.frontend.onnx.graph.body import Body, as_text
from hetero_tvm.frontend.onnx.graph.constants import ConstantPool, Types
from hetero_tvm.frontend.onnx.graph.rounds import OPEN

KERNEL = "one kernel"
"""Note at a node that is not to be written out."""
_FAN = 16
"""Largest number of parts of one Split or Concat."""
_MOST_STEPS = 4096
"""Largest number of time steps, since each is written out."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def recurrent(
    node: onnx.NodeProto, opset: int, types: Types, pool: ConstantPool
) -> list[onnx.NodeProto] | None:
    """Write out a recurrent node; None while the shape of its input or weights is unknown, or where it stays.

    Raises
    ------
    UnsupportedOperatorError, ModelError : an option without expansion, or weights that do not fit.
    """
    if node.doc_string == KERNEL:  # an earlier round has seen to it, and to its lengths
        return None
    if any(a.name == "layout" and a.i for a in node.attribute):
        return _by_time(node, opset)
    shapes = {}
    for index in range(3):
        shape = pool.shape(node.input[index], types)
        if shape is None:
            return None
        shapes[index] = shape
    if _is_kernel(node, shapes, types, pool):
        node.doc_string = KERNEL
        if len(node.input) < 5 or not node.input[4] or node.input[4] in pool:
            return None
        return _with_checked_lengths(node, opset, shapes[0][0])
    return _Layer(node, opset, shapes, types, pool).write()


def _is_kernel(
    node: onnx.NodeProto, shapes: Mapping[int, tuple[int, ...]], types: Types, pool: ConstantPool
) -> bool:
    """Whether a node has the form of ``ops.loops.recurrence.Recurrence``, and weights that fit."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = [*node.input, *[""] * 8][:8]
    direction = as_text(given.get("direction", "forward"))
    names = [as_text(name).lower() for name in given.get("activations", ())]
    usual = [name.lower() for name in CELLS[node.op_type].activations] * len(_DIRECTIONS.get(direction, ()))
    plain = not names or names == usual or (node.op_type == "RNN" and set(names) <= {"relu", "tanh"})
    steps, hidden, count = shapes[0][0], shapes[2][-1], len(usual) // len(CELLS[node.op_type].activations)
    rows = CELLS[node.op_type].gates * hidden
    lengths = pool.array(inputs[4]) if inputs[4] in pool else None
    return (
        plain
        and direction in _DIRECTIONS
        and not any(given.get(name) for name in ("clip", "input_forget"))
        and pool.dtype(inputs[0], types) == "float32"
        and inputs[2] in pool
        and (not inputs[3] or inputs[3] in pool)
        and (lengths is None or bool((lengths == steps).all()))
        and (not inputs[4] or lengths is not None or _are_zero(pool, *inputs[5:7]))
        and not inputs[7]
        and shapes[1] == (count, rows, shapes[0][-1])
        and shapes[2] == (count, rows, hidden)
        and 0 not in shapes[0] + shapes[2]
    )


def _are_zero(pool: ConstantPool, *names: str) -> bool:
    """Whether states are left out, or constants of zeros."""
    return all(not name or (name in pool and not pool.array(name).any()) for name in names)


def _by_time(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """A layer whose first axis is the batch, between changes of layout."""
    b = Body(node, opset)
    given = [b.input(n) for n in range(8)]
    given = [b.op("Transpose", x, perm=[1, 0, 2]) if x and n in (0, 5, 6) else x for n, x in enumerate(given)]
    while not given[-1]:
        given.pop()
    first = b.op(node.op_type, *given, **{k: v for k, v in b.attributes.items() if k != "layout"})
    results = [first, f"{first}_1", f"{first}_2"][: len(node.output)]
    b.nodes[-1].output[:] = results
    for n, y in enumerate(results):
        if b.wants(n):
            b.op("Transpose", y, perm=[1, 0, 2] if n else [2, 0, 1, 3], output=b.wants(n))
    return b.nodes


def _with_checked_lengths(node: onnx.NodeProto, opset: int, steps: int) -> list[onnx.NodeProto]:
    """The node, behind a check of its lengths."""
    b = Body(node, opset)
    layer = onnx.NodeProto.FromString(node.SerializeToString())
    layer.input[4] = _checked_lengths(b, steps)
    return [*b.nodes, layer]


def _checked_lengths(b: Body, steps: int) -> str:
    """Lengths beyond the input's or below zero are an error of the call, as in ONNX Runtime."""
    lengths = b.input(4)
    least, most = (b.const(value, "int32") for value in (0, steps))
    outside = b.op("Or", b.op("Less", lengths, least), b.op("Less", most, lengths))
    text = f"{lengths} must lie in [0, {steps}]"
    return b.checked(lengths, b.every(b.op("Not", outside)), "int32", text)


class _Layer(Body):
    """Nodes of a recurrent layer of T time steps, B sequences, D directions, H values of state."""

    def __init__(
        self,
        node: onnx.NodeProto,
        opset: int,
        shapes: Mapping[int, tuple[int, ...]],
        types: Types,
        pool: ConstantPool,
    ):
        super().__init__(node, opset)
        self.cell, self.pool = CELLS[node.op_type], pool
        self.dtype = pool.dtype(node.input[0], types)
        (self.steps, self.batch, self.features), w, r = (shapes[index] for index in range(3))
        self.hidden = r[-1]
        direction = as_text(self.attributes.get("direction", "forward"))
        self.reversed = _DIRECTIONS.get(direction, ())
        rows = self.cell.gates * self.hidden
        if w != (len(self.reversed), rows, self.features) or r != (len(self.reversed), rows, self.hidden):
            raise ModelError(
                f"Node {node.name!r} ({node.op_type}, direction {direction!r}) has weights of shapes "
                f"{list(w)} and {list(r)}, which do not fit its input of {self.features} features.",
                hint="The model is damaged: export it again.",
            )
        if self.steps < 1:
            raise UnsupportedOperatorError(
                f"Node {node.name!r} ({node.op_type}) runs over no time steps.",
                hint="Give the model a sequence: --shape.",
            )
        self.is_loop = node.doc_string == OPEN or self.steps > _MOST_STEPS
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def const(self, value: object, dtype: str = "float32") -> str:
        """A Constant, the same for equal values."""
        array = np.array(value, dtype)
        key = (dtype, array.tobytes(), array.shape)
        if key not in self._constants:
            self._constants[key] = super().const(array, dtype)
        return self._constants[key]

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.const(shape, "int64"))

    # ---- the whole ---------------------------------------------------------------------------

    def write(self) -> list[onnx.NodeProto]:
        """Write the whole layer; returns its nodes."""
        x = self.input(0)
        x = self.reshape(x, self.steps * self.batch, self.features)
        write = self._loop if self.is_loop else self._direction
        results = [write(x, d, reverse) for d, reverse in enumerate(self.reversed)]
        if self.wants(0):
            whole = [self.reshape(y, self.steps, 1, self.batch, self.hidden) for y, _, _ in results]
            self.end(0, whole[0] if len(whole) == 1 else self.op("Concat", *whole, axis=1))
        has = self._with_steps() if self.wants(1) or self.wants(2) else ""
        for index in (1, 2):
            if self.wants(index):
                states = [result[index] for result in results]
                if has:
                    states = [self.op("Where", has, state, self._zeros()) for state in states]
                last = [self.reshape(state, 1, self.batch, self.hidden) for state in states]
                self.end(index, last[0] if len(last) == 1 else self.op("Concat", *last, axis=0))
        return self.nodes

    def _with_steps(self) -> str:
        """Mask [B, 1] of the sequences that have a step; "" where all do, or where the states begin as zeros.

        Those without any end with zeros in ONNX Runtime, whatever they begin with.
        """
        lengths, begins = self.input(4), any(self.input(n) for n in (5, 6))
        if not lengths or not begins or (lengths in self.pool and bool((self.pool.array(lengths) > 0).all())):
            return ""
        return self.reshape(self.op("Less", self.const(0, "int32"), lengths), self.batch, 1)

    def _direction(self, x: str, d: int, reverse: bool) -> tuple[str, str, str]:
        """Write one direction, step by step; returns its states by time, and the last ones (h, c)."""
        cell, parts = self._cell(x, d)
        inputs, step = [self._pieces(part, self.steps) for part in parts], self._step(self, d)
        h, c = self._initial(5, d), self._initial(6, d)
        masks = self._masks()
        states = [""] * self.steps
        for t in reversed(range(self.steps)) if reverse else range(self.steps):
            new_h, new_c = cell.step(step, [part[t] for part in inputs], h, c)
            states[t] = new_h
            if masks[t]:
                states[t] = self.op("Where", masks[t], new_h, self._zeros())
                new_h = self.op("Where", masks[t], new_h, h or self._zeros())
                new_c = new_c and self.op("Where", masks[t], new_c, c or self._zeros())
            h, c = new_h, new_c
        assert h is not None
        return self._join(states) if self.wants(0) else "", h, c or ""

    def _loop(self, x: str, d: int, reverse: bool) -> tuple[str, str, str]:
        """Write one direction as a loop; returns what :meth:`_direction` does."""
        cell, parts = self._cell(x, d)
        parts = [self.reshape(part, self.steps, self.batch, -1) for part in parts]
        masks = self._running()
        if masks:
            parts.append(masks)
        parts = [backwards(self, part, 0) if reverse else part for part in parts]
        names = ("h", "c")[: 1 + (self.node.op_type == "LSTM")]
        zeros = self.const(np.zeros((self.batch, self.hidden)), self.dtype)
        before = [self._initial(5 + n, d) or zeros for n in range(len(names))]
        inner = Body(self.node, self.opset)
        inner._prefix = f"{self._prefix}/round_{d}"
        number, begins, *states = (f"{inner._prefix}/{name}" for name in ("number", "begins", *names))
        now = [inner.op("Gather", part, number, axis=0) for part in parts]
        mask = now.pop() if masks else ""
        h, c = states[0], states[1] if len(states) > 1 else None
        new, cell_state = cell.step(self._step(inner, d), now, h, c)
        row = new
        if mask:
            row = inner.op("Where", mask, new, inner.const(np.zeros((1, 1)), self.dtype))
            new = inner.op("Where", mask, new, h)
            cell_state = cell_state and inner.op("Where", mask, cell_state, c or "")
        results = [inner.op("Identity", y) for y in (begins, new, cell_state, row) if y]
        shape, element = [self.batch, self.hidden], onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        kinds = [(onnx.TensorProto.BOOL, []), *[(element, shape)] * (len(results) - 1)]
        info = onnx.helper.make_tensor_value_info
        ends = [info(y, *kind) for y, kind in zip(results, kinds, strict=True)]
        given = [info(y, *kind) for y, kind in zip((begins, *states), kinds, strict=False)]
        given = [info(number, onnx.TensorProto.INT64, []), *given]
        graph = onnx.helper.make_graph(inner.nodes, inner._prefix, given, ends)
        first = self.op(
            "Loop", self.const(self.steps, "int64"), self.const(True, "bool"), *before, body=graph
        )
        self.nodes[-1].doc_string = OPEN
        made = [first, *(f"{first}_{n}" for n in range(1, len(results) - 1))]
        self.nodes[-1].output[:] = made
        y = backwards(self, made[-1], 0) if reverse and self.wants(0) else made[-1]
        return y, made[0], made[1] if len(states) > 1 else ""

    def _step(self, body: Body, d: int) -> Step:
        """Writer of a step of direction d."""
        clip = self.attributes.get("clip")
        bound = None if clip is None else float(clip)
        return Step(body, self.dtype, self.hidden, self._activations(body, d), bound)

    def _activations(self, body: Body, d: int) -> list[Activation]:
        """Activations of direction d."""
        names = list(self.attributes.get("activations", self.cell.activations * len(self.reversed)))
        count = len(self.cell.activations)
        if len(names) != count * len(self.reversed):
            raise ModelError(
                f"Node {self.node.name!r} ({self.node.op_type}) names {len(names)} activations; "
                f"it takes {count * len(self.reversed)}."
            )
        return list(activations(body, names, self.dtype))[d * count : (d + 1) * count]

    # ---- weights and inputs ------------------------------------------------------------------

    def _cell(self, x: str, d: int) -> tuple[Cell, list[str]]:
        """The cell with its weights, and the input's share of its gates by part, of all times."""
        linear = bool(self.attributes.get("linear_before_reset", 0))
        rows = self.cell.gates * self.hidden
        w, r = (self.op("Transpose", self._of(index, d), perm=[1, 0]) for index in (1, 2))
        products = self.op("MatMul", x, w)
        extra = None
        one_bias_inside = self.node.op_type == "GRU" and linear
        if self.input(3):
            bias = self.reshape(self._of(3, d), 1, 2 * rows)
            ours, theirs = self.cut(bias, 1, 0, rows), self.cut(bias, 1, rows, 2 * rows)
            if one_bias_inside:  # the last gate's is multiplied by another gate: it stays with the state
                inside = np.zeros((1, rows))
                inside[:, 2 * self.hidden :] = 1
                extra = self.op("Mul", theirs, self.const(inside, self.dtype))
                theirs = self.op("Mul", theirs, self.const(1 - inside, self.dtype))
            products = self.op("Add", products, self.op("Add", ours, theirs))
        elif one_bias_inside:
            extra = self.const(np.zeros((1, rows)), self.dtype)
        parts = self.cell.parts(linear)
        inputs, recurrent = [], []
        for first, count in parts:
            begin, end = first * self.hidden, (first + count) * self.hidden
            whole = len(parts) == 1
            recurrent.append(r if whole else self.cut(r, 1, begin, end))
            inputs.append(products if whole else self.cut(products, 1, begin, end))
        peephole = None
        if self.input(7):
            weights = self.reshape(self._of(7, d), 1, 3 * self.hidden)
            cuts = (self.cut(weights, 1, g * self.hidden, (g + 1) * self.hidden) for g in range(3))
            peephole = (next(cuts), next(cuts), next(cuts))
        coupled = bool(self.attributes.get("input_forget", 0))
        return self.cell(recurrent, extra, peephole, coupled), inputs

    def _of(self, index: int, d: int) -> str:
        """Part of direction d of an input, without the axis of directions."""
        x = self.input(index)
        if len(self.reversed) > 1:
            x = self.cut(x, 0, d, d + 1)
        return self.op("Squeeze", x, self.const([0], "int64"))

    def _initial(self, index: int, d: int) -> str | None:
        """State before the first step; None for zeros, unless they meet weights that come at run time.

        These may be infinite, and zero times infinity is NaN; ONNX Runtime too skips products of constants.
        """
        name = self.input(index)
        if _are_zero(self.pool, name):
            if index != 5 or self.input(2) in self.pool:
                return None
            return self.const(np.zeros((self.batch, self.hidden)), self.dtype)
        if len(self.reversed) > 1:
            name = self.cut(name, 0, d, d + 1)
        return self.reshape(name, self.batch, self.hidden)

    def _zeros(self) -> str:
        """A zero that is broadcast to any state."""
        return self.const(np.zeros((1, 1)), self.dtype)

    def _masks(self) -> list[str]:
        """Masks of the sequences that still run, as bool [B, 1] by time; "" where all do.

        Lengths beyond the input's or below zero are an error of the call, as in ONNX Runtime.
        """
        lengths = self.input(4)
        if not lengths:
            return [""] * self.steps
        times = np.arange(self.steps, dtype="int32").repeat(self.batch)
        if lengths in self.pool:
            running = times.reshape(self.steps, self.batch) < self.pool.array(lengths)
            return ["" if row.all() else self.const(row[:, None], "bool") for row in running]
        lengths = _checked_lengths(self, self.steps)
        lengths = self.op("Tile", lengths, self.const([self.steps], "int64"))
        runs = self.op("Less", self.const(times, "int32"), lengths)
        return self._pieces(self.reshape(runs, self.steps * self.batch, 1), self.steps)

    def _running(self) -> str:
        """Whether a sequence still runs, as bool [T, B, 1]; "" where all do."""
        if not self.input(4):
            return ""
        lengths = self.input(4) if self.input(4) in self.pool else _checked_lengths(self, self.steps)
        times = self.const(np.arange(self.steps)[:, None], "int32")
        runs = self.op("Less", times, self.reshape(lengths, 1, self.batch))
        return self.reshape(runs, self.steps, self.batch, 1)

    # ---- trees -------------------------------------------------------------------------------

    def _pieces(self, x: str, count: int) -> list[str]:
        """Divide ``x`` in ``count`` equal parts along the first axis."""
        if count == 1:
            return [x]
        size = 1
        while size * _FAN < count:
            size *= _FAN
        sizes = [min(size, count - begin) for begin in range(0, count, size)]
        rows = [n * self.batch for n in sizes]
        outputs = self.split(x, 0, rows)
        return [piece for part, n in zip(outputs, sizes, strict=True) for piece in self._pieces(part, n)]

    def _join(self, parts: list[str]) -> str:
        """Concatenate along the first axis."""
        while len(parts) > 1:
            groups = [parts[n : n + _FAN] for n in range(0, len(parts), _FAN)]
            parts = [group[0] if len(group) == 1 else self.op("Concat", *group, axis=0) for group in groups]
        return parts[0]
