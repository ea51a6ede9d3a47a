"""Live ranges of the memory of a lowered Relax function, and the variables that share it.

The function is as ``CallTIRRewrite`` leaves it: tensors are allocated (``relax.builtin.alloc_tensor``)
and kernels write to their last arguments.  Steps are positions of bindings in program order; the
branches of an ``If`` follow one another in that order, which is right for either way through, since
nothing repeats.

Variables are traced to *storages*: reshapes, tuples and branches share those that they are made of,
and whatever a function of the runtime returns may be a view of any of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import (
    Call,
    Expr,
    GlobalVar,
    IRModule,
    PrimFunc,
    RelaxFunction,
    Var,
    relax,
    tirx,
    tvm,
)

ALLOC = "relax.builtin.alloc_tensor"
UPPER_BOUND = "tir_var_upper_bound"
"""Function attribute: largest value by name of a symbolic dimension (that of TVM's own planner)."""
_VIEWS = ("relax.reshape", "relax.memory.ensure_zero_offset")

Alias: TypeAlias = "frozenset[int] | tuple[Alias, ...]"
"""The storages, by number, that a variable may lie in; for a tuple those of each field."""
NOTHING: frozenset[int] = frozenset()
ELSEWHERE = -1
"""Number in an alias that says: the variable may lie in none of the storages, or in a part of one."""


@dataclass
class Storage:
    """A piece of memory: an input, or what one allocation made."""

    number: int
    var: Var
    name: str
    nbytes: int
    """Bytes; an upper bound when the shape is symbolic."""
    device: tuple[int, str] = (0, "global")
    """Index of the virtual device, and memory scope."""
    is_input: bool = False
    escapes: bool = False
    """Part of the result: belongs to the caller after the call."""
    lower: int = -1
    """First step that uses it (-1: none)."""
    upper: int = -1
    """First step after the last use."""
    writer: str = ""
    """Kernel that writes it first."""

    @property
    def plannable(self) -> bool:
        """Whether it lives within a call only, so that it may share memory with others."""
        return not self.is_input and not self.escapes and self.lower >= 0


@dataclass(frozen=True)
class KernelCall:
    """A call of a function that writes to some of its arguments."""

    step: int
    var: Var
    callee: GlobalVar | relax.ExternFunc
    """GlobalVar of a PrimFunc, or ExternFunc."""
    args: tuple[Expr, ...]

    @property
    def name(self) -> str:
        return callee_name(self.callee)


@dataclass
class LiveRanges:
    """Storages of a function, its calls, and the storages of each variable, as :func:`analyse` finds them."""

    storages: list[Storage] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    alias: dict[Var, Alias] = field(default_factory=dict)
    steps: int = 0
    constant_results: tuple[int, ...] = ()
    """Results, by number, that lie in no storage, or may not: constants, which every call gives again."""

    def of(self, expr: Expr) -> frozenset[int]:
        """Numbers of the storages that ``expr`` may lie in, or :data:`ELSEWHERE`; none for constants."""
        return _flat(self.expr(expr))

    def expr(self, expr: Expr) -> Alias:
        if isinstance(expr, relax.Var):
            return self.alias.get(expr, NOTHING)
        if isinstance(expr, relax.Tuple):
            return tuple(self.expr(part) for part in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = self.expr(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else whole
        return NOTHING


def analyse(function: RelaxFunction) -> LiveRanges:
    """Live ranges of all storages of ``function``.

    Raises
    ------
    BuildError : a symbolic dimension without an upper bound, or a closure; all cases are listed.
    """
    return _Analysis(function).run()


def bindings_of(body: relax.SeqExpr) -> Iterator[relax.Binding]:
    """Bindings in program order, those inside of branches before the ``If`` that they belong to."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from bindings_of(binding.value.true_branch)
                yield from bindings_of(binding.value.false_branch)
            yield binding


def callee_name(callee: GlobalVar | relax.ExternFunc) -> str:
    return callee.name_hint if isinstance(callee, tvm.ir.GlobalVar) else str(callee.global_symbol)


def kernel_of(module: IRModule, call: KernelCall) -> PrimFunc | None:
    """The kernel that a call runs; None for functions of the runtime."""
    function = module[call.callee] if isinstance(call.callee, tvm.ir.GlobalVar) else None
    return function if isinstance(function, tirx.PrimFunc) else None


def is_op_call(value: Expr, *names: str) -> bool:
    return isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name in names


def bytes_of(ty: relax.TensorType, bounds: Mapping[str, int]) -> int:
    """Bytes of a tensor type; symbolic dimensions count with their upper bounds.

    Raises :class:`ValueError` that names the dimensions without one.
    """
    if ty.shape is None:
        raise ValueError("its shape is not known")
    analyzer = tvm.sym.Analyzer()
    open_names = set()
    for extent in ty.shape:
        for var in tirx.analysis.undefined_vars(extent):
            if var.name in bounds:
                analyzer.bind(var, tvm.ir.Range(0, int(bounds[var.name]) + 1))
            else:
                open_names.add(var.name)
    if open_names:
        raise ValueError(f"no upper bound for {', '.join(sorted(open_names))}")
    extents = [int(analyzer.const_int_bound(extent).max_value) for extent in ty.shape]
    return -(-math.prod(extents) * tvm.DataType(str(ty.dtype)).bits // 8)


class _Analysis:
    def __init__(self, function: RelaxFunction):
        self._function = function
        self._found = LiveRanges()
        self._problems: list[str] = []
        attrs = function.attrs or {}
        bounds = attrs[UPPER_BOUND] if UPPER_BOUND in attrs else {}
        self._bounds = {str(name): int(value) for name, value in bounds.items()}

    def run(self) -> LiveRanges:
        found = self._found
        for parameter in self._function.params:
            found.alias[parameter] = frozenset([self._storage(parameter, 0, is_input=True)])
        result = self._body(self._function.body)
        for number in _flat(result) - {ELSEWHERE}:
            found.storages[number].escapes = True
        found.steps = max(found.steps, 1)
        found.constant_results = tuple(
            i for i, place in enumerate(_leaves(result)) if not place or ELSEWHERE in place
        )
        if self._problems:
            raise BuildError(
                "memory cannot be planned",
                problems=self._problems,
                hint=f"give symbolic dimensions an upper bound (attribute {UPPER_BOUND}), or static shapes",
            )
        return found

    def _body(self, body: relax.SeqExpr) -> Alias:
        for block in body.blocks:
            for binding in block.bindings:
                self._found.alias[binding.var] = self._value(binding.var, binding.value)
        result = self._found.expr(body.body)
        self._use(result)
        return result

    def _value(self, var: Var, value: Expr) -> Alias:
        found = self._found
        if isinstance(value, relax.If):
            self._use(found.expr(value.cond))
            found.steps += 1
            either = self._body(value.true_branch), self._body(value.false_branch)
            found.steps += 1
            return _united(*(_somewhere(alias) for alias in either))
        if isinstance(value, relax.Function):
            self._problems.append(f"{var.name}: a function inside of the function (LambdaLift takes it out)")
            return NOTHING
        if not isinstance(value, tvm.ir.Call):
            alias = found.expr(value)
            self._name(var, alias)
            return alias
        if is_op_call(value, ALLOC):
            return frozenset([self._allocation(var, value)])
        used = _united(*(found.expr(arg) for arg in value.args))
        if is_op_call(value, *_VIEWS):
            return found.expr(value.args[0])
        writes = isinstance(value.op, (tvm.ir.GlobalVar, relax.ExternFunc))
        name = callee_name(value.op) if writes else ""
        self._use(used, name)
        if writes:
            found.calls.append(KernelCall(found.steps, var, value.op, tuple(value.args)))
        found.steps += 1
        return _flat(used) | {ELSEWHERE} if _has_tensor(var.ty) else NOTHING

    def _allocation(self, var: Var, call: Call) -> int:
        try:
            nbytes = bytes_of(var.ty, self._bounds)
        except ValueError as error:
            self._problems.append(f"{var.name}: {error}")
            nbytes = 0
        number = self._storage(var, nbytes)
        self._found.storages[number].device = (int(call.args[2].value), str(call.args[3].value))
        return number

    def _storage(self, var: Var, nbytes: int, *, is_input: bool = False) -> int:
        storages = self._found.storages
        storages.append(Storage(len(storages), var, var.name, nbytes, is_input=is_input))
        return len(storages) - 1

    def _name(self, var: Var, alias: Alias) -> None:
        """An allocation is known by the first variable that is bound to it: that one has source nodes."""
        if isinstance(alias, frozenset) and len(alias) == 1 and ELSEWHERE not in alias:
            storage = self._found.storages[next(iter(alias))]
            if storage.name == storage.var.name and not storage.is_input:
                storage.name = var.name

    def _use(self, alias: Alias, writer: str = "") -> None:
        now = self._found.steps
        for number in _flat(alias) - {ELSEWHERE}:
            storage = self._found.storages[number]
            if storage.lower < 0:
                storage.lower, storage.writer = now, writer
            storage.upper = now + 1


def _flat(alias: Alias) -> frozenset[int]:
    return frozenset().union(*_leaves(alias))


def _leaves(alias: Alias) -> Iterator[frozenset[int]]:
    if isinstance(alias, tuple):
        for part in alias:
            yield from _leaves(part)
    else:
        yield alias


def _united(*aliases: Alias) -> Alias:
    if aliases and all(isinstance(a, tuple) and len(a) == len(aliases[0]) for a in aliases):
        return tuple(_united(*parts) for parts in zip(*aliases, strict=True))
    return frozenset().union(*(_flat(alias) for alias in aliases))


def _somewhere(alias: Alias) -> Alias:
    """``alias`` of a branch, whose constants are memory that the other branch's result is not."""
    if isinstance(alias, tuple):
        return tuple(_somewhere(part) for part in alias)
    return alias or frozenset([ELSEWHERE])


def _has_tensor(ty: tvm.ir.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return any(_has_tensor(part) for part in ty.fields)
    return isinstance(ty, (relax.TensorType, relax.AnyType))
