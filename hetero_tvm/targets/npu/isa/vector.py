"""Vector unit: element-wise work and reductions on strided regions of the unified buffer.

Operands may have different dtypes.  When all sources in memory are integers and the operation is one
of ``INTEGER_OPS``, arithmetic is int32 (wraps; an immediate is rounded); otherwise every source is
widened to f32, computed with f32 rounding, and rounded once to the destination, which saturates when
it is an integer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero_tvm.host.special import erf, expit
from hetero_tvm.machines.npu.banks import bank_cycles
from hetero_tvm.machines.npu.numbers import DTYPES, WIDTH, cast, numpy_dtype
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.isa.encoding import (
    Access,
    Cost,
    Instruction,
    Memories,
    Values,
    extents,
    f32,
    strides,
    u8,
    u32,
)
from hetero_tvm.targets.npu.isa.overlap import overlap, overlaps_itself

SOURCES = (*DTYPES, "imm")
UNARY = (
    *("copy", "neg", "abs", "relu", "square", "floor", "ceil", "round"),
    *("exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "sin", "cos"),
)
BINARY = ("add", "sub", "mul", "div", "max", "min", "lt", "le", "gt", "ge", "eq", "ne", "prelu")
TERNARY = ("muladd", "submul", "add3", "select")
REDUCE = ("sum", "max", "min", "sumsq", "absmax")
INTEGER_OPS = {*("copy", "neg", "abs", "relu", "square"), *BINARY, *TERNARY, *REDUCE} - {"div", "prelu"}
TRANSCENDENTAL = {*UNARY[UNARY.index("exp") :], "div"}
SUM_LANES = 16
"""Number of partial sums of a reduction: element j goes to sum j % 16; the sums then fold by halves."""
_NO_YES = ("no", "yes")


def _sources(v: Values) -> list[str]:
    return [name for name in ("src", "src0", "src1", "src2") if name in v]


def _elements(v: Values) -> int:
    return math.prod(v["extents"])


def _check(v: Values, spec: NPUSpec) -> Iterator[str]:
    if _elements(v) > spec.scratchpad("ub"):
        yield f"{_elements(v)} elements are more than the unified buffer has bytes"
    names = [name for name in _sources(v) if v[f"{name}_dtype"] != "imm"]
    for name in ["dst", *names]:
        width = WIDTH[v[f"{name}_dtype"]]
        if v[name] % width:
            yield f"{name} is misaligned: {v[name]} is not a multiple of {width}"
        if any(s % width for s in v[f"{name}_strides"]):
            yield f"{name}_strides are misaligned: not multiples of {width}"
    for name in _sources(v):
        if v[f"{name}_dtype"] == "imm" and (v[name] or any(v[f"{name}_strides"])):
            yield f"{name} is an immediate: its address and strides must be 0"
    if not names and v["op"] != "copy":
        yield "at least one source must be in memory"
    yield from _check_in_place(v, names)


def _check_in_place(v: Values, names: list[str]) -> Iterator[str]:
    """A source may be the destination itself, element for element, or lie apart from it."""
    written = Access("ub", v["dst"], *_written(v), WIDTH[v["dst_dtype"]], True)
    for name in names:
        read = _region(v, name)
        same = (read.base, read.extents, read.run) == (written.base, written.extents, written.run)
        steps = zip(read.extents, read.strides, written.strides, strict=True)
        if same and all(a == b for n, a, b in steps if n > 1):
            continue
        if overlap(written, read):
            yield f"the destination overlaps {name} without being the same region"


def _check_elementwise(v: Values, spec: NPUSpec) -> Iterator[str]:
    yield from _check(v, spec)
    if overlaps_itself(v["extents"], v["dst_strides"], WIDTH[v["dst_dtype"]]):
        yield "the destination overlaps itself"


def _written(v: Values) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of the bytes that are written: all of them, or those that a reduction keeps."""
    return kept(v) if "axes" in v else (v["extents"], v["dst_strides"])


