"""Conversions from and to bfloat16, where TVM's own go wrong.

TVM stores bfloat16 as 16 bits and writes the conversions out late.  It forgets those inside of a bound value
(the integers become floats: every function made of polynomials is wrong), writes out the value that is
rounded several times (what it binds is then bound several times, which no vector may be), and spreads no
bfloat16 over a vector.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.host.tvm import (
    Call,
    Expr,
    IRModule,
    PrimFunc,
    SBlockRealize,
    structural_equal,
    tirx,
    tvm,
    tvm_ffi,
    with_body,
)


def _is_bfloat16(value: Expr) -> bool:
    return str(value.ty.dtype).startswith("bfloat16")


def _lanes(dtype: str, value: Expr) -> str:
    """``dtype`` with as many lanes as ``value`` has."""
    lanes = tvm.DataType(str(value.ty.dtype)).lanes
    return f"{dtype}x{lanes}" if lanes > 1 else dtype


def _number(number: int, value: Expr) -> Expr:
    """An unsigned ``number`` of 32 bits for each lane of ``value``."""
    lanes = tvm.DataType(str(value.ty.dtype)).lanes
    one = tirx.const(number, "uint32")
    return tirx.Broadcast(one, lanes) if lanes > 1 else one


def _bits_of(value: Expr) -> Expr | None:
    """The bits of a bfloat16 value that is read, or made of bits."""
    if isinstance(value, tvm.ir.TensorLoad):
        return tirx.call_intrin(_lanes("uint16", value), "tirx.reinterpret", value)
    made = isinstance(value, Call) and isinstance(value.op, tvm.ir.Op)
    return value.args[0] if made and value.op.name == "tirx.reinterpret" else None


def _widened(value: Expr) -> Expr:
    """A bfloat16 value as float32: its bits are the upper half."""
    bits = _bits_of(value)
    if bits is not None:
        wide = tirx.Cast(_lanes("uint32", value), bits)
        shifted = tirx.shift_left(wide, _number(16, value))
        return tirx.call_intrin(_lanes("float32", value), "tirx.reinterpret", shifted)
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), "float32")
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _widened(value.true_value), _widened(value.false_value))
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(_widened(value.value), value.lanes)
    return tirx.Cast(_lanes("float32", value), value)


def _read(cast: tirx.Cast) -> Expr:
    if not _is_bfloat16(cast.value) or _is_bfloat16(cast):
        return cast
    wide = _widened(cast.value)
    return wide if str(cast.ty.dtype) == str(wide.ty.dtype) else tirx.Cast(str(cast.ty.dtype), wide)


def _is_widened(value: Expr) -> bool:
    """Whether a float32 is a bfloat16's value as it stands."""
    return isinstance(value, tirx.Cast) and _is_bfloat16(value.value)


def _rounded(value: Expr) -> Expr:
    """The bfloat16 nearest to each float32, ties to even, as float32; NaN stays NaN."""
    bits = tirx.call_intrin(_lanes("uint32", value), "tirx.reinterpret", value)
    odd = tirx.bitwise_and(tirx.shift_right(bits, _number(16, value)), _number(1, value))
    upper = tirx.bitwise_and(bits + _number(0x7FFF, value) + odd, _number(0xFFFF0000, value))
    nearest = tirx.call_intrin(_lanes("float32", value), "tirx.reinterpret", upper)
    return tirx.Select(tirx.NE(value, value), value, nearest)


def bits_of_rounded(value: Expr) -> Expr:
    """The bits, as uint16, of a bfloat16 value made of float32: nearest, ties to even; NaN is quiet."""
    whole = isinstance(value, tirx.Cast) and str(value.value.ty.dtype).startswith("float32")
    wide = value.value if whole else tirx.Cast(_lanes("float32", value), value)
    name = tirx.Var("wide", str(wide.ty.dtype))
    bits = tirx.call_intrin(_lanes("uint32", name), "tirx.reinterpret", _rounded(name))
    upper = tirx.shift_right(bits, _number(16, name))
    chosen = tirx.Select(tirx.NE(name, name), _number(0x7FC0, name), upper)
    return tirx.Let(name, wide, tirx.Cast(_lanes("uint16", name), chosen))


