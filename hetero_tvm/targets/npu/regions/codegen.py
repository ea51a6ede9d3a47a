"""Code generation from NPU TensorIR: a kernel is translated once into a Python function that, run, yields
the instructions of all its tiles.

Every loop nest marked as one instruction becomes a *site*: its strides are constants found here;
what varies from tile to tile (bases, extents of tails, fields with expressions) is computed by the
generated function.  Buffers in scratchpads get offsets from the memory planner: without reuse
while they fit, else by live ranges.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import Buffer, Expr, PrimFunc, Stmt, Var
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa import instructions as isa
from hetero_tvm.targets.npu.regions.kernel_memory import WIDTH, half_of, plan_scratchpads
from hetero_tvm.targets.npu.regions.python_expr import Names, python
from hetero_tvm.targets.npu.regions.sites import Instr, Operand, site_of
from hetero_tvm.targets.npu.regions.sync import Packed

DTYPE = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "i8", "int32": "i32"}
"""Name in the instruction set of every TIR type."""
_DMA_IN = isa.QUEUES.index("dma_in")


@dataclass
class Program:
    """The instructions of one kernel, in program order, without synchronisation.

    Operands in DRAM, and those that stay in L1 between kernels, are parameters by index, at byte offsets
    within them.  The kernel's own part of L1 may lie anywhere.
    """

    instrs: list[Instr]
    needs: dict[str, int]
    """Bytes used of every scratchpad."""
    parameters: int
    bytes: tuple[int, ...] = ()
    """Sizes of the parameters."""
    front: int | None = None
    """Number of loads that :func:`hoist_loads` brought to the front; None before it ran."""
    turns: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Memories (L0A, L0B, L0C) in whose either half the kernel may begin: bytes from one half to the other,
    and number of times that it changes halves."""

    @functools.cached_property
    def packed(self) -> Packed:
        """The instructions as arrays, once none is moved any more."""
        return Packed(self.instrs)


def generate(
    function: PrimFunc, spec: NPUSpec, high: bool = False, buffers: int | None = None, reserved: int = 0
) -> Program:
    """Instructions of a scheduled kernel.

    Parameters
    ----------
    high, reserved : see :func:`plan_scratchpads`.
    buffers : most versions of a buffer; None: as many as the schedule asks for.

    Raises
    ------
    BuildError : a scratchpad is too small for the kernel, or an access is not affine.
    """
    translator = _Translator(function, spec, high, buffers, reserved)
    source = translator.run()
    scope: dict[str, Any] = dict(translator.scope)
    exec(compile(source, "<npu kernel>", "exec"), scope)
    out: list[Instr] = []
    used = scope["kernel"](out.append)
    sizes = tuple(
        math.prod(int(e) for e in buffer.shape) * WIDTH[str(buffer.dtype)] for buffer in function.params
    )
    turns = {name: (half, used[name]) for name, half in translator.turning.items()}
    return Program(out, translator.needs, len(function.params), sizes, turns=turns)


def hoist_loads(program: Program, constant: Sequence[bool], depth: int = 1024) -> None:
    """Bring loads of constants among the first ``depth`` instructions to the front.

    They wait for nothing but room, so the DMA engine can work on them while the kernel before still
    runs.  A load stays where it is when an instruction that it would pass touches its bytes.
    """
    instrs = program.instrs
    front: list[Instr] = []
    rest: list[Instr] = []
    passed: dict[Any, list[tuple[int, int]]] = {}
    for n, instr in enumerate(instrs):
        if n >= depth:
            rest += instrs[n:]
            break
        if instr.reference is not None and instr.queue == _DMA_IN and constant[instr.reference[0]]:
            own = [access[:3] for access in instr.accesses if isinstance(access[0], str)]
            if not any(
                a < high and low < z for memory_, low, high in own for a, z in passed.get(memory_, ())
            ):
                front.append(instr)
                continue
        for memory_, low, high, *_ in instr.accesses:
            passed.setdefault(memory_, []).append((low, high))
        rest.append(instr)
    program.instrs, program.front = front + rest, len(front)