def _region(v: Values, name: str, write: bool = False) -> Access:
    return Access("ub", v[name], v["extents"], v[f"{name}_strides"], WIDTH[v[f"{name}_dtype"]], write)


def _accesses(v: Values) -> list[Access]:
    read = [_region(v, name) for name in _sources(v) if v[f"{name}_dtype"] != "imm"]
    return [*read, _region(v, "dst", True)]


def _cost(v: Values, spec: NPUSpec) -> Cost:
    names = ["dst", *(n for n in _sources(v) if v[f"{n}_dtype"] != "imm")]
    rate = spec.vector_lanes / (2 if any(WIDTH[v[f"{n}_dtype"]] == 4 for n in names) else 1)
    if v["op"] in TRANSCENDENTAL:
        rate /= spec.transcendental_divisor
    banks = sum(
        bank_cycles(v["extents"], v[f"{n}_strides"], WIDTH[v[f"{n}_dtype"]], spec.ub_bytes_per_cycle)
        for n in names
    )
    return Cost(unit=math.ceil(_elements(v) / rate), ub=banks)


def _load(v: Values, machine: Memories) -> list[Any]:
    """Read the sources as f32, or as int32 where the operation stays integer."""
    dtypes = {v[f"{n}_dtype"] for n in _sources(v)} - {"imm"}
    integer = v["op"] in INTEGER_OPS and bool(dtypes) and dtypes <= {"i8", "i32"}
    wide = np.int32 if integer else np.float32
    result = []
    for name in _sources(v):
        if v[f"{name}_dtype"] == "imm":
            immediate = np.asarray(v["imm"], np.float32)
            result.append(cast(immediate, "i32") if integer else immediate)
            continue
        dtype = numpy_dtype(v[f"{name}_dtype"])
        result.append(machine.read("ub", 0, v[name], v["extents"], v[f"{name}_strides"], dtype).astype(wide))
    return result


def _store(v: Values, machine: Memories, result: np.ndarray) -> None:
    full = np.broadcast_to(result, v["extents"])
    machine.write("ub", 0, v["dst"], v["dst_strides"], cast(full, v["dst_dtype"]))


# --- one source --------------------------------------------------------------------------------

_FUNCTION: dict[str, Any] = {
    "copy": lambda x: x,
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "square": lambda x: x * x,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "exp": np.exp,
    "log": np.log,
    "erf": erf,
    "tanh": np.tanh,
    "sigmoid": expit,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "reciprocal": lambda x: np.float32(1) / x,
    "sin": np.sin,
    "cos": np.cos,
}
_EXACT = {"copy", "neg", "abs", "relu", "square", "floor", "ceil", "round", "sqrt", "rsqrt", "reciprocal"}


def _unary(v: Values, machine: Memories) -> None:
    with np.errstate(all="ignore"):
        (x,) = _load(v, machine)
        if v["src_dtype"] == "imm":
            x = np.full(v["extents"], x, np.float32)
        elif v["mul"] != 1.0 or v["add"] != 0.0:
            x = x.astype(np.float32) * np.float32(v["mul"]) + np.float32(v["add"])
        if v["op"] in _EXACT:
            result = _FUNCTION[v["op"]](x)
        else:
            result = _FUNCTION[v["op"]](x.astype(np.float64)).astype(np.float32)
        _store(v, machine, result)


def _check_unary(v: Values, spec: NPUSpec) -> Iterator[str]:
    yield from _check_elementwise(v, spec)
    if v["src_dtype"] == "imm" and (v["op"] != "copy" or v["add"] != 0.0):
        yield "an immediate source (its value is mul) needs op=copy and add=0"


