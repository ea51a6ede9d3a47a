"""From the TensorIR of an operator to a program of stages in which every access is affine.

Element-wise steps are computed where they are used.  Reductions, and steps that a reduction cannot take
in, get a scratch tensor.  Conditions on positions (concatenation, padding, rotated halves) cut a stage
into boxes in which they are constant.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from hetero_tvm.schedules.npu.tensor_program.blocks import (
    Block,
    blocks_of,
    has_load,
    integer,
    loads_in,
    reduction_of,
    text_of,
    variable_of,
    wraps,
)
from hetero_tvm.schedules.npu.tensor_program.index import Affine, CutError, FactorError, NotAffineError
from hetero_tvm.schedules.npu.tensor_program.positions import Box, Positions
from hetero_tvm.schedules.npu.tensor_program.stages import (
    Buffer,
    Expr,
    Gather,
    Load,
    Map,
    Product,
    Program,
    Stage,
)
from hetero_tvm.schedules.npu.tensor_program.values import binary, constant, is_integer

_MOST_BOXES = 64
_MOST_PLACES = 4
"""At which a step is computed again rather than kept."""
_DTYPES = ("float32", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool")


class _MaterializeError(Exception):
    """A step must have a tensor of its own."""

    def __init__(self, buffers: list[Any]):
        super().__init__("materialize")
        self.buffers = buffers


def recover(function: Any) -> Program:
    """The program of an unscheduled PrimFunc with one result.

    Raises
    ------
    NotAffineError : something in it is beyond the machine; the text says what.
    """
    kept: set[Any] = set()
    while True:
        try:
            return _Recovery(function, kept).run()
        except _MaterializeError as error:
            if not set(error.buffers) - kept:
                raise NotAffineError("an index depends on data in a way that no gather has") from None
            kept |= set(error.buffers)


class _Recovery(Positions):
    def __init__(self, function: Any, kept: set[Any]):
        self._kept = kept
        self._params = list(function.params)
        self._raws = blocks_of(function)
        self._by_buffer = {raw.buffer: raw for raw in self._raws}
        outputs = [p for p in self._params if p in self._by_buffer]
        if len(outputs) != 1 or outputs[0] is not self._params[-1] and outputs[0] != self._params[-1]:
            raise NotAffineError(f"it has {len(outputs)} results")
        for buffer in [*self._params, *self._by_buffer]:
            if str(buffer.dtype) not in _DTYPES:
                raise NotAffineError(f"the vector unit has no {buffer.dtype}")
        # What is rounded to 8 bits is read as it came: float16 would move many values to a neighbour.
        # So are the steps of what comes from 8 bits, which may be below float16's least number.
        exact = any(str(p.dtype) in ("int8", "uint8") for p in self._params)
        self._buffers = [_buffer(p, exact and str(p.dtype) == "float32" or None) for p in self._params[:-1]]
        self._inputs = len(self._buffers)
        self._number = {p: n for n, p in enumerate(self._params[:-1])}
        self._stages: list[Stage] = []
        self._pending: list[Gather] = []
        self._gathered: dict[Any, tuple[int, Gather]] = {}
        self.box: Box = Box({}, [], [])
        self._seen: list[Any] = []

    def run(self) -> Program:
        output = self._params[-1]
        for raw in self._raws:
            if raw.buffer in self._number or (raw.buffer != output and not self._needs_tensor(raw)):
                continue
            wide = any(reduced for *_, reduced in raw.axes) and not is_integer(str(raw.buffer.dtype))
            if raw.buffer == output:
                number = -1
            else:
                number = len(self._buffers)
                self._buffers.append(_buffer(raw.buffer, wide))
            self._stage(raw, number)
            self._number[raw.buffer] = number
        result = len(self._buffers)
        buffers = (*self._buffers, _buffer(output, False))
        return Program(buffers, self._inputs, tuple(_renumbered(s, result) for s in self._stages))

    def _needs_tensor(self, raw: Block) -> bool:
        return raw.buffer in self._kept or any(reduced for *_, reduced in raw.axes)

    # --- one block -----------------------------------------------------------------------------

    def _stage(self, raw: Block, number: int) -> None:
        variables = [v for v, _, _ in raw.axes]
        env = {v: Affine.axis(n) for n, v in enumerate(variables)}
        pending = [Box(env, [e for _, e, _ in raw.axes], [r for *_, r in raw.axes])]
        done = 0
        seen: list[Any] = []
        while pending:
            self.box = box = pending.pop()
            self._memo: dict[Any, Expr] = {}
            self._places: dict[Any, int] = {}
            self._seen = []
            gathers = len(self._stages)
            try:
                stage = self._piece(raw, number)
            except CutError as error:
                if box.reduced[error.axis]:
                    self._give_up("a reduced axis has parts of its own")
                del self._stages[gathers:]
                pending += box.cut(error)
                continue
            except FactorError as error:
                del self._stages[gathers:]
                pending.append(box.factored(error))
                continue
            except NotAffineError as error:
                self._give_up(str(error))
            self._stages.append(stage)
            seen += self._seen
            done += 1
            if done + len(pending) > _MOST_BOXES:
                self._seen = seen
                self._give_up(f"its positions fall into more than {_MOST_BOXES} boxes")

    def _give_up(self, reason: str) -> None:
        """What was computed in place gets a tensor of its own; when there is nothing, that was all."""
        fresh = [b for b in dict.fromkeys(self._seen) if b not in self._kept]
        if fresh:
            raise _MaterializeError(fresh)
        raise NotAffineError(reason)

    def _piece(self, raw: Block, number: int) -> Stage:
        box = self.box
        rank = len(box.extents)
        at = self.flat(raw.buffer, raw.indices, box.env)
        out = Load(number, at.base, at.strides(rank))
        if not any(box.reduced):
            expr = self.value(raw.value, box.env)
            if str(raw.buffer.dtype) == "uint8":  # kept less 128
                expr = binary("sub", expr, constant(128), True)
            return Map(tuple(box.extents), out, expr)
        if str(raw.buffer.dtype) == "uint8":
            raise NotAffineError("a reduction of uint8")
        combine, body = reduction_of(raw)
        expr = self.value(body, box.env)
        order = [n for n in range(rank) if not box.reduced[n]] + [n for n in range(rank) if box.reduced[n]]
        extents = tuple(box.extents[n] for n in order)
        out = Load(number, at.base, tuple(out.strides[n] for n in order))
        reduced = sum(box.reduced)
        if combine == "sum" and expr[0] == "binary" and expr[1] == "mul" and _worth(expr, box):
            a, b = (x[1] if x[0] == "load" else None for x in expr[2:])
            ready = a is not None and b is not None and not any(self._buffer_of(x).wide for x in (a, b))
            if not ready:
                self._give_up_product()
            if a is not None and b is not None and ready:
                return Product(extents, out, _ordered(a, order), _ordered(b, order), reduced)
        return Map(extents, out, _expr_ordered(expr, order), combine, reduced)

    def _give_up_product(self) -> None:
        fresh = [b for b in dict.fromkeys(self._seen) if b not in self._kept]
        if fresh:
            raise _MaterializeError(fresh)

    def _buffer_of(self, load: Load) -> Buffer:
        return self._buffers[load.buffer]

    # --- Values --------------------------------------------------------------------------------

    def read(self, load: Any, env: Any) -> Expr:
        source = load.source
        if any(has_load(index) for index in load.indices):
            return self._gather(load, env)
        if source not in self._number:
            raw = self._by_buffer.get(source)
            if raw is None:
                raise NotAffineError(f"{source.name} is read before it is written")
            indices = [self.index(i, env) for i in load.indices]
            self._seen.append(source)
            key = (source, tuple((i.base, tuple(sorted(i.terms.items()))) for i in indices))
            if key not in self._memo:
                self._places[source] = self._places.get(source, 0) + 1
                if self._places[source] > _MOST_PLACES:  # a chain of such would grow without end
                    raise _MaterializeError([source])
                at = {
                    variable_of(i): x
                    for i, x in zip(raw.indices, indices, strict=True)
                    if variable_of(i) is not None
                }
                self._memo[key] = self.value(raw.value, at)
            return self._memo[key]
        at = self.flat(source, load.indices, env)
        node: Expr = ("load", Load(self._number[source], at.base, at.strides(len(self.box.extents))))
        return binary("add", node, constant(128), True) if str(source.dtype) == "uint8" else node

    # --- gathers -------------------------------------------------------------------------------

    def _gather(self, load: Any, env: Any) -> Expr:
        table = load.source
        if table not in self._number:
            raise _MaterializeError([table])
        places = [n for n, index in enumerate(load.indices) if has_load(index)]
        if len(places) != 1:
            raise NotAffineError("a gather by several indices")
        place = places[0]
        inner = loads_in(load.indices[place])
        rows = int(table.shape[place])
        if len({text_of(x) for x in inner}) != 1 or not wraps(load.indices[place], rows):
            raise NotAffineError("an index is computed from data")
        if inner[0].source not in self._number:
            raise _MaterializeError([inner[0].source])
        if any(has_load(i) for i in inner[0].indices):
            raise NotAffineError("an index is itself gathered")
        extents, rank = self.box.extents, len(self.box.extents)
        index = self.flat(inner[0].source, inner[0].indices, env)
        rest = [0 if n == place else i for n, i in enumerate(load.indices)]
        at = self.flat(table, rest, env)
        pitch = math.prod(int(e) for e in table.shape[place + 1 :])
        along = [a for a in index.terms if extents[a] > 1]
        if set(along) & {a for a in at.terms if extents[a] > 1}:
            raise NotAffineError("an index and its table share an axis")
        along.sort(key=lambda a: -index.terms[a])
        count = 1
        for axis in reversed(along):
            if index.terms[axis] != count:
                raise NotAffineError("indices are not contiguous")
            count *= extents[axis]
        run, used = 1, []
        for axis in sorted((a for a in at.terms if extents[a] > 1), key=lambda a: at.terms[a]):
            if at.terms[axis] != run or run * extents[axis] > pitch:
                break
            run *= extents[axis]
            used.append(axis)
        outer = [a for a in at.terms if extents[a] > 1 and a not in used]
        strides, size = [0] * rank, run * count
        for axis in used:
            strides[axis] = at.terms[axis]
        for axis in along:
            strides[axis] = index.terms[axis] * run
        loops = []
        for axis in outer:
            strides[axis] = size
            loops.append((extents[axis], at.terms[axis], size))
            size *= extents[axis]
        number = len(self._buffers)
        source = self._buffers[self._number[table]]
        gather = Gather(
            tuple(loops), self._number[table], at.base, rows, pitch, run, count,
            self._number[inner[0].source], index.base, number, run,
        )  # fmt: skip
        key = (gather.outer, gather.table, gather.base, run, count, gather.indices, gather.first)
        if key not in self._gathered:
            self._gathered[key] = number
            self._buffers.append(Buffer((size,), source.dtype, source.wide))
            self._stages.append(gather)
        elif not any(isinstance(s, Gather) and s.out == self._gathered[key] for s in self._stages):
            self._stages.append(dataclasses.replace(gather, out=self._gathered[key]))
        return ("load", Load(self._gathered[key], 0, tuple(strides)))


def results(function: Any) -> int:
    """How many parameters a PrimFunc writes; 0 when that or a shape cannot be told, or the last is none."""
    try:
        written = {raw.buffer for raw in blocks_of(function)}
        for buffer in function.params:
            _buffer(buffer)
    except NotAffineError:
        return 1 if all(hasattr(p, "shape") and _static(p) for p in function.params) else 0
    count = sum(p in written for p in function.params)
    return count if function.params[-1] in written else 0


def _static(buffer: Any) -> bool:
    return all(type(e).__name__ == "IntImm" for e in buffer.shape)


def _buffer(buffer: Any, wide: bool | None = None) -> Buffer:
    shape = tuple(integer(e) for e in buffer.shape)
    if wide is None:
        wide = math.prod(shape) == 1 and str(buffer.dtype) == "float32"
    return Buffer(shape, str(buffer.dtype), wide)


def _worth(expr: Expr, box: Box) -> bool:
    """Whether a sum of products is one of two matrices, not of a matrix and itself or a vector."""
    strides = [x[1].strides if x[0] == "load" else None for x in expr[2:]]
    spatial = [n for n, r in enumerate(box.reduced) if not r and box.extents[n] > 1]
    if None in strides:
        return True
    a, b = strides
    return any(a[n] and not b[n] for n in spatial) or any(b[n] and not a[n] for n in spatial)


def _ordered(load: Load, order: list[int]) -> Load:
    return Load(load.buffer, load.base, tuple(load.strides[n] for n in order))


def _expr_ordered(expr: Expr, order: list[int]) -> Expr:
    if expr[0] == "load":
        return ("load", _ordered(expr[1], order))
    return tuple(_expr_ordered(x, order) if isinstance(x, tuple) else x for x in expr)


def _renumbered(stage: Stage, result: int) -> Stage:
    """The stage with the result's number in place of -1."""
    if isinstance(stage, Gather) or stage.out.buffer != -1:
        return stage
    return dataclasses.replace(stage, out=dataclasses.replace(stage.out, buffer=result))