def _without_bound(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with float32 variables in the place of those that are bfloat16."""
    wide: dict[tirx.Var, tirx.Var] = {}

    def bind(node: tirx.Bind) -> tirx.Bind:
        if not _is_bfloat16(node.var):
            return node
        value = node.value
        if isinstance(value, tirx.Cast) and str(value.value.ty.dtype).startswith("float32"):
            value = value.value if _is_widened(value.value) else _rounded(value.value)
        else:
            value = tirx.Cast(_lanes("float32", value), value)
        wide[node.var] = tirx.Var(f"{node.var.name}_wide", str(value.ty.dtype))
        return tirx.Bind(wide[node.var], value)

    def read(cast: tirx.Cast) -> Expr:
        var = wide.get(cast.value) if isinstance(cast.value, tirx.Var) else None
        if var is None:
            return cast
        return var if str(cast.ty.dtype) == str(var.ty.dtype) else tirx.Cast(str(cast.ty.dtype), var)

    body = tvm_ffi.structural_map(body, (tirx.Bind, bind), order="post")
    if not wide:
        return body
    body = tvm_ffi.structural_map(body, (tirx.Cast, read), order="post")

    def use(var: tirx.Var) -> Expr:
        return tirx.Cast(str(var.ty.dtype), wide[var]) if var in wide else var

    return tvm_ffi.structural_map(body, (tirx.Var, use))


def _stored(store: tirx.BufferStore) -> tirx.Stmt:
    """``store``, with a name for the float32 value that it rounds."""
    value = store.value
    if not _is_bfloat16(value) or isinstance(value, tvm.ir.TensorLoad):
        return store
    wide = value.value if isinstance(value, tirx.Cast) else _widened(value)
    if not str(wide.ty.dtype).startswith("float32") or isinstance(wide, tirx.Var):
        return store
    name = tirx.Var("wide", str(wide.ty.dtype))
    rounded = tirx.BufferStore(store.buffer, tirx.Cast(str(value.ty.dtype), name), store.indices)
    return tirx.SeqStmt([tirx.Bind(name, wide), rounded])


def _is_scalar(call: Call) -> bool:
    """Whether a function has no form for vectors: what it is in is cut into scalars, and a bfloat16 lost."""
    op = call.op
    # The vectoriser treats changes of type by itself.
    return isinstance(op, tvm.ir.Op) and op.name != "tirx.reinterpret" and not op.get_attr("TVectorizable")


def _serial(loop: tirx.For) -> tirx.For:
    """``loop``, left to LLVM's vectoriser where it would store one bfloat16 in every lane, or calls what has
    no form for vectors."""
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    stores: list[tirx.BufferStore] = []
    bound: list[tuple[tirx.Var, Expr]] = []
    calls: list[Call] = []

    def note(node: Any) -> Any:
        if isinstance(node, tirx.BufferStore):
            stores.append(node)
        elif isinstance(node, tirx.Bind):
            bound.append((node.var, node.value))
        elif isinstance(node, Call):
            calls.append(node)
        else:
            bound.extend(zip((i.var for i in node.block.iter_vars), node.iter_values, strict=True))
        return node

    tvm_ffi.structural_map(loop.body, ((tirx.BufferStore, tirx.Bind, Call, SBlockRealize), note))
    if not any(_is_bfloat16(store.value) for store in stores):
        return loop
    serial = any(map(_is_scalar, calls))
    vector = {loop.loop_var}
    for _ in bound:  # a variable may be bound before or behind those that it is made of
        vector |= {var for var, value in bound if vector & set(tirx.analysis.undefined_vars(value))}
    if not serial and all(
        vector & set(tirx.analysis.undefined_vars(s.value)) for s in stores if _is_bfloat16(s.value)
    ):
        return loop
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, annotations=loop.annotations
    )


def _one_of_two(select: tirx.Select) -> Expr:
    """``select``, or the value of both its branches: TVM finds that later, and spreads a bfloat16."""
    return select.true_value if structural_equal(select.true_value, select.false_value) else select


def _has_bfloat16(body: tirx.Stmt) -> bool:
    """Whether a function converts, binds or stores a bfloat16."""
    found: list[Any] = []

    def note(node: tirx.Cast | tirx.Bind | tirx.BufferStore) -> None:
        if _is_bfloat16(node.value):
            found.append(node)

    tvm_ffi.structural_walk(body, ((tirx.Cast, tirx.Bind, tirx.BufferStore), note))
    return bool(found)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.ConvertOnce")
def convert_once(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Write out the conversion of every bfloat16 that is read, and name every value that is rounded to it."""
    body = tvm_ffi.structural_map(func.body, (tirx.Select, _one_of_two), order="post")
    if not _has_bfloat16(body):
        return with_body(func, body)
    body = _without_bound(body)
    body = tvm_ffi.structural_map(body, (tirx.Cast, _read), order="post")
    body = tvm_ffi.structural_map(body, (tirx.BufferStore, _stored), order="post")
    return with_body(func, tvm_ffi.structural_map(body, (tirx.For, _serial), order="post"))