VUNARY = Instruction(
    "vunary",
    0x30,
    "vector",
    "dst = op(mul * src + add), in f32 when mul is not 1 or add is not 0.  src_dtype=imm with op=copy "
    "fills with the value mul.  copy converts; strides make it a transpose or a broadcast.",
    (
        u8("op", "function", UNARY),
        u8("dst_dtype", "", DTYPES),
        u8("src_dtype", "", SOURCES),
        f32("mul", "factor before the function", default=1.0),
        f32("add", "summand before it", default=0.0),
        u32("dst", "byte address"),
        u32("src", "byte address", default=0),
        extents(),
        strides("dst_strides"),
        strides("src_strides"),
    ),
    check=_check_unary,
    cost=_cost,
    accesses=_accesses,
    execute=lambda v, m: _unary({**v, "imm": v["mul"]}, m),
)


# --- two sources ---------------------------------------------------------------------------------

_OPERATOR: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "prelu": lambda a, b: np.where(a > 0, a, a * b),
}


def _binary(v: Values, machine: Memories) -> None:
    with np.errstate(all="ignore"):
        result = _OPERATOR[v["op"]](*_load(v, machine))
        _store(v, machine, result.astype(np.int32) if result.dtype == bool else result)


VBINARY = Instruction(
    "vbinary",
    0x31,
    "vector",
    "dst = op(src0, src1); comparisons give 1 or 0; prelu is src0 > 0 ? src0 : src0 * src1; max and min "
    "give NaN when a source is NaN.  At most one source is the immediate.",
    (
        u8("op", "operation", BINARY),
        u8("dst_dtype", "", DTYPES),
        u8("src0_dtype", "", SOURCES),
        u8("src1_dtype", "", SOURCES),
        f32("imm", "value of an immediate source", default=0.0),
        u32("dst", "byte address"),
        u32("src0", "byte address", default=0),
        u32("src1", "byte address", default=0),
        extents(),
        strides("dst_strides"),
        strides("src0_strides"),
        strides("src1_strides"),
    ),
    check=_check_elementwise,
    cost=_cost,
    accesses=_accesses,
    execute=_binary,
)


# --- three sources -------------------------------------------------------------------------------


def _ternary(v: Values, machine: Memories) -> None:
    with np.errstate(all="ignore"):
        a, b, c = _load(v, machine)
        result = {
            "muladd": lambda: a * b + c,
            "submul": lambda: (a - b) * c,
            "add3": lambda: a + b + c,
            "select": lambda: np.where(a != 0, b, c),
        }[v["op"]]()
    _store(v, machine, result)


VTERNARY = Instruction(
    "vternary",
    0x32,
    "vector",
    "muladd: src0 * src1 + src2 (the product is rounded); submul: (src0 - src1) * src2; add3: "
    "src0 + src1 + src2; select: src0 != 0 ? src1 : src2.  Immediate sources share one value.",
    (
        u8("op", "operation", TERNARY),
        u8("dst_dtype", "", DTYPES),
        u8("src0_dtype", "", SOURCES),
        u8("src1_dtype", "", SOURCES),
        u8("src2_dtype", "", SOURCES),
        f32("imm", "value of immediate sources", default=0.0),
        u32("dst", "byte address"),
        u32("src0", "byte address", default=0),
        u32("src1", "byte address", default=0),
        u32("src2", "byte address", default=0),
        extents(),
        strides("dst_strides"),
        strides("src0_strides"),
        strides("src1_strides"),
        strides("src2_strides"),
    ),
    check=_check_elementwise,
    cost=_cost,
    accesses=_accesses,
    execute=_ternary,
)


# --- reductions ----------------------------------------------------------------------------------


