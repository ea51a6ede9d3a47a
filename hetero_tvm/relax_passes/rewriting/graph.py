"""A Relax function as a graph that rules can read and rewrite in place.

A rewrite replaces the *value* of a binding and keeps its variable, so no user has to be touched;
what nobody uses any more disappears when the function is rebuilt.  Every variable carries the names
of the source nodes it stands for; a rewrite unites those of the bindings that it absorbs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetero_tvm.host.constants import array_of as values_of
from hetero_tvm.host.tvm import Call, Expr, GlobalVar, IRModule, PrimFunc, Var, relax, tvm

Sources = Mapping[str, tuple[str, ...]]
"""Variable name -> names of the source nodes that the variable stands for."""


class Graph:
    """The dataflow of one Relax function, as ordered bindings.

    Parameters
    ----------
    module, name : the module and the function in it.
    sources : source node names by variable name; variables not in it stand for their own name.
    disabled : names of passes that are switched off, for passes that prepare what others do.
    """

    def __init__(
        self,
        module: IRModule,
        name: str = "main",
        sources: Sources | None = None,
        disabled: frozenset[str] = frozenset(),
    ):
        self._name, self.disabled = name, disabled
        self._function = module[name]
        self._builder = relax.BlockBuilder(module)
        self._output = self._function.body.body
        self._attributes = self._function.attrs
        self._order: list[Var] = []
        self._value: dict[Var, Expr] = {}
        self._uses: dict[Var, list[Var]] = {}
        self._users: dict[Var, list[Var | None]] = {}
        self._sources: dict[Var, tuple[str, ...]] = {}
        self._carriers: Counter[str] = Counter()
        self._names: set[str] = set()
        self._itself: dict[Var, Var] = {}
        self._unused: list[Var] = []
        self._written: list[Var] = []
        for block in self._function.body.blocks:
            for binding in block.bindings:
                if isinstance(binding, relax.MatchCast):
                    raise ValueError(
                        f"binding {binding.var.name} is a match_cast: shapes must be static here"
                    )
                names = (sources or {}).get(binding.var.name, (binding.var.name,))
                self._add(len(self._order), binding.var, binding.value, names)
        for used in variables_in(self._output):
            self._users.setdefault(self._known(used), []).insert(0, None)

    # Large models have thousands of bindings and as many rewrites, so what a rewrite changes is kept up
    # to date, and nothing is computed again for the whole graph.

    def _known(self, var: Var) -> Var:
        """The one Python object of a variable: comparing two objects of the same variable is slow."""
        return self._itself.setdefault(var, var)

    def _add(self, place: int, var: Var, value: Expr, names: tuple[str, ...]) -> None:
        var = self._known(var)
        self._order.insert(place, var)
        self._names.add(var.name)
        self._uses[var] = []
        self._bind(var, value)
        self._stand_for(var, names)
        self._unused.append(var)  # until somebody uses it

    def _bind(self, var: Var, value: Expr) -> None:
        self._value[var] = value
        if (before := self._uses.get(var)) is None:
            return  # it is dead already
        self._uses[var] = [self._known(used) for used in variables_in(value)]
        for used in self._uses[var]:
            self._users.setdefault(used, []).append(var)
        for used in before:
            self._leave(used, var)

    def _leave(self, used: Var, user: Var | None) -> None:
        """Count one use of ``used`` less; the function's result is the user None."""
        users = self._users[used]
        del users[next(n for n, known in enumerate(users) if known is user)]
        if not users:
            self._unused.append(used)

    def _stand_for(self, var: Var, names: tuple[str, ...]) -> None:
        if var in self._uses:
            self._carriers.subtract(self._sources.get(var, ()))
            self._carriers.update(names)
        self._sources[var] = names

    def _sweep(self) -> list[Var]:
        """Drop the bindings that the result does not need; returns them in order."""
        gone: set[int] = set()
        while self._unused:
            var = self._unused.pop()
            if self._users.get(var) or var not in self._uses:
                continue
            gone.add(id(var))
            self._names.discard(var.name)
            self._carriers.subtract(self._sources[var])
            for used in self._uses.pop(var):
                self._leave(used, var)
        if not gone:
            return []
        dropped = [var for var in self._order if id(var) in gone]
        self._order = [var for var in self._order if id(var) not in gone]
        return dropped

    # reading -----------------------------------------------------------------------------------
    def bindings(self) -> list[Var]:
        """The live variables in order (a snapshot: rules may rewrite while they walk)."""
        self._sweep()
        return list(self._order)

    def is_live(self, var: Var) -> bool:
        """Whether the function's result needs ``var``."""
        self._sweep()
        return bool(self._users.get(var))

    def value(self, expr: Expr) -> Expr:
        """Value of a variable, through aliases; constants and parameters are their own values."""
        while isinstance(expr, relax.Var) and expr in self._value:
            value = self._value[expr]
            if not isinstance(value, relax.Var):
                return value
            expr = value
        return expr

    def call(self, expr: Expr, *names: str) -> Call | None:
        """Call that ``expr`` is bound to, if its operator is one of ``names`` (``"relax.add"``), or None."""
        value = self.value(expr)
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name in names:
            return value
        return None

    def fields(self, expr: Expr) -> list[Expr]:
        """Fields of the tuple that ``expr`` is or is bound to; none of anything else."""
        return list(getattr(self.value(expr), "fields", ()))

    def op_name(self, expr: Expr) -> str | None:
        """Name of the operator that ``expr`` calls (``"relax.add"``); None for anything else."""
        value = self.value(expr)
        if isinstance(value, tvm.ir.Call) and isinstance(value.op, tvm.ir.Op):
            return value.op.name
        return None

    def users(self, var: Var) -> list[Var | None]:
        """Variables whose values use ``var``; the function's result counts as the user ``None``."""
        self._sweep()
        return list(self._users.get(var, ()))

    def only_user(self, var: Var) -> Var | None:
        """The one binding that uses ``var``; None when several do, or a result or an alias does."""
        users = self.users(var)
        if len(users) != 1 or isinstance(self._value.get(users[0]), relax.Var):
            return None
        return users[0]

    def only_result(self, var: Var) -> Var | None:
        """The binding of the first item of the tuple ``var``; None when anything else of it is used."""
        user = self.only_user(var)
        item = None if user is None else self._value[user]
        return user if isinstance(item, relax.TupleGetItem) and item.index == 0 else None

    def sources(self, var: Var) -> tuple[str, ...]:
        """Names of the source nodes that ``var`` stands for."""
        return self._sources.get(var, (var.name,))

    def node(self, var: Var) -> str:
        """A readable name of the source node, for reports."""
        return self.sources(var)[-1]

    def functions(self) -> IRModule:
        """The module as it stands, with the functions that rewrites have added."""
        return self._builder.get()

    # writing -----------------------------------------------------------------------------------
    def rewrite(self, step: Callable[..., None], var: Var, found: Any) -> list[Var]:
        """Run ``step(self, var, found)``; returns the variables that it wrote, ``var`` if there are none."""
        self._written = []
        step(self, var, found)
        return [v for v in dict.fromkeys(self._written) if self.is_live(v)] or [var]

    def replace(self, var: Var, value: Expr, absorbs: Iterable[Var] = ()) -> None:
        """Bind ``var`` to ``value`` instead.

        From now on it stands for the bindings ``absorbs``, and for whatever else nobody needs any
        more: a source node that is computed must not vanish from reports.
        """
        var = self._known(var)
        self._bind(var, self._normalized(value))
        self._written.append(var)
        self._stand_for(var, _united(self.sources(v) for v in (*absorbs, var)))
        self._inherit([var])

    def forward(self, var: Var, to: Expr) -> None:
        """Let whoever uses ``var`` use ``to``, which has the same value: a variable or a constant.

        The variable disappears unless it is a result.  What it stood for passes on to ``to`` when that
        is a binding, else to the users.
        """
        users = [user for user in dict.fromkeys(self.users(var)) if user is not None]
        for user in users:
            self._bind(user, self._normalized(_substituted(self._value[user], var, to)))
        if None in self._users.get(var, ()):
            self._bind(self._known(var), to)
        self._written += users
        heirs = [self._known(to)] if isinstance(to, relax.Var) and to in self._value else users or [var]
        for heir in heirs:
            self._stand_for(heir, _united([self.sources(var), self.sources(heir)]))
        self._inherit(heirs)

    def _inherit(self, heirs: list[Var]) -> None:
        """Source names of bindings that died, and that nobody else carries, pass on to ``heirs``."""
        gone = self._sweep()
        lost = tuple(name for v in gone for name in self.sources(v) if not self._carriers[name])
        for heir in heirs if lost else ():
            self._stand_for(heir, _united([lost, self.sources(heir)]))

    def insert_before(self, anchor: Var, value: Expr, name: str, absorbs: Iterable[Var] = ()) -> Var:
        """A new binding right before ``anchor``; returns its variable."""
        value, anchor = self._normalized(value), self._known(anchor)
        fresh = (f"{name}_{n}" if n else name for n in itertools.count())
        var = relax.DataflowVar(next(n for n in fresh if n not in self._names), value.ty)
        place = next(n for n, known in enumerate(self._order) if known is anchor)
        self._add(place, var, value, _united(self.sources(v) for v in absorbs) or (name,))
        self._written.append(var)
        return var

    def binder(self, anchor: Var, absorbs: Iterable[Var] = ()) -> Callable[[Expr, str], Var]:
        """A function ``bind(value, step)`` that binds ``value`` right before ``anchor``, named after both."""
        absorbs = tuple(absorbs)
        return lambda value, step: self.insert_before(anchor, value, f"{anchor.name}#{step}", absorbs)

    def add_result(self, value: Expr, name: str, absorbs: Iterable[Var] = ()) -> None:
        """Let the function return ``value`` as well, behind everything that it returns."""
        sources = _united(self.sources(v) for v in absorbs) or (name,)
        output, fields = self._output, [self._output]
        if isinstance(output.ty, relax.TupleType):
            whole = self.value(output)
            if isinstance(whole, relax.Tuple):
                fields = list(whole.fields)
            else:
                parts = (relax.TupleGetItem(output, n) for n in range(len(output.ty.fields)))
                fields = [self._append(relax.DataflowVar, part, output.name, ()) for part in parts]
        fields.append(self._append(relax.DataflowVar, value, name, sources))
        self._output = self._append(relax.Var, relax.Tuple(fields), "results", ())
        for used in variables_in(output):
            self._leave(self._known(used), None)
        self._users.setdefault(self._known(self._output), []).insert(0, None)

    def _append(self, kind: type[Var], value: Expr, name: str, sources: tuple[str, ...]) -> Var:
        """A new binding behind all others; its variable."""
        value = self._normalized(value)
        fresh = (f"{name}_{n}" if n else name for n in itertools.count())
        var = kind(next(n for n in fresh if n not in self._names), value.ty)
        self._add(len(self._order), var, value, sources)
        return var

    def set_attribute(self, name: str, value: str) -> None:
        """Give the function an attribute."""
        self._attributes = self._function.with_attr(name, value).attrs

    def rename(self, var: Var, name: str, besides: tuple[str, ...] = ()) -> None:
        """Let ``var`` stand for a step of its own called ``name``, and for source nodes ``besides`` alone."""
        self._stand_for(self._known(var), (*besides, name))

    def add_function(self, function: PrimFunc, name: str) -> GlobalVar:
        """Add a PrimFunc to the module under a fresh name; returns its GlobalVar."""
        return self._builder.add_func(function, name)

    def call_function(self, function: PrimFunc, name: str, args: list[Expr], out_var: Var) -> Call:
        """A ``call_tir`` of a PrimFunc, added to the module, with the type of ``out_var``."""
        return relax.call_tir(self.add_function(function, name), args, out_ty=out_var.ty)

    def rebuild(self) -> tuple[IRModule, Sources]:
        """The module with this function rewritten and dead bindings dropped, and sources by variable name."""
        kept = self.bindings()
        block = relax.DataflowBlock([relax.VarBinding(var, self._value[var]) for var in kept])
        body = relax.SeqExpr([block], self._output)
        returned = self._function.ret_ty if self._output is self._function.body.body else self._output.ty
        function = relax.Function(
            self._function.params, body, returned, self._function.is_pure, self._attributes
        )
        module = self._builder.get().clone()  # the caller's module stays as it was
        module.update_func(module.get_global_var(self._name), function)
        module = tvm.transform.Sequential(
            [relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
        )(module)
        return module, {var.name: self.sources(var) for var in kept}

    def _normalized(self, value: Expr) -> Expr:
        return value if isinstance(value, relax.Var) else self._builder.normalize(value)


def variables_in(expr: Expr) -> list[Var]:
    """Variables that ``expr`` uses, in the order of their uses, repeated when used again."""
    found: list[Var] = []
    relax.analysis.post_order_visit(expr, lambda e: found.append(e) if isinstance(e, relax.Var) else None)
    return found


def _substituted(value: Expr, old: Expr, new: Expr) -> Expr:
    """``value`` with ``new`` wherever it uses the variable ``old``."""
    if isinstance(value, relax.Var):
        return new if value.same_as(old) else value
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_substituted(field, old, new) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_substituted(value.tuple_value, old, new), value.index)
    if isinstance(value, tvm.ir.Call):
        args = [_substituted(arg, old, new) for arg in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args)
    if isinstance(value, relax.If):
        parts = (value.cond, value.true_branch, value.false_branch)
        return relax.If(*(_substituted(part, old, new) for part in parts))
    if isinstance(value, relax.SeqExpr):
        blocks = [
            type(block)([relax.VarBinding(b.var, _substituted(b.value, old, new)) for b in block.bindings])
            for block in value.blocks
        ]
        return relax.SeqExpr(blocks, _substituted(value.body, old, new))
    return value


