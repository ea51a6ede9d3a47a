"""From the TensorIR of an operator to a program of stages in which every access is affine.

Element-wise steps are computed where they are used.  Reductions, and steps that a reduction cannot take
in, get a scratch tensor.  Conditions on positions (concatenation, padding, rotated halves) cut a stage
into boxes in which they are constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from hetero_tvm.schedules.npu.program.index import (  # noqa: E402
    Affine,
    CutError,
    FactorError,
    NotAffineError,
    divided,
    holds,
)
from hetero_tvm.schedules.npu.program.stages import (  # noqa: E402
    Buffer,
    Expr,
    Gather,
    Load,
    Map,
    Product,
    Program,
    Stage,
)
from hetero_tvm.schedules.npu.program.values import Values, binary, constant, is_integer  # noqa: E402

_MOST_BOXES = 64
_DTYPES = ("float32", "int32", "int64", "int8", "uint8", "bool")


class _MaterializeError(Exception):
    """A step must have a tensor of its own."""

    def __init__(self, buffers: list[Any]):
        super().__init__("materialize")
        self.buffers = buffers


@dataclass
class _Raw:
    """One block as it stands: its iteration variables (spatial, reduced) and what it stores."""

    buffer: Any
    axes: list[tuple[Any, int, bool]]
    """(variable, extent, whether it is reduced)."""
    indices: list[Any]
    value: Any
    start: Any


@dataclass
class _Box:
    """Part of a block's domain: every variable as an affine form of the box's axes."""

    env: dict[Any, Affine]
    extents: list[int]
    reduced: list[bool]

    def cut(self, error: CutError) -> list[_Box]:
        points = [0, *error.points, self.extents[error.axis]]
        boxes = []
        for low, high in zip(points, points[1:], strict=False):
            env = {v: x + Affine(x.terms.get(error.axis, 0) * low) for v, x in self.env.items()}
            extents = list(self.extents)
            extents[error.axis] = high - low
            boxes.append(_Box(env, extents, self.reduced))
        return boxes

    def factored(self, error: FactorError) -> _Box:
        axis, inner = error.axis, error.inner

        def moved(x: Affine) -> Affine:
            terms = {a + (a > axis): c for a, c in x.terms.items() if a != axis}
            if (c := x.terms.get(axis, 0)) != 0:
                terms |= {axis: c * inner, axis + 1: c}
            return Affine(x.base, terms)

        extents = [*self.extents[:axis], self.extents[axis] // inner, inner, *self.extents[axis + 1 :]]
        reduced = [*self.reduced[: axis + 1], self.reduced[axis], *self.reduced[axis + 1 :]]
        return _Box({v: moved(x) for v, x in self.env.items()}, extents, reduced)


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


def results(function: Any) -> int:
    """How many parameters a PrimFunc writes; 0 when that or a shape cannot be told, or the last is none."""
    try:
        written = {raw.buffer for raw in _raw_stages(function)}
        for buffer in function.params:
            _buffer(buffer)
    except NotAffineError:
        return 1 if all(hasattr(p, "shape") and _static(p) for p in function.params) else 0
    count = sum(p in written for p in function.params)
    return count if function.params[-1] in written else 0


def _static(buffer: Any) -> bool:
    return all(type(e).__name__ == "IntImm" for e in buffer.shape)


class _Recovery(Values):
    def __init__(self, function: Any, kept: set[Any]):
        self._kept = kept
        self._params = list(function.params)
        self._raws = _raw_stages(function)
        self._by_buffer = {raw.buffer: raw for raw in self._raws}
        outputs = [p for p in self._params if p in self._by_buffer]
        if len(outputs) != 1 or outputs[0] is not self._params[-1] and outputs[0] != self._params[-1]:
            raise NotAffineError(f"it has {len(outputs)} results")
        for buffer in [*self._params, *self._by_buffer]:
            if str(buffer.dtype) not in _DTYPES:
                raise NotAffineError(f"the vector unit has no {buffer.dtype}")
        # What is rounded to 8 bits is read as it came: float16 would move many values to a neighbour.
        exact = str(self._params[-1].dtype) in ("int8", "uint8")
        self._buffers = [_buffer(p, exact and str(p.dtype) == "float32" or None) for p in self._params[:-1]]
        self._inputs = len(self._buffers)
        self._number = {p: n for n, p in enumerate(self._params[:-1])}
        self._stages: list[Stage] = []
        self._pending: list[Gather] = []
        self._gathered: dict[Any, tuple[int, Gather]] = {}
        self._box: _Box = _Box({}, [], [])
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

    def _needs_tensor(self, raw: _Raw) -> bool:
        return raw.buffer in self._kept or any(reduced for *_, reduced in raw.axes)

    # --- one block -----------------------------------------------------------------------------

    def _stage(self, raw: _Raw, number: int) -> None:
        variables = [v for v, _, _ in raw.axes]
        env = {v: Affine.axis(n) for n, v in enumerate(variables)}
        pending = [_Box(env, [e for _, e, _ in raw.axes], [r for *_, r in raw.axes])]
        done = 0
        while pending:
            self._box = box = pending.pop()
            self._memo: dict[Any, Expr] = {}
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
            done += 1
            if done + len(pending) > _MOST_BOXES:
                raise NotAffineError(f"its positions fall into more than {_MOST_BOXES} boxes")

    def _give_up(self, reason: str) -> None:
        """What was computed in place gets a tensor of its own; when there is nothing, that was all."""
        fresh = [b for b in dict.fromkeys(self._seen) if b not in self._kept]
        if fresh:
            raise _MaterializeError(fresh)
        raise NotAffineError(reason)

    def _piece(self, raw: _Raw, number: int) -> Stage:
        box = self._box
        rank = len(box.extents)
        at = self._flat(raw.buffer, raw.indices, box.env)
        out = Load(number, at.base, at.strides(rank))
        if not any(box.reduced):
            expr = self.value(raw.value, box.env)
            if str(raw.buffer.dtype) == "uint8":  # kept less 128
                expr = binary("sub", expr, constant(128), True)
            return Map(tuple(box.extents), out, expr)
        if str(raw.buffer.dtype) == "uint8":
            raise NotAffineError("a reduction of uint8")
        combine, body = _reduction(raw)
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
        if any(_has_load(index) for index in load.indices):
            return self._gather(load, env)
        if source not in self._number:
            raw = self._by_buffer.get(source)
            if raw is None:
                raise NotAffineError(f"{source.name} is read before it is written")
            indices = [self.index(i, env) for i in load.indices]
            self._seen.append(source)
            key = (source, tuple((i.base, tuple(sorted(i.terms.items()))) for i in indices))
            if key not in self._memo:
                at = {
                    _variable(i): x
                    for i, x in zip(raw.indices, indices, strict=True)
                    if _variable(i) is not None
                }
                self._memo[key] = self.value(raw.value, at)
            return self._memo[key]
        at = self._flat(source, load.indices, env)
        node: Expr = ("load", Load(self._number[source], at.base, at.strides(len(self._box.extents))))
        return binary("add", node, constant(128), True) if str(source.dtype) == "uint8" else node

    def decide(self, condition: Any, env: Any) -> bool | None:
        if _has_load(condition):
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
            return holds(test, a - b, self._box.extents) is (kind != "NE")
        if kind == "Cast":
            return self.decide(condition.value, env)
        raise NotAffineError(f"a condition of positions contains {kind}")

    def position(self, expr: Any, env: Any) -> int:
        x = self.index(expr, env)
        if x.terms:
            low, high = x.range(self._box.extents)
            if low != high:
                raise NotAffineError("it computes with positions")
        return x.base

    def index(self, expr: Any, env: Any) -> Affine:
        """An integer expression of positions as an affine form of the box's axes."""
        kind = type(expr).__name__
        extents = self._box.extents
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

    def _flat(self, buffer: Any, indices: Any, env: Any) -> Affine:
        at, pitch = Affine(0), 1
        for index, extent in zip(reversed(list(indices)), reversed(list(buffer.shape)), strict=True):
            if int(extent) > 1:
                at = at + self.index(index, env).scaled(pitch)
            pitch *= int(extent)
        return at

    # --- gathers -------------------------------------------------------------------------------

    def _gather(self, load: Any, env: Any) -> Expr:
        table = load.source
        if table not in self._number:
            raise _MaterializeError([table])
        places = [n for n, index in enumerate(load.indices) if _has_load(index)]
        if len(places) != 1:
            raise NotAffineError("a gather by several indices")
        place = places[0]
        inner = _loads_in(load.indices[place])
        rows = int(table.shape[place])
        if len({_text(x) for x in inner}) != 1 or not _wraps(load.indices[place], rows):
            raise NotAffineError("an index is computed from data")
        if inner[0].source not in self._number:
            raise _MaterializeError([inner[0].source])
        if any(_has_load(i) for i in inner[0].indices):
            raise NotAffineError("an index is itself gathered")
        extents, rank = self._box.extents, len(self._box.extents)
        index = self._flat(inner[0].source, inner[0].indices, env)
        rest = [0 if n == place else i for n, i in enumerate(load.indices)]
        at = self._flat(table, rest, env)
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
            self._stages.append(_replaced(gather, self._gathered[key]))
        return ("load", Load(self._gathered[key], 0, tuple(strides)))


