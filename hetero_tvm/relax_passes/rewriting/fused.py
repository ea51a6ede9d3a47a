"""Calls of fused operators in Relax: ``call_tir`` of a PrimFunc that carries its contract."""

from __future__ import annotations

import json
from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, IRModule, PrimFunc, relax, tvm
from hetero_tvm.ops.base import FusedOp, from_json
from hetero_tvm.ops.loops.rounds import loop_of
from hetero_tvm.ops.te_workload import OP_ATTR

CHECK_ATTR = "hetero_tvm.check"
"""Attribute of a PrimFunc that checks values at run time: it is a kernel already, and nothing to tune."""

CHECKS_ATTR = "hetero_tvm.checks"
"""Attribute of a function whose last results say what was wrong with its inputs: JSON list of texts."""

Claims = Callable[[FusedOp], bool]
"""Whether a target has a kernel for an operator in a form that not every target has."""


def contract_of(function: PrimFunc) -> FusedOp | None:
    """The contract that a PrimFunc carries; None for a generic kernel."""
    text = function.attrs.get(OP_ATTR) if function.attrs else None
    return from_json(str(text)) if text is not None else None


def is_check(function: PrimFunc) -> bool:
    """Whether a PrimFunc checks values at run time."""
    return bool(function.attrs) and CHECK_ATTR in function.attrs


def is_ready(function: PrimFunc) -> bool:
    """Whether a PrimFunc is a kernel as it is: a check, or an end of a loop."""
    return is_check(function) or loop_of(function) is not None


def checks_of(function: relax.Function) -> tuple[str, ...]:
    """Texts for the numbers behind the results of a function: what is wrong where one is not 0."""
    text = function.attrs.get(CHECKS_ATTR) if function.attrs else None
    return tuple(json.loads(str(text))) if text is not None else ()


def is_call_tir(value: Expr) -> bool:
    """Whether it calls a PrimFunc."""
    return (
        isinstance(value, tvm.ir.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == "relax.call_tir"
    )


def contract(module: IRModule, value: Expr) -> FusedOp | None:
    """The contract of the operator that ``value`` calls; None when it calls none."""
    if not is_call_tir(value) or not isinstance(value.args[0], tvm.ir.GlobalVar):
        return None
    return contract_of(module[value.args[0]])