def _united(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in names for name in group))


def shape_of(expr: Expr) -> tuple[int, ...]:
    """Static shape of a Relax tensor expression."""
    return tuple(int(extent) for extent in expr.ty.shape)


def dtype_of(expr: Expr) -> str:
    """Dtype of a Relax tensor expression."""
    return str(expr.ty.dtype)


def array_of(expr: Expr) -> np.ndarray | None:
    """Array of a constant; None for anything else."""
    return values_of(expr.value) if is_constant(expr) else None


def is_constant(expr: Expr) -> bool:
    """Whether it is a tensor with a value."""
    return isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor)


def scalar_of(expr: Expr) -> float | None:
    """Value of a constant with one element; None for anything else."""
    array = array_of(expr)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def is_tensor(expr: Expr) -> bool:
    """Whether it is one tensor, not a tuple or a shape."""
    return isinstance(expr.ty, relax.TensorType)


def is_image(graph: Graph, expr: Expr, dtypes: Sequence[str] = ("float32",)) -> bool:
    """Whether it is a tensor [N, C, H, W] of one of ``dtypes`` that is computed, or an input of the model."""
    return (
        isinstance(expr, relax.Var)
        and is_tensor(expr)
        and len(expr.ty.shape) == 4
        and dtype_of(expr) in dtypes
        and array_of(graph.value(expr)) is None
    )


def same_value(graph: Graph, a: Expr, b: Expr) -> bool:
    """Whether two expressions are one variable, or are bound to one value."""
    return a.same_as(b) or graph.value(a).same_as(graph.value(b))
