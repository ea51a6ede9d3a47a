"""Scratch memory of kernels as arguments, so that it is planned with everything else.

A kernel that allocates a large buffer for the whole call would get it from the runtime at every call,
beside the arena.  Such a buffer becomes a parameter after the outputs, and the caller passes a tensor
that lives for that one step.  Small buffers stay on the stack; buffers inside of loops belong to a
thread and stay with the runtime's pool (:func:`per_thread` counts them).

External functions (BYOC) say what they need in the module's attribute :data:`ATTRIBUTE`, bytes by
symbol, and get a uint8 tensor of that size after their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hetero_tvm.codegen.pipeline import STACK_LIMIT
from hetero_tvm.host.tvm import Buffer, GlobalVar, IRModule, PrimFunc, SBlockRealize, Stmt, relax, tirx, tvm
from hetero_tvm.relax_passes.rewriting.bindings import map_bindings
from hetero_tvm.relax_passes.storage.live_ranges import callee_name

ATTRIBUTE = "hetero_tvm.workspaces"
NAME = "workspace"
_THREADS = ("thread_extent", "virtual_thread")
_LEAVES = (tirx.BufferStore, tirx.Bind, tirx.Evaluate)
"""Statements without others; most are such, and TVM's classes take long to ask what they are."""
_SCOPES = ("global", "local")
"""Storage scopes that are plain memory; others (shared memory of a GPU) are the hardware's."""


def as_arguments(module: IRModule, name: str = "main") -> IRModule:
    """``module`` (after CallTIRRewrite) with planned workspaces for all that ``name`` calls."""
    builder = relax.BlockBuilder(module.clone())
    attrs = module.attrs or {}
    external = attrs[ATTRIBUTE] if ATTRIBUTE in attrs else {}
    external = {str(symbol): int(nbytes) for symbol, nbytes in external.items()}
    wanted: dict[GlobalVar, tuple[GlobalVar, list[tuple[tuple[int, ...], str]]]] = {}
    for var, function in list(module.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            changed, buffers = _with_parameters(function)
            if buffers:
                wanted[var] = builder.add_func(changed, var.name_hint), buffers

    def pass_workspaces(binding: relax.Binding) -> list[relax.Binding]:
        call = binding.value
        if not isinstance(call, tvm.ir.Call):
            return [binding]
        callee, buffers = call.op, []
        if callee in wanted:
            callee, buffers = wanted[callee]
        elif isinstance(call.op, relax.ExternFunc) and callee_name(call.op) in external:
            buffers = [((external[callee_name(call.op)],), "uint8")]
        if not buffers:
            return [binding]
        fresh = []
        for shape, dtype in buffers:
            alloc = relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0, "global")
            fresh.append(relax.VarBinding(relax.Var(NAME, relax.TensorType(shape, dtype)), alloc))
        args = [*call.args, *(f.var for f in fresh)]
        again = tvm.ir.Call(callee, args, call.attrs, call.ty_args)
        return [*fresh, relax.VarBinding(binding.var, again)]

    if not wanted and not external:
        return module
    main = map_bindings(module[name], pass_workspaces)
    module = builder.get()
    module.update_func(module.get_global_var(name), main)
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(module))


def per_thread(function: PrimFunc) -> int:
    """Bytes of scratch beyond the stack that each thread takes while ``function`` runs."""
    total = 0
    for buffer, in_loop in _allocations(function.body, False):
        size = _bytes(buffer)
        if in_loop and size is not None and size > STACK_LIMIT and buffer.scope() in _SCOPES:
            total += size
    return total


def _with_parameters(function: PrimFunc) -> tuple[PrimFunc, list[tuple[tuple[int, ...], str]]]:
    large = []
    for buffer, in_loop in _allocations(function.body, False):
        size = _bytes(buffer)
        if not in_loop and size is not None and size > STACK_LIMIT and buffer.scope() in _SCOPES:
            large.append(buffer)
    if not large:
        return function, []
    params, views = list(function.params), {}
    for buffer in large:
        shape = tuple(int(extent) for extent in buffer.shape)
        params.append(tirx.decl_buffer(shape, str(buffer.dtype), name=NAME))
        views[buffer] = params[-1]
    body = _replaced(function.body, views)
    specs = [(tuple(int(e) for e in p.shape), str(p.dtype)) for p in params[len(function.params) :]]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs), specs


def _replaced(stmt: Stmt, views: dict[Buffer, Buffer]) -> Stmt:
    """``stmt`` with the allocations outside of loops that are in ``views`` as views of these."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_replaced(part, views) for part in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _replaced(stmt.body, views))
    if isinstance(stmt, tirx.AllocBuffer) and stmt.buffer in views:
        return tirx.DeclBuffer(stmt.buffer, data=views[stmt.buffer].data)
    return stmt


def _allocations(stmt: Stmt, in_loop: bool) -> Iterator[tuple[Buffer, bool]]:
    """Buffers that ``stmt`` allocates, each with whether it does so inside of a loop.

    Buffers of blocks count as inside: compilation moves and shrinks them to where they are used.
    """
    if type(stmt) in _LEAVES:
        return
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from _allocations(part, in_loop)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _allocations(stmt.body, in_loop or stmt.attr_key in _THREADS)
    elif isinstance(stmt, tirx.For):
        yield from _allocations(stmt.body, True)
    elif isinstance(stmt, tirx.IfThenElse):
        yield from _allocations(stmt.then_case, True)
        if stmt.else_case is not None:
            yield from _allocations(stmt.else_case, True)
    elif isinstance(stmt, SBlockRealize):
        yield from ((buffer, True) for buffer in stmt.block.alloc_buffers)
        yield from _allocations(stmt.block.body, in_loop)
    elif isinstance(stmt, tirx.AllocBuffer):
        yield stmt.buffer, in_loop


def _bytes(buffer: Buffer) -> int | None:
    if not all(isinstance(extent, (int, tirx.IntImm)) for extent in buffer.shape):
        return None
    count = math.prod(int(extent) for extent in buffer.shape)
    return -(-count * tvm.DataType(str(buffer.dtype)).bits // 8)