class _Translator:
    """Translator of one kernel into the text of a Python function and its instruction sites."""

    def __init__(self, function: PrimFunc, spec: NPUSpec, high: bool, buffers: int | None, reserved: int):
        self.function = function
        self.spec = spec
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"min": min, "max": max, "clip": _clip}
        self.names: Names = {}
        self.parameter = {buffer: i for i, buffer in enumerate(function.params)}
        self.most = buffers or 1 << 30
        self.offsets, self.needs = plan_scratchpads(function.body, spec, high, self.most, reserved)
        self._turn: dict[Any, str] = {}
        self.turning: dict[str, int] = {}
        self._used: list[str] = []
        self._loop: tuple[str, int] = ("", 1)
        self.counters: list[str] = []
        self._sites = itertools.count()

    def run(self) -> str:
        """Text of the function; it refers to the sites in ``scope``."""
        self._walk(self.function.body, 1)
        self.lines[:0] = ["def kernel(put):", *(f"    {name} = -1" for name in self.counters)]
        self._line(1, f"return {{{', '.join(self._used)}}}")
        return "\n".join(self.lines) + "\n"

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def _walk(self, stmt: Stmt, depth: int) -> None:
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for part in stmt.seq:
                self._walk(part, depth)
        elif kind == "AllocBuffer":
            counter, versions = self._loop
            size, base = self.offsets[stmt.buffer]
            turn = f"{base}+{counter}%{versions}*{size}" if versions > 1 else str(base)
            memory = str(stmt.buffer.scope()).rpartition(".")[2]
            only = sum(str(b.scope()) == str(stmt.buffer.scope()) for b in self.offsets) == 1
            if only and versions == 2 and size == half_of(memory, self.spec):
                self.turning[memory] = size
                self._used.append(f"{memory!r}: {counter} + 1")
            self._turn[stmt.buffer] = turn
        elif kind == "For" and "npu.op" in stmt.annotations:
            self._site(stmt, depth)
        elif kind == "For":
            variable = self.names.setdefault(stmt.loop_var, f"v{len(self.names)}")
            self._line(depth, f"for {variable} in range({python(stmt.extent, self.names)}):")
            outer, self._loop = self._loop, ("", min(self.most, int(stmt.annotations.get("npu.buffers", 1))))
            if self._loop[1] > 1:
                # Versions take turns over all iterations, not per entry: a short loop inside another
                # one overlaps with its own next run.
                counter = f"c{len(self.counters)}"
                self.counters.append(counter)
                self._loop = (counter, self._loop[1])
                self._line(depth + 1, f"{counter} += 1")
            count = len(self.lines)
            self._walk(stmt.body, depth + 1)
            if len(self.lines) == count:
                self._line(depth + 1, "pass")
            self._loop = outer
        elif kind == "IfThenElse":
            self._line(depth, f"if {python(stmt.condition, self.names)}:")
            self._walk(stmt.then_case, depth + 1)
            if stmt.else_case is not None:
                self._line(depth, "else:")
                self._walk(stmt.else_case, depth + 1)
        else:
            raise BuildError(f"the NPU has no code for {kind} in a kernel: {str(stmt)[:200]}")

    def _site(self, stmt: Stmt, depth: int) -> None:
        """Add the site of a loop nest that is one instruction, and the line that emits it."""
        marks = stmt.annotations
        op, count = str(marks["npu.op"]), int(marks["npu.loops"])
        loops, extents = [], []
        for _ in range(count):
            loops.append(stmt.loop_var)
            extents.append(python(stmt.extent, self.names))
            stmt = stmt.body
        store = stmt
        condition, value = None, store.value
        if op in ("load", "store", "move") and type(value).__name__ == "Call":
            condition, value = value.args[0], value.args[1]
        loads = _loads(value)
        if op in ("mmad", "vreduce"):
            loads = loads[1:]  # the first is the accumulator itself
        if op in ("vunary", "vreduce", "im2col"):
            loads = loads[:1]  # a square reads its source twice
        operands = [self._operand(store.buffer, store.indices, loops)]
        for load in loads:
            if op == "im2col":
                operands.append(self._whole(load.source, count))
            elif op == "gather":
                (index,) = _loads_within(load.indices[0])
                operands.append(self._whole(load.source, count))
                operands.append(self._operand(index.source, index.indices, loops))
            else:
                operands.append(self._operand(load.source, load.indices, loops))
        fixed, moving = {}, {}
        for name, entry in dict(marks["npu.fields"]).items():
            text = _literal(entry)
            if text is None:
                moving[str(name)] = python(entry, self.names)
            else:
                fixed[str(name)] = text
        name = f"s{next(self._sites)}"
        self.scope[name] = site_of(op, [operand for operand, _ in operands], fixed, self.spec)
        bases = ", ".join(base for _, base in operands)
        more = "".join(f", {key}={text}" for key, text in moving.items())
        if condition is not None:
            more += f", pads=({self._pads(condition, loops, extents)},)"
        self._line(depth, f"put({name}(({', '.join(extents)},), ({bases},){more}))")

    def _operand(self, buffer: Buffer, indices: Sequence[Expr], loops: Sequence[Var]) -> tuple[Operand, str]:
        """The static part of an access, and the text that computes its first byte."""
        width = WIDTH[str(buffer.dtype)]
        pitch = [1]
        for extent in list(buffer.shape)[:0:-1]:
            pitch.insert(0, pitch[0] * int(extent))
        local: Names = dict(self.names)
        for n, loop in enumerate(loops):
            local[loop] = f"i{n}"
        text = "+".join(
            f"({python(index, local)})*{p * width}" for index, p in zip(indices, pitch, strict=True)
        )
        strides = _strides(text, [v for k, v in local.items() if k not in loops], len(loops), buffer.name)
        zero = text
        for n in reversed(range(len(loops))):
            zero = zero.replace(f"i{n}", "0")
        return self._named(buffer, strides), self._base(buffer, zero)

    def _whole(self, buffer: Buffer, count: int) -> tuple[Operand, str]:
        """Operand of an instruction that is given all of a buffer."""
        return self._named(buffer, (0,) * count), self._base(buffer, "0")

    def _named(self, buffer: Buffer, strides: tuple[int, ...]) -> Operand:
        dtype = str(buffer.dtype)
        scope = str(buffer.scope()).rpartition(".")[2]
        if buffer in self.parameter:
            memory = "dram" if scope == "global" else scope
            return Operand(memory, self.parameter[buffer], DTYPE[dtype], WIDTH[dtype], strides)
        return Operand(scope, None, DTYPE[dtype], WIDTH[dtype], strides)

    def _base(self, buffer: Buffer, text: str) -> str:
        return text if buffer in self.parameter else f"{self._turn[buffer]}+{text}"

    def _pads(self, condition: Expr, loops: Sequence[Var], extents: Sequence[str]) -> str:
        """Numbers of leading and trailing steps of every loop that the condition excludes."""
        local: Names = dict(self.names)
        for n, loop in enumerate(loops):
            local[loop] = f"i{n}"
        mine: list[list[str]] = [[] for _ in loops]
        for part in _conjuncts(condition):
            text = python(part, local)
            used = [n for n in range(len(loops)) if f"i{n}" in text]
            if len(used) > 1:
                raise BuildError(f"a padding condition mixes two loops of one instruction: {part}")
            mine[used[0] if used else 0].append(text)
        return ", ".join(
            f"clip({extents[n]}, lambda i{n}: {' and '.join(tests)})" if tests else "(0, 0)"
            for n, tests in enumerate(mine)
        )


