"""Recovery of a program of stages, in which every access is affine, from the TensorIR of an operator.

Element-wise steps are computed where they are used.  Reductions, and steps that a reduction cannot take
in, get a scratch tensor.  Conditions on positions (concatenation, padding, rotated halves) cut a stage
into boxes in which they are constant.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NoReturn

from hetero_tvm.host.tvm import Buffer as TirBuffer
from hetero_tvm.host.tvm import PrimFunc, TensorLoad
from hetero_tvm.schedules.npu.tensor_program.blocks import (
    Block,
    blocks_of,
    has_load,
    integer,
    loads_in,
    reduction_of,
    variable_of,
    wraps,
)
from hetero_tvm.schedules.npu.tensor_program.index import Affine, CutError, FactorError, NotAffineError
from hetero_tvm.schedules.npu.tensor_program.positions import Box, PositionTranslator
from hetero_tvm.schedules.npu.tensor_program.stages import (
    Binary,
    Buffer,
    Gather,
    Load,
    Map,
    OuterLoop,
    Product,
    Program,
    Stage,
    Value,
)
from hetero_tvm.schedules.npu.tensor_program.values import Env, binary, constant, is_integer

_MOST_BOXES = 64
"""Most boxes into which one block is cut."""
_MOST_PLACES = 4
"""Most places at which a step is computed again rather than kept."""
_DTYPES = ("float32", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool")
_RESULT = -1
"""Number of the result's buffer until all others are counted."""


class _MaterializeError(Exception):
    """A step must have a tensor of its own."""

    def __init__(self, buffers: list[TirBuffer]):
        super().__init__("materialize")
        self.buffers = buffers


def recover(function: PrimFunc) -> Program:
    """The program of an unscheduled PrimFunc with one result.

    Raises
    ------
    NotAffineError : something in it is beyond the machine; the text says what.
    """
    kept: set[TirBuffer] = set()
    while True:
        try:
            return _Recovery(function, kept).run()
        except _MaterializeError as error:
            if not set(error.buffers) - kept:
                raise NotAffineError("an index depends on data in a way that no gather has") from None
            kept |= set(error.buffers)