def kept(v: Values) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and destination strides of the result; reduced axes have extent 1, stride 0."""
    axes = [bool(v["axes"] >> i & 1) for i in range(4)]
    shape = tuple(1 if r else n for r, n in zip(axes, v["extents"], strict=True))
    return shape, tuple(0 if r else s for r, s in zip(axes, v["dst_strides"], strict=True))


def _check_reduce(v: Values, spec: NPUSpec) -> Iterator[str]:
    yield from _check(v, spec)
    if not 0 < v["axes"] < 16:
        yield f"axes must be a mask from 1 to 15, got {v['axes']}"
        return
    if any(s for i, s in enumerate(v["dst_strides"]) if v["axes"] >> i & 1):
        yield "dst_strides of reduced axes must be 0"
    if overlaps_itself(*kept(v), WIDTH[v["dst_dtype"]]):
        yield "the destination overlaps itself"


def _reduce_accesses(v: Values) -> list[Access]:
    shape, dst_strides = kept(v)
    written = Access("ub", v["dst"], shape, dst_strides, WIDTH[v["dst_dtype"]], True)
    before = [Access("ub", v["dst"], shape, dst_strides, WIDTH[v["dst_dtype"]], False)]
    return [_region(v, "src"), *(before if v["accumulate"] == "yes" else []), written]


def _reduce_cost(v: Values, spec: NPUSpec) -> Cost:
    plain = _cost(v, spec)
    return Cost(unit=plain.unit + math.ceil(math.log2(spec.vector_lanes)), ub=plain.ub)


def ordered_sum(rows: np.ndarray) -> np.ndarray:
    """Sum over the last axis in the order of the machine, f32 or int32."""
    n = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], -(-n // SUM_LANES) * SUM_LANES), rows.dtype)
    padded[..., :n] = rows
    parts = padded.reshape(*rows.shape[:-1], -1, SUM_LANES)
    sums = parts[..., 0, :].copy()
    for i in range(1, parts.shape[-2]):
        sums = sums + parts[..., i, :]
    width = SUM_LANES // 2
    while width:
        sums = sums[..., :width] + sums[..., width : 2 * width]
        width //= 2
    return sums[..., 0]


def _reduce(v: Values, machine: Memories) -> None:
    axes = [i for i in range(4) if v["axes"] >> i & 1]
    shape, dst_strides = kept(v)
    with np.errstate(all="ignore"):
        (x,) = _load(v, machine)
        x = np.moveaxis(x, axes, range(4 - len(axes), 4))
        x = x.reshape(*x.shape[: 4 - len(axes)], -1)
        op = v["op"]
        if op in ("sum", "sumsq"):
            result = ordered_sum(x * x if op == "sumsq" else x)
        else:
            result = x.min(-1) if op == "min" else (np.abs(x) if op == "absmax" else x).max(-1)
        result = result.reshape(shape)
        if v["accumulate"] == "yes":
            before = machine.read("ub", 0, v["dst"], shape, dst_strides, numpy_dtype(v["dst_dtype"]))
            combine = {"min": np.minimum, "max": np.maximum, "absmax": np.maximum}.get(op, np.add)
            wide = result.dtype if before.dtype.kind == "i" else np.dtype(np.float32)
            result = combine(before.astype(wide), result.astype(wide))
    machine.write("ub", 0, v["dst"], dst_strides, cast(result, v["dst_dtype"]))


VREDUCE = Instruction(
    "vreduce",
    0x33,
    "vector",
    "Reduce the axes of the mask (bit i: dimension i of extents) into dst, or onto what dst holds (in f32 "
    "when that or the source is no integer).  "
    "sumsq sums squares; absmax is the greatest magnitude; NaN wins in max and min.  Sums run over the "
    "reduced elements in order in 16 interleaved partial sums, folded by halves.",
    (
        u8("op", "reduction", REDUCE),
        u8("dst_dtype", "", DTYPES),
        u8("src_dtype", "", DTYPES),
        u8("axes", "mask of reduced dimensions; bit 3 is the innermost"),
        u8("accumulate", "onto dst", _NO_YES, default="no"),
        u32("dst", "byte address"),
        u32("src", "byte address"),
        extents("of the source"),
        strides("dst_strides", "of the result; 0 in reduced dimensions"),
        strides("src_strides"),
    ),
    check=_check_reduce,
    cost=_reduce_cost,
    accesses=_reduce_accesses,
    execute=_reduce,
)

INSTRUCTIONS = (VUNARY, VBINARY, VTERNARY, VREDUCE)