def _clip(extent: int, inside: Callable[[int], bool]) -> tuple[int, int]:
    """Numbers of leading and trailing steps that are not inside."""
    valid = [i for i in range(extent) if inside(i)]
    return (valid[0], extent - 1 - valid[-1]) if valid else (extent, 0)


def _conjuncts(condition: Expr) -> list[Expr]:
    if type(condition).__name__ == "And":
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _loads(expr: Expr) -> list[Any]:
    """Buffer reads of an expression from left to right, without those of conditions and indices."""
    kind = type(expr).__name__
    if kind in ("TensorLoad", "BufferLoad"):
        return [expr]
    if kind == "Cast":
        return _loads(expr.value)
    if kind == "Select":
        return _loads(expr.condition) + _loads(expr.true_value) + _loads(expr.false_value)
    if kind == "Call":
        return [load for arg in expr.args for load in _loads(arg)]
    if hasattr(expr, "a"):
        return _loads(expr.a) + _loads(expr.b)
    return []


def _loads_within(index: Expr) -> list[Any]:
    """Buffer reads of an index."""
    if type(index).__name__ in ("TensorLoad", "BufferLoad"):
        return [index]
    parts = [getattr(index, name) for name in ("a", "b") if hasattr(index, name)]
    return [load for part in parts for load in _loads_within(part)]


def _literal(entry: Any) -> Any:
    """A Python constant; None when the entry is an expression of loops."""
    if isinstance(entry, bool | int | float | str):
        return entry
    kind = type(entry).__name__
    if kind in ("IntImm", "FloatImm"):
        return entry.value
    if kind in ("Array", "List", "list", "tuple"):
        return [_literal(item) for item in entry]
    return str(entry) if kind in ("String", "StringImm") else None


def _strides(text: str, outer: list[str], loops: int, name: str) -> tuple[int, ...]:
    """Bytes per step of every loop.  Raises :class:`BuildError` for an access that is not affine in them."""
    arguments = ", ".join([*outer, *(f"i{n}" for n in range(loops))])
    function = eval(f"lambda {arguments}: {text}", {"min": min, "max": max})
    results = []
    for trial in (0, 1):
        around = [trial] * len(outer)
        base = function(*around, *[0] * loops)
        unit = [[int(n == m) for m in range(loops)] for n in range(loops)]
        strides = tuple(function(*around, *step) - base for step in unit)
        far = function(*around, *[3] * loops) - base
        if far != 3 * sum(strides):
            raise BuildError(f"the access to {name} is not affine in the loops of its instruction: {text}")
        results.append(strides)
    if results[0] != results[1]:
        raise BuildError(f"the strides of the access to {name} differ from tile to tile: {text}")
    return results[0]