class _Recovery(PositionTranslator):
    """One attempt, with a tensor for each of the steps in ``kept``."""

    def __init__(self, function: PrimFunc, kept: set[TirBuffer]):
        self._kept = kept
        self._params = list(function.params)
        self._blocks = blocks_of(function)
        self._by_buffer = {block.buffer: block for block in self._blocks}
        outputs = [p for p in self._params if p in self._by_buffer]
        if len(outputs) != 1 or outputs[0] != self._params[-1]:
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
        self._gathered: dict[tuple, int] = {}
        """Buffers of gathered rows, by all that they depend on."""
        self.box: Box = Box({}, [], [])
        self._seen: list[TirBuffer] = []
        """Steps that are computed in place in the box at hand."""

    def run(self) -> Program:
        """The program."""
        output = self._params[-1]
        for block in self._blocks:
            buffer = block.buffer
            if buffer in self._number or (buffer != output and not self._needs_tensor(block)):
                continue
            number = _RESULT
            if buffer != output:
                number = len(self._buffers)
                wide = block.reduces and not is_integer(str(buffer.dtype))
                self._buffers.append(_buffer(buffer, wide))
            self._append_stages(block, number)
            self._number[buffer] = number
        result = len(self._buffers)
        buffers = (*self._buffers, _buffer(output, False))
        return Program(buffers, self._inputs, tuple(_renumbered(s, result) for s in self._stages))

    def _needs_tensor(self, block: Block) -> bool:
        return block.buffer in self._kept or block.reduces

    # --- one block -----------------------------------------------------------------------------

    def _append_stages(self, block: Block, number: int) -> None:
        """Append the stages of a block, one for each box in which its accesses are affine."""
        env = {axis.var: Affine.axis(n) for n, axis in enumerate(block.axes)}
        pending = [Box(env, [axis.extent for axis in block.axes], [axis.reduced for axis in block.axes])]
        done = 0
        seen: list[TirBuffer] = []
        while pending:
            self.box = box = pending.pop()
            self._memo: dict[tuple, Value] = {}
            self._places: dict[TirBuffer, int] = {}
            self._seen = []
            gathers = len(self._stages)
            try:
                stage = self._stage(block, number)
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

    def _give_up(self, reason: str) -> NoReturn:
        """Raise: what was computed in place gets a tensor of its own; when there is nothing, that was all."""
        self._materialize_seen()
        raise NotAffineError(reason)

    def _materialize_seen(self) -> None:
        """Ask for tensors of what was computed in place, if there is anything."""
        fresh = [b for b in dict.fromkeys(self._seen) if b not in self._kept]
        if fresh:
            raise _MaterializeError(fresh)

    def _stage(self, block: Block, number: int) -> Stage:
        """The stage of a block in the box at hand."""
        box = self.box
        rank = len(box.extents)
        at = self.flat(block.buffer, block.indices, box.env)
        out = Load(number, at.base, at.strides(rank))
        if not any(box.reduced):
            value = self.value(block.value, box.env)
            if str(block.buffer.dtype) == "uint8":  # kept less 128
                value = binary("sub", value, constant(128), True)
            return Map(tuple(box.extents), out, value)
        if str(block.buffer.dtype) == "uint8":
            raise NotAffineError("a reduction of uint8")
        combine, body = reduction_of(block)
        value = self.value(body, box.env)
        order = [n for n in range(rank) if not box.reduced[n]] + [n for n in range(rank) if box.reduced[n]]
        extents = tuple(box.extents[n] for n in order)
        reduced = sum(box.reduced)

        def ordered(load: Load) -> Load:
            return Load(load.buffer, load.base, tuple(load.strides[n] for n in order))

        if combine == "sum" and isinstance(value, Binary) and value.op == "mul" and _is_product(value, box):
            a, b = value.a, value.b
            reads = isinstance(a, Load) and isinstance(b, Load)
            if reads and not any(self._buffers[x.buffer].wide for x in (a, b)):
                return Product(extents, ordered(out), ordered(a), ordered(b), reduced)
            self._materialize_seen()
        return Map(extents, ordered(out), value.mapped(ordered), combine, reduced)

    # --- values --------------------------------------------------------------------------------

    def read(self, load: TensorLoad, env: Env) -> Value:
        source = load.source
        if any(has_load(index) for index in load.indices):
            return self._gather(load, env)
        if source not in self._number:
            block = self._by_buffer.get(source)
            if block is None:
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
                    for i, x in zip(block.indices, indices, strict=True)
                    if variable_of(i) is not None
                }
                self._memo[key] = self.value(block.value, at)
            return self._memo[key]
        at = self.flat(source, load.indices, env)
        node = Load(self._number[source], at.base, at.strides(len(self.box.extents)))
        return binary("add", node, constant(128), True) if str(source.dtype) == "uint8" else node

    # --- gathers -------------------------------------------------------------------------------

    def _gather(self, load: TensorLoad, env: Env) -> Value:
        """A read of gathered rows; their stage is appended unless there is one."""
        table = load.source
        if table not in self._number:
            raise _MaterializeError([table])
        places = [n for n, index in enumerate(load.indices) if has_load(index)]
        if len(places) != 1:
            raise NotAffineError("a gather by several indices")
        place = places[0]
        inner = loads_in(load.indices[place])
        rows = int(table.shape[place])
        if len({str(x) for x in inner}) != 1 or not wraps(load.indices[place], rows):
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
            loops.append(OuterLoop(extents[axis], at.terms[axis], size))
            size *= extents[axis]
        number = len(self._buffers)
        source = self._buffers[self._number[table]]
        gather = Gather(
            outer=tuple(loops),
            table=self._number[table],
            base=at.base,
            rows=rows,
            pitch=pitch,
            run=run,
            count=count,
            indices=self._number[inner[0].source],
            first=index.base,
            out=number,
            out_pitch=run,
        )
        key = (gather.outer, gather.table, gather.base, run, count, gather.indices, gather.first)
        if key not in self._gathered:
            self._gathered[key] = number
            self._buffers.append(Buffer((size,), source.dtype, source.wide))
            self._stages.append(gather)
        elif not any(isinstance(s, Gather) and s.out == self._gathered[key] for s in self._stages):
            self._stages.append(dataclasses.replace(gather, out=self._gathered[key]))
        return Load(self._gathered[key], 0, tuple(strides))


def results(function: PrimFunc) -> int:
    """Number of parameters that a PrimFunc writes; 0 when that or a shape cannot be told, or the last is
    none."""
    try:
        written = {block.buffer for block in blocks_of(function)}
        for buffer in function.params:
            _buffer(buffer)
    except NotAffineError:
        return 1 if all(hasattr(p, "shape") and _static(p) for p in function.params) else 0
    count = sum(p in written for p in function.params)
    return count if function.params[-1] in written else 0


def _static(buffer: TirBuffer) -> bool:
    return all(type(e).__name__ == "IntImm" for e in buffer.shape)


def _buffer(buffer: TirBuffer, wide: bool | None = None) -> Buffer:
    shape = tuple(integer(e) for e in buffer.shape)
    if wide is None:
        wide = math.prod(shape) == 1 and str(buffer.dtype) == "float32"
    return Buffer(shape, str(buffer.dtype), wide)


def _is_product(value: Binary, box: Box) -> bool:
    """Whether a sum of products is one of two matrices, not of a matrix and itself or a vector."""
    if not (isinstance(value.a, Load) and isinstance(value.b, Load)):
        return True
    a, b = value.a.strides, value.b.strides
    spatial = [n for n, r in enumerate(box.reduced) if not r and box.extents[n] > 1]
    return any(bool(a[n]) != bool(b[n]) for n in spatial)


def _renumbered(stage: Stage, result: int) -> Stage:
    """The stage with the result's number in its place."""
    if isinstance(stage, Gather) or stage.out.buffer != _RESULT:
        return stage
    return dataclasses.replace(stage, out=dataclasses.replace(stage.out, buffer=result))
