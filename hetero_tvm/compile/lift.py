"""Lifting of an optimized model: one graph for all sizes from the same graph at several."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.compile.dynamic.constants_at import MOST_WIDE, constants_at, differs
from hetero_tvm.compile.dynamic.kernels import stated_kernel, written_kernel
from hetero_tvm.compile.dynamic.tables import (
    RULES,
    Operands,
    Rule,
    front_kernel,
    shifted,
    shrunk,
    table_kernel,
    window_kernel,
)
from hetero_tvm.compile.dynamic.tensor_ir import lift_function, with_operands
from hetero_tvm.compile.kernels import Packed, marked, packed_once
from hetero_tvm.compile.optimize import OptimizedModel
from hetero_tvm.errors import BuildError
from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, PrimFunc, Var, relax, structural_equal, tirx, tvm
from hetero_tvm.records.choose import Choice
from hetero_tvm.relax_passes.rewriting.fused import is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import array_of, is_constant
from hetero_tvm.relax_passes.storage.live_ranges import UPPER_BOUND
from hetero_tvm.schedules.base import DesignSpace, Packer, Point
from hetero_tvm.schedules.extents import Extent, Unfit, completed
from hetero_tvm.schedules.fitting import fit
from hetero_tvm.schedules.task import Task, symbol, task_key

_SMALL = (3, 5, 2)
"""Sizes of symbols at which constants are confirmed; where two numbers happen to be equal at these, in the
order that begins one further on."""


@dataclass(frozen=True)
class _Kernel:
    variable: GlobalVar
    packers: Mapping[int, Packer]
    told: bool
    """Whether inputs of the model that tell the sizes are operands too."""
    packing: str
    """Task and decisions, which say how constants are packed."""


def lift_model(
    optimized: OptimizedModel, choices: Mapping[str, Choice], packed: Packed | None = None
) -> IRModule:
    """The module for all sizes, with scheduled kernels, ready to be lowered.

    ``packed`` are constants that another form of the model has packed already; new ones are added.

    Raises
    ------
    BuildError : the model is another one at other sizes; names the node where that shows first.
    """
    return _Lifting(optimized, choices, {} if packed is None else packed).run()


class _Lifting:
    def __init__(self, optimized: OptimizedModel, choices: Mapping[str, Choice], packed: Packed):
        assert optimized.lengths is not None
        self._packed = packed
        self._optimized, self._choices = optimized, choices
        self._lengths = optimized.lengths
        self._sizes = self._lengths.sizes
        self._modules = [optimized.module, *(other.module for other in self._lengths.others)]
        self._tasks = {task.key: task for task in optimized.tasks}
        self._symbols = {s.name: tirx.Var(s.name, "int64") for s in self._lengths.symbols}
        self._quotients = [name for name in self._sizes[0] if name not in self._symbols]
        self._builder = relax.BlockBuilder()
        self._kernels: dict[Any, _Kernel] = {}
        self._vars: list[dict[Var, int]] = [{} for _ in self._modules]
        self._made: list[Expr] = []
        self._copies: dict[Any, Expr] = {}
        self._tables: dict[Any, Expr] = {}
        self._wide: dict[tuple[str, str], list[np.ndarray]] = {}
        self._small: dict[int, list[np.ndarray]] = {}
        self._telling: dict[str, tuple[Sequence[Var], Expr]] = {}

    def run(self) -> IRModule:
        mains = [module["main"] for module in self._modules]
        everything = [[b for block in main.body.blocks for b in block.bindings] for main in mains]
        if len(steps := sorted({len(bindings) for bindings in everything})) > 1:
            self._fail("the graph", f"it has {' or '.join(map(str, steps))} steps")
        parameters = []
        for several in zip(*(main.params for main in mains), strict=True):
            parameters.append(relax.Var(several[0].name, self._type([p.ty for p in several])))
            self._take(several, parameters[-1])
            shape = parameters[-1].ty.shape
            for extent in () if shape is None else shape.values:
                if isinstance(extent, tirx.Var):
                    self._telling.setdefault(extent.name, (several, parameters[-1]))
        bounds = {s.name: s.high for s in self._lengths.symbols}
        attributes = {UPPER_BOUND: bounds}
        builder = self._builder
        with builder.function("main", parameters, attrs=attributes):
            try:
                # A choice between branches (If) is no dataflow.
                has_choice = any(isinstance(binding.value, relax.If) for binding in everything[0])
                with contextlib.nullcontext() if has_choice else builder.dataflow():
                    for several in zip(*everything, strict=True):
                        self._binding(several)
                    result = self._result([main.body.body for main in mains])
                    result = builder.emit(result) if has_choice else builder.emit_output(result)
            except BaseException:
                builder._end_block()  # a builder that is left with one prints so when it goes
                raise
            builder.emit_func_output(result)
        return builder.get()

    def _result(self, several: Sequence[Expr]) -> Expr:
        try:
            return self._expr(several)
        except Unfit as error:
            self._fail("an output of the model", str(error))

    # bindings ------------------------------------------------------------------------------------
    def _binding(self, several: Sequence[relax.Binding]) -> None:
        name = several[0].var.name
        try:
            value = self._value([b.value for b in several], several[0].var, [b.var.ty for b in several])
            made = self._builder.emit(value, name)
        except Unfit as error:
            nodes = self._optimized.sources.get(name, (name,))
            self._fail(", ".join(nodes), str(error))
        self._take([b.var for b in several], made)

    def _take(self, several: Sequence[Var], made: Expr) -> None:
        for known, var in zip(self._vars, several, strict=True):
            known[var] = len(self._made)
        self._made.append(made)

    def _value(self, values: Sequence[Expr], var: Var, types: Sequence[Any]) -> Expr:
        first = values[0]
        if isinstance(first, relax.If):
            return self._choice(values)
        if is_call_tir(first):
            return self._call_tir(values, types)
        if isinstance(first, tvm.ir.Call):
            if len({str(value.op) for value in values}) > 1 or len({len(v.args) for v in values}) > 1:
                raise Unfit("another operator at other sizes")
            args = [self._expr(args) for args in zip(*(value.args for value in values), strict=True)]
            ty_args = [self._type(each) for each in zip(*(value.ty_args for value in values), strict=True)]
            return relax.Call(first.op, args, first.attrs, ty_args)
        return self._expr(values)

    def _choice(self, values: Sequence[relax.If]) -> relax.If:
        """A choice between branches, each of which is one for all sizes."""
        if any(not isinstance(value, relax.If) for value in values):
            raise Unfit("it is a choice between branches (If) at some sizes only")
        condition = self._expr([value.cond for value in values])
        taken = self._branch([value.true_branch for value in values])
        return relax.If(condition, taken, self._branch([value.false_branch for value in values]))

    def _branch(self, several: Sequence[relax.SeqExpr]) -> relax.SeqExpr:
        """One branch; what is written in it is seen by nobody outside."""
        bindings = [[b for block in branch.blocks for b in block.bindings] for branch in several]
        if len(steps := sorted({len(each) for each in bindings})) > 1:
            raise Unfit(f"a branch has {' or '.join(map(str, steps))} steps")
        outside = dict(self._copies), dict(self._tables)
        self._builder._begin_binding_block()
        try:
            for each in zip(*bindings, strict=True):
                self._binding(each)
            result = self._builder.emit(self._expr([branch.body for branch in several]))
        finally:
            block = self._builder._end_block()
            self._copies, self._tables = outside
        return relax.SeqExpr([block], result)

    def _call_tir(self, values: Sequence[Expr], types: Sequence[Any]) -> Expr:
        if any(not is_call_tir(value) for value in values):
            raise Unfit("another operator at other sizes")
        fields = [list(value.args[1].fields) for value in values]
        if len({len(each) for each in fields}) > 1:
            raise Unfit("other operands at other sizes")
        operands = list(zip(*fields, strict=True))
        args = [self._expr(each, whole=False) for each in operands]
        bounded = frozenset(n for n, each in enumerate(operands) if self._bounded(each, args[n]))
        kernel = self._kernel([value.args[0] for value in values], bounded, len(fields[0]))
        for index, pack in kernel.packers.items():
            array = array_of(args[index])
            if array is None:
                raise Unfit(f"operand {index} is declared constant, and is not")
            args[index] = packed_once(self._packed, args[index], array, pack, (kernel.packing, index))
        if kernel.told:
            args += [made for _, made in self._tell()]
        out = self._type(types)
        return relax.call_tir(
            kernel.variable, args, out_ty=list(out.fields) if isinstance(out, relax.TupleType) else out
        )

    def _kernel(self, variables: Sequence[GlobalVar], bounded: frozenset[int], inputs: int) -> _Kernel:
        key = (*variables, bounded)
        if key not in self._kernels:
            functions = [module[v] for module, v in zip(self._modules, variables, strict=True)]
            task: Task | None = self._tasks.get(task_key(functions[0]))
            space = None if task is None else task.space
            choice = None if task is None else self._choices.get(task.key)
            point = None
            if task is not None and space is not None:
                point = choice.point if choice is not None else None
                point = point or space.default(task.op, self._optimized.machine)
            kernel, packers, told = self._kernel_for_all(functions, bounded, inputs, space, point)
            if task is not None:
                kernel = marked(kernel, task)
            elif kernel.attrs and "global_symbol" in kernel.attrs:
                kernel = kernel.without_attr("global_symbol")
            name = symbol(variables[0].name_hint if task is None else task.name)
            variable = self._builder.add_func(self._optimized.target.stamp(kernel), name)
            self._kernels[key] = _Kernel(variable, packers, told, f"{task.key if task else name} {point}")
        return self._kernels[key]

    def _kernel_for_all(
        self,
        functions: Sequence[PrimFunc],
        bounded: frozenset[int],
        inputs: int,
        space: DesignSpace | None,
        point: Point | None,
    ) -> tuple[PrimFunc, Mapping[int, Packer], bool]:
        """Kernel, packers, and whether inputs of the model tell it the sizes that its own operands do not."""
        sizes, target = self._sizes, self._optimized.target
        if (found := written_kernel(functions, sizes, bounded, space, point, target)) is not None:
            return *found, False
        more = self._sizes_told(len(functions))
        telling = [with_operands(f, inputs, at) for f, at in zip(functions, more, strict=True)]
        if (found := written_kernel(telling, sizes, bounded, space, point, target, more)) is not None:
            return *found, True
        try:
            return stated_kernel(functions, sizes, bounded, target), {}, False
        except Unfit:
            return stated_kernel(telling, sizes, bounded, target), {}, True

    # expressions -----------------------------------------------------------------------------------
    def _expr(self, several: Sequence[Any], whole: bool = True) -> Any:
        """The expression for all sizes; without ``whole``, a constant may have more than is read of it."""
        first = several[0]
        if isinstance(first, relax.Var):
            places = {known.get(var) for known, var in zip(self._vars, several, strict=True)}
            if len(places) != 1 or None in places:
                raise Unfit("it reads something else at other sizes")
            return self._made[places.pop()]
        if is_constant(first):
            if not all(is_constant(value) for value in several):
                raise Unfit("an operand is a constant at some sizes only")
            return self._constant(several, whole)
        if isinstance(first, relax.Tuple):
            return relax.Tuple([self._expr(each) for each in zip(*(v.fields for v in several), strict=True)])
        if isinstance(first, relax.TupleGetItem):
            return relax.TupleGetItem(self._expr([v.tuple_value for v in several]), first.index)
        if isinstance(first, relax.ShapeExpr):
            return relax.ShapeExpr(self._extents([v.values for v in several]))
        if any(not structural_equal(first, other) for other in several[1:]):
            raise Unfit("a number differs at other sizes")
        return first

    def _constant(self, several: Sequence[Any], whole: bool) -> Any:
        """The constant of the largest sizes, where a kernel for others can read as much as it needs from the
        front; else, and for all that is no operand of a kernel, what is needed of it, copied at each call."""
        first, *others = (array_of(value) for value in several)
        for other in others:
            if other.ndim != first.ndim or other.dtype != first.dtype:
                raise Unfit("a constant has another form at other sizes")
            front = first[tuple(slice(0, extent) for extent in other.shape)]
            if front.shape != other.shape or front.tobytes() != other.tobytes():
                return self._table(several, [first, *others])
        differing = [axis for axis in range(first.ndim) if differs([first, *others], axis)]
        if differing:
            self._confirm_front([first, *others])
        in_front = len(differing) == 1 and all(extent == 1 for extent in first.shape[: differing[0]])
        if not differing or in_front and not whole:
            return several[0]
        shapes = [tuple(map(int, value.ty.shape)) for value in several]
        key = (first.tobytes(), str(first.dtype), *shapes)
        if key not in self._copies:
            source, told = shrunk(first, differing), self._sizes_told(len(shapes))
            kernels = [front_kernel(source, shape, at) for shape, at in zip(shapes, told, strict=True)]
            self._copies[key] = self._written("front", kernels, several, [source])
        return self._copies[key]

    def _table(self, several: Sequence[Any], arrays: Sequence[np.ndarray]) -> Expr:
        """A constant that follows from the sizes by a rule, written at each call."""
        key = ("table", *((array.tobytes(), array.shape, str(array.dtype)) for array in arrays))
        if key not in self._tables:
            told = self._sizes_told(len(arrays))
            rules: Iterator[tuple[Rule, list[np.ndarray]]] = itertools.chain(
                ((functools.partial(table_kernel, rule), []) for rule in RULES),
                (
                    (functools.partial(window_kernel, wide, axis), [wide])
                    for axis, wide in self._wide_constants(arrays)
                ),
            )
            for rule, given in rules:
                with contextlib.suppress(Unfit):
                    kernels = [rule(array, at) for array, at in zip(arrays, told, strict=True)]
                    self._confirm(rule, arrays, kernels, must=bool(given))
                    self._tables[key] = self._written("table", kernels, several, given)
                    break
            else:
                raise Unfit("a constant has other values at other sizes")
        return self._tables[key]

    def _sizes_told(self, count: int) -> list[Operands]:
        """Shapes and dtypes, at each of ``count`` sizes, of inputs that tell all symbols."""
        return [
            [(tuple(map(int, each[n].ty.shape.values)), str(each[n].ty.dtype)) for each, _ in self._tell()]
            for n in range(count)
        ]

    def _tell(self) -> list[tuple[Sequence[Var], Expr]]:
        return [self._telling[name] for name in self._symbols if name in self._telling]

    def _written(
        self, name: str, kernels: Sequence[PrimFunc], several: Sequence[Any], given: Sequence[np.ndarray]
    ) -> Expr:
        """Result of a kernel that writes it at each call, from constants and the sizes of inputs."""
        target = self._optimized.target
        work = math.prod(map(int, several[0].ty.shape))
        kernel = target.schedule_run_time(lift_function(kernels, self._sizes), work)
        variable = self._builder.add_func(target.stamp(kernel), name)
        out = self._type([value.ty for value in several])
        operands = [
            *(constant(array, str(array.dtype)) for array in given),
            *(made for _, made in self._tell()),
        ]
        return self._builder.emit(relax.call_tir(variable, operands, out_ty=out))

    def _confirm(
        self, rule: Rule, arrays: Sequence[np.ndarray], kernels: Sequence[PrimFunc], must: bool
    ) -> None:
        """Refuse kernels that write something else where sizes are small: of the model's constants there, of
        those with the right shape, one must follow the same rule.  With ``must`` there has to be one: a
        window may begin in front of its table.

        Raises
        ------
        Unfit : none of them does.
        """
        for order in range(2):
            small, alike = self._alike(arrays, order)
            told = [
                (self._shape_at([v.ty.shape.values for v in each], small), str(each[0].ty.dtype))
                for each, _ in self._tell()
            ]
            for array in alike:
                with contextlib.suppress(Unfit):
                    lift_function([*kernels[:-1], rule(array, told)], [*self._sizes[:-1], small])
                    return
            if not alike and not must and not order:
                return
        raise Unfit("a constant has other values at other sizes")

    def _confirm_front(self, arrays: Sequence[np.ndarray]) -> None:
        """Refuse a constant of which small sizes have something else than the front.

        Raises
        ------
        Unfit : the model's constants of that shape there are others.
        """
        alike = self._alike(arrays)[1]
        if alike:
            front = arrays[0][tuple(slice(0, extent) for extent in alike[0].shape)]
            if not any(array.tobytes() == front.tobytes() for array in alike):
                raise Unfit("a constant has other values at other sizes")

    def _alike(self, arrays: Sequence[np.ndarray], order: int = 0) -> tuple[dict[str, int], list[np.ndarray]]:
        """Small sizes, and the model's constants there that are of the type and shape of this one."""
        symbols = self._lengths.symbols
        small = {s.name: s.nearest(s.step * _SMALL[(n + order) % len(_SMALL)]) for n, s in enumerate(symbols)}
        small = completed(small, self._quotients)
        if order not in self._small:
            self._small[order] = constants_at(lambda at: self._lengths.at(at).module, small)
        shape = self._shape_at([array.shape for array in arrays], small)
        return small, [a for a in self._small[order] if (a.shape, a.dtype) == (shape, arrays[0].dtype)]

    def _shape_at(self, shapes: Sequence[Sequence[Any]], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape, at other sizes, of what has these ``shapes`` at the model's."""
        found = [fit([int(value) for value in values], self._sizes) for values in zip(*shapes, strict=True)]
        return tuple(extent.at(sizes) if isinstance(extent, Extent) else extent for extent in found)

    def _wide_constants(self, arrays: Sequence[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Axes and constants, of which ``arrays`` may be windows along these.

        They are the one of the largest sizes (a table by distance begins further behind in it for smaller
        ones), and those of the model with an empty past and as many new elements as both may be: the
        positions that it reaches by and by are among them.
        """
        symbols = self._lengths.symbols
        highs = {s.name: s.high for s in symbols}
        if all(self._sizes[0][name] >= high for name, high in highs.items()):
            largest = shrunk(arrays[0], [n for n in range(arrays[0].ndim) if differs(arrays, n)])
            if largest.size <= MOST_WIDE:
                yield from ((axis, shifted(largest, axis)) for axis in range(largest.ndim))
        pairs = [(past, new) for past in symbols for new in symbols if past.low == 0 and new is not past]
        for past, new in sorted(pairs, key=lambda pair: "seq" not in pair[1].name.lower()):
            if (past.name, new.name) not in self._wide:
                sizes = {**highs, past.name: 0, new.name: past.high + new.high}
                self._wide[past.name, new.name] = constants_at(lambda at: self._lengths.at(at).module, sizes)
            for wide in self._wide[past.name, new.name]:
                if wide.ndim == arrays[0].ndim and wide.size > arrays[0].size:
                    yield from ((axis, wide) for axis in range(wide.ndim))

    def _bounded(self, several: Sequence[Any], made: Any) -> bool:
        """Whether it is a constant of which the sizes tell how much is read."""
        return is_constant(made) and len({tuple(map(int, v.ty.shape)) for v in several}) > 1

    def _extents(self, several: Sequence[Any]) -> list[Expr]:
        found = []
        for values in zip(*several, strict=True):
            extent = fit([int(value) for value in values], self._sizes)
            if isinstance(extent, Extent):
                found.append(extent.expression(self._symbols, "int64"))
            else:
                found.append(tirx.const(extent, "int64"))
        return found

    def _type(self, several: Sequence[Any]) -> Any:
        first = several[0]
        if isinstance(first, relax.TupleType):
            return relax.TupleType(
                [self._type(each) for each in zip(*(t.fields for t in several), strict=True)]
            )
        if isinstance(first, relax.TensorType):
            if len({(str(t.dtype), t.ndim) for t in several}) > 1:
                raise Unfit("another type at other sizes")
            return relax.TensorType(self._extents([t.shape.values for t in several]), first.dtype)
        if isinstance(first, relax.ShapeType):
            return relax.ShapeType(self._extents([t.values for t in several]))
        return first

    def _fail(self, where: str, why: str) -> None:
        ranges = ", ".join(map(str, self._lengths.symbols))
        raise BuildError(
            f"{self._optimized.model.name} cannot be one library for {ranges}: at {where}, {why}",
            hint="give fixed sizes, a range for fewer dimensions, ranges that begin at larger sizes, or only "
            "the multiples that the model is made for (NAME=1x3x64..256:32x64..256:32)",
        )
