"""Half precision: fused operators take and give float16 or bfloat16, everything else stays as it is.

The pass runs after fusion.  An operator whose contract has a dtype computes in float32 whatever that
dtype is, so converting it narrows what is stored and moved, and what tensor cores multiply, and
nothing else: statistics, accumulators and activations keep their range.  Between two converted
operators values stay narrow; elsewhere a cast stands, which becomes part of a generic kernel beside it:
that kernel reads or writes narrow values, and computes as before.  Inputs and outputs of the model keep
their dtypes, constants are rounded once, here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy learns of bfloat16)
import numpy as np

from hetero_tvm.host.constants import constant
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, PrimFunc, Var, relax, s_tir, te, tirx, tvm
from hetero_tvm.ops.base import FusedOp
from hetero_tvm.relax_passes.rewriting.fused import contract, contract_of, is_call_tir
from hetero_tvm.relax_passes.rewriting.graph import Graph, Sources, array_of, shape_of
from hetero_tvm.relax_passes.rewriting.sources import after_fusion

DTYPES = {"f16": "float16", "bf16": "bfloat16"}
"""Precisions that :func:`convert` makes, by the name of the option."""


def convert(module: IRModule, sources: Sources, dtype: str) -> tuple[IRModule, Sources]:
    """Convert the fused operators of an optimized module.

    Parameters
    ----------
    module, sources : as :func:`hetero_tvm.relax_passes.pipeline.optimize` returns them.
    dtype : of activations and weights (``float16`` or ``bfloat16``).

    Returns
    -------
    The module, and source names by variable.
    """
    return _fused(*_Conversion(module, sources, dtype).run())


def _fused(module: IRModule, names: Sources) -> tuple[IRModule, Sources]:
    """Module in which casts are parts of the elementwise kernels before and behind them."""
    for variable, function in list(module.functions.items()):
        if isinstance(function, tirx.PrimFunc) and contract_of(function) is None:
            module[variable] = _inlined(
                function
            )  # of several blocks nobody could tell that they are one step
    before = relax.transform.AnnotateTIROpPattern()(module)
    module = relax.transform.FuseOps()(before)
    names = after_fusion(before, module, names)
    return tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])(
        module
    ), names


def _inlined(function: PrimFunc) -> PrimFunc:
    schedule = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    try:
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    except (ValueError, RuntimeError):
        return function  # bound to threads already
    if len(blocks) == 1:
        return function
    for block in blocks:
        with contextlib.suppress(s_tir.ScheduleError):  # a result, a reduction, or used in other ways
            schedule.compute_inline(block)
    return schedule.mod["main"].without_attr("global_symbol")


class _Conversion:
    def __init__(self, module: IRModule, sources: Sources, dtype: str):
        self._module, self._dtype = module, dtype
        self._graph = Graph(module, sources=sources)
        self._narrow: dict[Var, Var] = {}
        self._widened: set[Var] = set()
        self._functions: dict[Any, GlobalVar] = {}

    def run(self) -> tuple[IRModule, Sources]:
        graph = self._graph
        for var in graph.bindings():
            op = contract(self._module, graph.value(var))
            if op is not None and getattr(op, "dtype", None) == "float32":
                self._convert(var, op)
            elif (view := graph.call(var, "relax.reshape")) is not None and view.args[0] in self._narrow:
                narrow = relax.op.reshape(self._narrow[view.args[0]], view.args[1])
                self._narrow[var] = graph.insert_before(var, narrow, f"{var.name}_{self._dtype}", [var])
                graph.replace(var, self._cast(self._narrow[var], shape_of(var), self._dtype, "float32"))
                self._widened.add(var)
            elif op is None and is_call_tir(graph.value(var)):
                self._widen_here(var)
        return graph.rebuild()

    def _widen_here(self, var: Var) -> None:
        """Give a generic kernel casts of its own, which it can take in."""
        graph, call = self._graph, self._graph.value(var)
        args = list(call.args[1].fields)
        for index, arg in enumerate(args):
            if arg in self._widened:
                wide = self._cast(self._narrow[arg], shape_of(arg), self._dtype, "float32")
                args[index] = graph.insert_before(var, wide, f"{arg.name}_float32", [var])
        if any(new is not old for new, old in zip(args, call.args[1].fields, strict=True)):
            graph.replace(
                var, tvm.ir.Call(call.op, [call.args[0], relax.Tuple(args)], call.attrs, call.ty_args)
            )

    def _convert(self, var: Var, op: FusedOp) -> None:
        graph = self._graph
        wanted = dataclasses.replace(op, dtype=self._dtype)
        args = [
            self._as(arg, operand.dtype, var) if operand.dtype != known.dtype else arg
            for arg, operand, known in zip(
                graph.value(var).args[1].fields, wanted.inputs, op.inputs, strict=True
            )
        ]
        function = self._function(wanted, wanted.workload, wanted.label)
        result = relax.TensorType(list(wanted.output.shape), self._dtype)
        call = relax.call_tir(function, args, out_ty=result)
        self._narrow[var] = graph.insert_before(var, call, f"{var.name}_{self._dtype}", [var])
        graph.replace(var, self._cast(self._narrow[var], op.output.shape, self._dtype, "float32"))
        self._widened.add(var)

    def _as(self, value: Expr, dtype: str, before: Var) -> Expr:
        """``value`` in a narrow dtype: rounded now when it is constant, else as it was made, or cast."""
        array = array_of(self._graph.value(value))
        if array is not None:
            return constant(np.asarray(array).astype(dtype))
        view = self._graph.call(value, "relax.reshape")
        if value not in self._narrow and view is not None and isinstance(view.args[0], relax.Var):
            # The cast stands before the view: right behind the kernel that may take it in.
            reshaped = relax.op.reshape(self._as(view.args[0], dtype, before), view.args[1])
            self._narrow[value] = self._graph.insert_before(
                before, reshaped, f"{value.name}_{dtype}", [value]
            )
        elif value not in self._narrow:
            shape = tuple(int(extent) for extent in value.ty.shape)
            cast = self._cast(value, shape, "float32", dtype)
            self._narrow[value] = self._graph.insert_before(before, cast, f"{value.name}_{dtype}", [value])
        return self._narrow[value]

    def _cast(self, value: Expr, shape: tuple[int, ...], source: str, to: str) -> Expr:
        def make() -> PrimFunc:
            x = te.placeholder(shape, source, "x")
            function = te.create_prim_func(
                [x, te.compute(shape, lambda *i: x(*i).astype(to), "cast")], "int64"
            )
            return function.without_attr("global_symbol").with_attr("tirx.noalias", True)

        function = self._function((shape, source, to), make, f"cast_{to}")
        return relax.call_tir(function, [value], out_ty=relax.TensorType(list(shape), to))

    def _function(self, key: Any, make: Callable[[], PrimFunc], name: str) -> GlobalVar:
        if key not in self._functions:
            self._functions[key] = self._graph.add_function(make(), name)
        return self._functions[key]