# --- reading the TensorIR ------------------------------------------------------------------------


def _raw_stages(function: Any) -> list[_Raw]:
    raws: list[_Raw] = []

    def walk(stmt: Any, loops: dict[Any, int]) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for part in stmt.seq:
                walk(part, loops)
        elif kind == "For":
            walk(stmt.body, {**loops, stmt.loop_var: _integer(stmt.extent)})
        elif kind == "SBlockRealize" and not stmt.block.iter_vars:
            walk(stmt.block.body, loops)
        elif kind == "SBlockRealize":
            raws.append(_raw(stmt, loops))
        else:
            raise NotAffineError("its TensorIR is no chain of loops over single results")

    walk(function.body, {})
    if len({raw.buffer for raw in raws}) != len(raws):
        raise NotAffineError("a tensor is written in several places")
    return raws


def _raw(stmt: Any, loops: dict[Any, int]) -> _Raw:
    block = stmt.block
    store = block.body
    if type(store).__name__ != "BufferStore":
        raise NotAffineError("its TensorIR is no chain of loops over single results")
    axes = []
    for var, value in zip(block.iter_vars, stmt.iter_values, strict=True):
        extent = _integer(var.dom.extent)
        if type(value).__name__ != "Var" and extent != 1:
            raise NotAffineError("an axis is no loop")
        if extent != 1 and loops.get(value) != extent:
            raise NotAffineError("an axis is not the whole of its loop")
        axes.append((var.var, extent, int(var.iter_type) == 2))
    start = None
    if block.init is not None:
        start = block.init.value
    return _Raw(store.buffer, axes, list(store.indices), store.value, start)


