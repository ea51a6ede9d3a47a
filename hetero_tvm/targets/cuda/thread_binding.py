"""The check that nothing unscheduled reaches a GPU: every store of a kernel is bound to threads."""

from __future__ import annotations

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import IRModule, PrimFunc, Stmt, tirx


def check_bound(module: IRModule) -> None:
    """Refuse kernels with a store outside of all threads, which cannot run on a GPU.

    Raises
    ------
    BuildError : names all of them.
    """
    bad = [
        variable.name_hint
        for variable, function in module.functions.items()
        if isinstance(function, PrimFunc) and not is_bound(function)
    ]
    if bad:
        raise BuildError(
            "kernels reached code generation without a schedule for a GPU",
            problems=sorted(bad),
            hint="this is a fault of the target: report the kernels above",
        )


def is_bound(function: PrimFunc) -> bool:
    """Whether every store of a function happens inside a loop or region that threads run."""
    return not _unbound_stores(function.body, False)


def _unbound_stores(node: Stmt | None, bound: bool) -> bool:
    """Whether a statement outside of all threads (``bound``: inside) stores anything."""
    if bound or node is None:
        return False
    if isinstance(node, tirx.BufferStore):
        return True
    if isinstance(node, tirx.SeqStmt):
        return any(_unbound_stores(part, bound) for part in node.seq)
    if isinstance(node, tirx.For):
        return _unbound_stores(node.body, node.kind == tirx.ForKind.THREAD_BINDING)
    if isinstance(node, tirx.AttrStmt):
        return _unbound_stores(node.body, str(node.attr_key) in ("thread_extent", "launch_thread"))
    if isinstance(node, tirx.IfThenElse):
        return _unbound_stores(node.then_case, bound) or _unbound_stores(node.else_case, bound)
    for name in ("block", "init", "body"):
        part = getattr(node, name, None)
        if part is not None and _unbound_stores(part, bound):
            return True
    return False
