"""The matrix unit: multiply-accumulate of whole tiles, and the way out of its accumulators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero_tvm.machines.npu.banks import bank_cycles
from hetero_tvm.machines.npu.numbers import DTYPES, WIDTH, cast, numpy_dtype
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa.encoding import (
    Access,
    Cost,
    Instruction,
    Memories,
    Values,
    f32,
    i32,
    size,
    u8,
    u32,
)
from hetero_tvm.targets.npu.isa.overlap import overlap, overlaps_itself

_ACCUMULATOR = {"f16": "f32", "bf16": "f32", "i8": "i32"}
MATRIX_DTYPES = tuple(_ACCUMULATOR)


def _tiles(v: Values) -> tuple[tuple[str, int, int, int, int], ...]:
    """(operand, rows, bytes of a row, pitch, address) of A, B and C as they lie in memory."""
    width = WIDTH[v["dtype"]]
    a = (v["k"], v["m"]) if v["a_transposed"] == "yes" else (v["m"], v["k"])
    b = (v["n"], v["k"]) if v["b_transposed"] == "yes" else (v["k"], v["n"])
    return (
        ("a", a[0], a[1] * width, v["a_pitch"], v["a"]),
        ("b", b[0], b[1] * width, v["b_pitch"], v["b"]),
        ("c", v["m"], v["n"] * 4, v["c_pitch"], v["c"]),
    )


def _check_mmad(v: Values, spec: NPUSpec) -> Iterator[str]:
    for name, rows, row, pitch, address in _tiles(v):
        width = 4 if name == "c" else WIDTH[v["dtype"]]
        if address % spec.alignment:
            yield f"{name} is misaligned: {address} is not a multiple of {spec.alignment}"
        if pitch % width:
            yield f"{name}_pitch is misaligned: {pitch} is not a multiple of {width}"
        if rows > 1 and pitch < row:
            yield f"{name} overlaps itself: {name}_pitch is {pitch}, a row has {row} bytes"


def _mmad_accesses(v: Values) -> list[Access]:
    a, b, c = (
        Access(memory, address, (rows,), (pitch,), row, False)
        for memory, (_, rows, row, pitch, address) in zip(("l0a", "l0b", "l0c"), _tiles(v), strict=True)
    )
    written = Access("l0c", c.base, c.extents, c.strides, c.run, True)
    return [a, b, c, written] if v["accumulate"] == "yes" else [a, b, written]


def _mmad(v: Values, machine: Memories) -> None:
    width, dtype = WIDTH[v["dtype"]], numpy_dtype(v["dtype"])
    a_strides = (width, v["a_pitch"]) if v["a_transposed"] == "yes" else (v["a_pitch"], width)
    b_strides = (width, v["b_pitch"]) if v["b_transposed"] == "yes" else (v["b_pitch"], width)
    wide = np.int32 if v["dtype"] == "i8" else np.float32
    m, n, k = v["m"], v["n"], v["k"]
    a = machine.read("l0a", 0, v["a"], (m, k), a_strides, dtype).astype(wide)
    b = machine.read("l0b", 0, v["b"], (k, n), b_strides, dtype).astype(wide)
    c = np.zeros((m, n), wide)
    if v["accumulate"] == "yes":
        c = machine.read("l0c", 0, v["c"], (m, n), (v["c_pitch"], 4), np.dtype(wide))
    with np.errstate(all="ignore"):
        for i in range(k):
            if wide is np.int32:
                c = c + a[:, i : i + 1] * b[i : i + 1, :]
            else:
                # 16 bits of a product and 24 of a sum: in float64 nothing is lost that f32 could keep.
                c = (c.astype(np.float64) + a[:, i : i + 1].astype(np.float64) * b[i : i + 1, :]).astype(wide)
    machine.write("l0c", 0, v["c"], (v["c_pitch"], 4), c)


_NO_YES = ("no", "yes")

MMAD = Instruction(
    "mmad",
    0x20,
    "matrix",
    "C[m,n] = sum over k of A[m,k] * B[k,n], onto C or from zero.  A lies in L0A by rows of k (by rows "
    "of m when transposed), B in L0B by rows of n (of k when transposed), C in L0C by rows of n as f32 "
    "(int32 for i8).  k ascends; products of f16 and bf16 are exact, every sum is rounded to f32 once.",
    (
        u8("dtype", "of A and B", MATRIX_DTYPES),
        u8("accumulate", "onto C", _NO_YES, default="no"),
        u8("a_transposed", "A lies as (k, m)", _NO_YES, default="no"),
        u8("b_transposed", "B lies as (n, k)", _NO_YES, default="no"),
        size("m", "rows of C"),
        size("n", "columns of C"),
        size("k", "length of the sums"),
        u32("a", "byte address in L0A"),
        u32("a_pitch", "bytes from row to row"),
        u32("b", "byte address in L0B"),
        u32("b_pitch", "bytes from row to row"),
        u32("c", "byte address in L0C"),
        u32("c_pitch", "bytes from row to row"),
    ),
    check=_check_mmad,
    cost=lambda v, spec: Cost(unit=spec.matrix_cycles(v["m"], v["n"], v["k"], v["dtype"])),
    accesses=_mmad_accesses,
    execute=_mmad,
)


# --- move_out: L0C -> UB -------------------------------------------------------------------------


def _check_move_out(v: Values, spec: NPUSpec) -> Iterator[str]:
    width = WIDTH[v["dst_dtype"]]
    if v["c"] % spec.alignment:
        yield f"c is misaligned: {v['c']} is not a multiple of {spec.alignment}"
    if v["c_pitch"] % 4:
        yield f"c_pitch is misaligned: {v['c_pitch']} is not a multiple of 4"
    for name in ("dst", "row_stride", "column_stride"):
        if v[name] % width:
            yield f"{name} is misaligned: {v[name]} is not a multiple of {width}"
    if overlaps_itself((v["m"], v["n"]), (v["row_stride"], v["column_stride"]), width):
        yield "the destination overlaps itself"
    if v["scale_mode"] == "column" and v["scales"] % 4:
        yield f"scales is misaligned: {v['scales']} is not a multiple of 4"
    if v["bias"] != "none" and v["biases"] % WIDTH[v["bias"]]:
        yield f"biases is misaligned: {v['biases']} is not a multiple of {WIDTH[v['bias']]}"
    if v["residual"] != "none":
        yield from _check_residual(v)
    if v["bias"] == "i32" and v["src_dtype"] != "i32":
        yield "an i32 bias needs an i32 source"
    if v["zero_point"] and v["dst_dtype"] not in ("i8", "i32"):
        yield "zero_point needs an integer destination"


def _residual(v: Values) -> Access:
    width = WIDTH[v["residual"]]
    return Access(v["residual_mem"], v["residuals"], (v["m"],), (v["residual_pitch"],), width * v["n"], False)


def _check_residual(v: Values) -> Iterator[str]:
    width = WIDTH[v["residual"]]
    for name in ("residuals", "residual_pitch"):
        if v[name] % width:
            yield f"{name} is misaligned: {v[name]} is not a multiple of {width}"
    if v["residual_mem"] != "ub":
        return
    shape, written = (v["m"], v["n"]), WIDTH[v["dst_dtype"]]
    target = Access("ub", v["dst"], shape, (v["row_stride"], v["column_stride"]), written, True)
    steps = zip(shape, target.strides, (v["residual_pitch"], width), strict=True)
    same = v["residuals"] == v["dst"] and written == width and all(a == b for e, a, b in steps if e > 1)
    if not same and overlap(target, _residual(v)):
        yield "the destination overlaps the residual without being the same region"


def _move_out_cost(v: Values, spec: NPUSpec) -> Cost:
    shape, width = (v["m"], v["n"]), WIDTH[v["dst_dtype"]]
    ub = bank_cycles(shape, (v["row_stride"], v["column_stride"]), width, spec.ub_bytes_per_cycle)
    l1 = 0.0
    if v["residual"] != "none":
        narrow = WIDTH[v["residual"]]
        in_l1 = v["residual_mem"] == "l1"
        banks = spec.l1_to_l0a if in_l1 else spec.ub_bytes_per_cycle
        read = bank_cycles(shape, (v["residual_pitch"], narrow), narrow, banks)
        l1, ub = (read, ub) if in_l1 else (0.0, ub + read)
    return Cost(unit=v["m"] * v["n"] * 4 / spec.l0c_to_ub, l1=l1, ub=ub)


def _move_out_accesses(v: Values) -> list[Access]:
    m, n, width = v["m"], v["n"], WIDTH[v["dst_dtype"]]
    result = [Access("l0c", v["c"], (m,), (v["c_pitch"],), 4 * n, False)]
    if v["scale_mode"] == "column":
        result.append(Access("ub", v["scales"], (n,), (4,), 4, False))
    if v["bias"] != "none":
        result.append(Access("ub", v["biases"], (n,), (WIDTH[v["bias"]],), WIDTH[v["bias"]], False))
    if v["residual"] != "none":
        result.append(_residual(v))
    return [*result, Access("ub", v["dst"], (m, n), (v["row_stride"], v["column_stride"]), width, True)]


def _move_out(v: Values, machine: Memories) -> None:
    m, n = v["m"], v["n"]
    c = machine.read("l0c", 0, v["c"], (m, n), (v["c_pitch"], 4), numpy_dtype(v["src_dtype"]))
    bias = None
    if v["bias"] != "none":
        bias = machine.read("ub", 0, v["biases"], (n,), (WIDTH[v["bias"]],), numpy_dtype(v["bias"]))
    with np.errstate(all="ignore"):
        if v["bias"] == "i32":
            c = c + bias
        plain = v["scale_mode"] == v["residual"] == "none" and v["bias"] in ("none", "i32")
        if not (plain and c.dtype == np.int32 and v["dst_dtype"] in ("i32", "i8")):
            c = c.astype(np.float32)
            if v["scale_mode"] == "immediate":
                c = c * np.float32(v["scale"])
            elif v["scale_mode"] == "column":
                c = c * machine.read("ub", 0, v["scales"], (n,), (4,), np.dtype("f4"))
            if v["bias"] not in ("none", "i32"):
                c = c + bias.astype(np.float32)
            if v["residual"] != "none":
                strides = (v["residual_pitch"], WIDTH[v["residual"]])
                where, dtype = v["residual_mem"], numpy_dtype(v["residual"])
                c = c + machine.read(where, 0, v["residuals"], (m, n), strides, dtype).astype(np.float32)
        if v["relu"] == "yes":
            c = np.maximum(c, c.dtype.type(0))
        c = cast(c, v["dst_dtype"], v["zero_point"])
    machine.write("ub", 0, v["dst"], (v["row_stride"], v["column_stride"]), c)


MOVE_OUT = Instruction(
    "move_out",
    0x21,
    "vector",
    "Copy accumulators to UB: an i32 bias is added first; then, unless all stays integer, to f32, times "
    "the scale, plus the bias, plus the residual; relu; round to the destination (integers: half to even, "
    "plus zero_point, saturated).  Scales (f32) and biases have one element per column; the residual, rows "
    "of n in L1 or UB, one per accumulator.",
    (
        u8("src_dtype", "of the accumulators", ("f32", "i32")),
        u8("dst_dtype", "in UB", DTYPES),
        u8("scale_mode", "where the scale is", ("none", "immediate", "column"), default="none"),
        u8("bias", "dtype of the biases", ("none", "f16", "bf16", "f32", "i32"), default="none"),
        u8("relu", "negative results become 0", _NO_YES, default="no"),
        u8("residual", "dtype of the residual", ("none", "f16", "bf16", "f32"), default="none"),
        u8("residual_mem", "memory of the residual", ("l1", "ub"), default="l1"),
        size("m", "rows"),
        size("n", "columns"),
        u32("c", "byte address in L0C"),
        u32("c_pitch", "bytes from row to row"),
        u32("dst", "byte address in UB"),
        i32("row_stride", "bytes from row to row in UB"),
        i32("column_stride", "bytes from column to column"),
        f32("scale", "immediate scale", default=1.0),
        u32("scales", "byte address in UB", default=0),
        u32("biases", "byte address in UB", default=0),
        i32("zero_point", "added after rounding", default=0),
        u32("residuals", "byte address of the residual", default=0),
        u32("residual_pitch", "bytes from row to row of it", default=0),
    ),
    check=_check_move_out,
    cost=_move_out_cost,
    accesses=_move_out_accesses,
    execute=_move_out,
)

INSTRUCTIONS = (MMAD, MOVE_OUT)