def _integer(extent: Any) -> int:
    if type(extent).__name__ != "IntImm" and not isinstance(extent, int):
        raise NotAffineError("an extent is not known when the model is compiled")
    return int(extent)


def _reduction(raw: _Raw) -> tuple[str, Any]:
    """Which reduction a block is, and what it reduces."""
    kind = type(raw.value).__name__
    names = {"Add": "sum", "Max": "max", "Min": "min"}
    if kind not in names or raw.start is None:
        raise NotAffineError("a reduction that is neither sum, maximum nor minimum")
    for old, new in ((raw.value.a, raw.value.b), (raw.value.b, raw.value.a)):
        if type(old).__name__ == "TensorLoad" and old.source == raw.buffer:
            if names[kind] == "sum" and float(getattr(raw.start, "value", 1)) != 0.0:
                raise NotAffineError("a sum that does not start at zero")
            return names[kind], new
    raise NotAffineError("a reduction that does not read what it has")


def _has_load(expr: Any) -> bool:
    return bool(_loads_in(expr))


def _loads_in(expr: Any) -> list[Any]:
    if isinstance(expr, int):
        return []
    kind = type(expr).__name__
    if kind == "TensorLoad":
        return [expr]
    if kind == "Call":
        return [x for arg in expr.args for x in _loads_in(arg)]
    if kind == "Select":
        return [x for part in (expr.condition, expr.true_value, expr.false_value) for x in _loads_in(part)]
    if kind == "Cast":
        return _loads_in(expr.value)
    if kind == "Not":
        return _loads_in(expr.a)
    return [*_loads_in(expr.a), *_loads_in(expr.b)] if hasattr(expr, "a") and hasattr(expr, "b") else []


