"""Offsets of a kernel's buffers in the scratchpads."""

from __future__ import annotations

import math

from hetero_tvm import memory
from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import Buffer, Stmt
from hetero_tvm.machines.npu.spec import SCRATCHPADS, NPUSpec

WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "int32": 4}
"""Bytes of an element by TIR type."""
_PLAN_SECONDS = 0.2


def plan_scratchpads(
    body: Stmt, spec: NPUSpec, high: bool = False, most: int = 1 << 30, reserved: int = 0
) -> tuple[dict[Buffer, tuple[int, int]], dict[str, int]]:
    """Version size and offset of every buffer, and bytes used of every scratchpad.

    Two versions of the only buffer of L0A, L0B or L0C take a half each: kernels go on in the half that the
    one before has left first.

    A buffer is live as long as the loop in whose body it is allocated runs: with several versions
    iterations overlap, and reuse within an iteration would only make queues wait.

    Parameters
    ----------
    high : use the upper end of the unified buffer, so that kernels which alternate between the ends can
        work beside one another.  (In L1 the region gives every kernel its part.)
    most : most versions of a buffer.
    reserved : bytes at the lower end of the unified buffer that are not the kernel's.

    Raises
    ------
    BuildError : a scratchpad cannot hold the buffers that are live at once.
    """
    found: dict[str, list[tuple[Buffer, int, int, int, int]]] = {name: [] for name in SCRATCHPADS}
    clock = [0]

    def walk(stmt: Stmt, versions: int) -> list[tuple[Buffer, str, int, int]]:
        kind = type(stmt).__name__
        if kind == "AllocBuffer":
            buffer = stmt.buffer
            scope = str(buffer.scope()).rpartition(".")[2]
            size = math.prod(int(e) for e in buffer.shape) * WIDTH[str(buffer.dtype)]
            size = -(-size // spec.alignment) * spec.alignment
            return [(buffer, scope, size, versions)]
        if kind == "SeqStmt":
            return [entry for part in stmt.seq for entry in walk(part, versions)]
        if kind == "For" and "npu.op" not in stmt.annotations:
            start = clock[0]
            clock[0] += 1
            inner = walk(stmt.body, min(most, int(stmt.annotations.get("npu.buffers", 1))))
            clock[0] += 1
            for buffer, scope, size, count in inner:
                found[scope].append((buffer, size, count, start, clock[0]))
            return []
        if kind == "IfThenElse":
            rest = walk(stmt.then_case, versions)
            return rest + (walk(stmt.else_case, versions) if stmt.else_case is not None else [])
        clock[0] += 1
        return []

    for buffer, scope, size, count in walk(body, 1):
        found[scope].append((buffer, size, count, 0, clock[0] + 1))
    offsets: dict[Buffer, tuple[int, int]] = {}
    needs: dict[str, int] = {}
    for scope, entries in found.items():
        half = half_of(scope, spec)
        if len(entries) == 1 and entries[0][2] == 2 and entries[0][1] <= half:
            ((buffer, size, *_),) = entries
            offsets[buffer], needs[scope] = (half, 0), half + size
            continue
        capacity = spec.scratchpad(scope) - (reserved if scope == "ub" else 0)
        total = sum(size * count for _, size, count, _, _ in entries)
        if total <= capacity:
            offset = 0
            for buffer, size, count, _, _ in entries:
                offsets[buffer] = (size, offset)
                offset += size * count
            needs[scope] = total
            continue
        problem = memory.Problem(
            memory.Buffer(str(n), lower, upper, size * count)
            for n, (_, size, count, lower, upper) in enumerate(entries)
        )
        plan = memory.plan(problem, capacity=capacity, alignment=spec.alignment, seconds=_PLAN_SECONDS)
        if not plan.fits:
            raise BuildError(
                f"the kernel needs {plan.peak} bytes of {scope}, {spec.name} has {capacity}",
                hint="choose smaller tiles",
            )
        for n, (buffer, size, _, _, _) in enumerate(entries):
            offsets[buffer] = (size, plan.offsets[str(n)])
        needs[scope] = plan.peak
    shift = reserved
    if high:
        shift = (spec.scratchpad("ub") - needs["ub"]) // spec.alignment * spec.alignment
    if shift:
        for buffer, *_ in found["ub"]:
            size, offset = offsets[buffer]
            offsets[buffer] = (size, offset + shift)
        if found["ub"]:
            needs["ub"] += shift
    return offsets, needs


def half_of(scope: str, spec: NPUSpec) -> int:
    """Size of half of L0A, L0B or L0C, bytes; 0 for other memories."""
    inner = scope in ("l0a", "l0b", "l0c")
    return spec.scratchpad(scope) // 2 // spec.alignment * spec.alignment if inner else 0