def _text(load: Any) -> str:
    return str(load)


def _wraps(index: Any, rows: int) -> bool:
    """Whether an index is the data itself, or that modulo the rows, for every index that is valid."""
    for value in {-rows, 1 - rows, -1, 0, 1 % rows, rows // 2, rows - 1}:
        try:
            got = _evaluated(index, value)
        except NotAffineError:
            return False
        if got != value % rows and (value < 0 or got != value) and not (value < 0 and got == value):
            return False
    return True


def _evaluated(expr: Any, value: int) -> int:
    """An index with every read replaced by ``value``."""
    kind = type(expr).__name__
    if kind == "IntImm":
        return int(expr.value)
    if kind == "TensorLoad":
        return value
    if kind == "Cast":
        return _evaluated(expr.value, value)
    if kind == "Select":
        test = _evaluated(expr.condition, value)
        return _evaluated(expr.true_value if test else expr.false_value, value)
    parts = [expr.a, expr.b] if hasattr(expr, "a") and hasattr(expr, "b") else list(getattr(expr, "args", ()))
    values = [_evaluated(part, value) for part in parts]
    name = str(expr.op.name).rpartition(".")[2] if kind == "Call" else kind
    functions = {
        "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
        "FloorMod": lambda a, b: a % b, "FloorDiv": lambda a, b: a // b, "Max": max, "Min": min,
        "Mod": lambda a, b: int(math.fmod(a, b)), "truncmod": lambda a, b: int(math.fmod(a, b)),
        "LT": lambda a, b: a < b, "GE": lambda a, b: a >= b, "LE": lambda a, b: a <= b,
        "GT": lambda a, b: a > b, "if_then_else": lambda t, a, b: a if t else b,
    }  # fmt: skip
    if name not in functions:
        raise NotAffineError(f"an index contains {name}")
    return int(functions[name](*values))


def _variable(index: Any) -> Any:
    return index if type(index).__name__ == "Var" else None


def _buffer(buffer: Any, wide: bool | None = None) -> Buffer:
    shape = tuple(_integer(e) for e in buffer.shape)
    if wide is None:
        wide = math.prod(shape) == 1 and str(buffer.dtype) == "float32"
    return Buffer(shape, str(buffer.dtype), wide)


def _worth(expr: Expr, box: _Box) -> bool:
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


def _replaced(gather: Gather, out: int) -> Gather:
    import dataclasses

    return dataclasses.replace(gather, out=out)


def _renumbered(stage: Stage, result: int) -> Stage:
    """The stage with the result's number in place of -1."""
    import dataclasses

    if isinstance(stage, Gather) or stage.out.buffer != -1:
        return stage
    return dataclasses.replace(stage, out=dataclasses.replace(stage.out, buffer=result))


__all__ = ["constant", "recover"]
