"""Data movement: the DMA engines (load, gather, store) and L1 to the matrix operands (move, im2col)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hetero_tvm.machines.npu.banks import bank_cycles, granules
from hetero_tvm.machines.npu.spec import BANK_BYTES, NPUSpec
from hetero_tvm.targets.npu.isa.encoding import (
    Access,
    Cost,
    Instruction,
    Memories,
    Values,
    extents,
    i32,
    pads,
    size,
    strides,
    u8,
    u16,
    u32,
    u64,
)
from hetero_tvm.targets.npu.isa.overlap import overlaps_itself

_BOX = (
    extents("elements per dimension of the destination, padding included, outermost first"),
    strides("src_strides", "bytes per step in the source"),
    strides("dst_strides", "bytes per step in the destination"),
    pads("pad_low", "leading elements per dimension that are filled, not read"),
    pads("pad_high", "trailing elements per dimension that are filled, not read"),
    u32("fill", "bits of the fill element (its low bytes)", default=0),
)
_ELEMENT = u8("elem", "bytes per element: 1, 2 or 4")


def inner(v: Values) -> tuple[int, ...]:
    """Extents of the elements that are read: the box without its padding (an extent may be 0)."""
    return tuple(n - a - b for n, a, b in zip(v["extents"], v["pad_low"], v["pad_high"], strict=True))


def _check_box(v: Values, src: str, dst: str, spec: NPUSpec) -> Iterator[str]:
    width = v["elem"]
    if width not in (1, 2, 4):
        yield f"elem must be 1, 2 or 4 bytes, got {width}"
        return
    if any(n < 0 for n in inner(v)):
        yield "padding exceeds the extents"
    if v["fill"] >> 8 * width:
        yield f"fill 0x{v['fill']:x} does not fit {width} bytes"
    if overlaps_itself(v["extents"], v["dst_strides"], width):
        yield "the destination overlaps itself"
    for name, align in ((src, width), (dst, spec.alignment if v.get("dst_mem") in ("l0a", "l0b") else width)):
        if v[name] % align:
            yield f"{name} is misaligned: {v[name]} is not a multiple of {align}"
    for name in ("src_strides", "dst_strides"):
        if any(s % width for s in v[name]):
            yield f"{name} are misaligned: not multiples of {width}"


def _box_accesses(v: Values, src: tuple[str, int], dst: tuple[str, int]) -> list[Access]:
    written = Access(dst[0], v["dst"], v["extents"], v["dst_strides"], v["elem"], True, dst[1])
    if 0 in inner(v):
        return [written]
    return [Access(src[0], v["src"], inner(v), v["src_strides"], v["elem"], False, src[1]), written]


def _copy_box(v: Values, machine: Memories, src: tuple[str, int], dst: tuple[str, int]) -> None:
    dtype = np.dtype(f"u{v['elem']}")
    box = np.full(v["extents"], v["fill"], dtype)
    if 0 not in inner(v):
        pads_of = zip(v["extents"], v["pad_low"], v["pad_high"], strict=True)
        valid = tuple(slice(low, n - high) for n, low, high in pads_of)
        box[valid] = machine.read(*src, v["src"], inner(v), v["src_strides"], dtype)
    machine.write(*dst, v["dst"], v["dst_strides"], box)


def _read_granules(v: Values) -> int:
    return 0 if 0 in inner(v) else granules(inner(v), v["src_strides"], v["elem"])


def _box_banks(v: Values, which: str, bytes_per_cycle: int) -> float:
    if which == "dst":
        return bank_cycles(v["extents"], v["dst_strides"], v["elem"], bytes_per_cycle)
    return 0.0 if 0 in inner(v) else bank_cycles(inner(v), v["src_strides"], v["elem"], bytes_per_cycle)


# --- load: DRAM -> L1 or UB --------------------------------------------------------------------


def _load_cost(v: Values, spec: NPUSpec) -> Cost:
    moved = _read_granules(v) * BANK_BYTES
    if v["dst_mem"] == "l1":
        return Cost(dram_bytes=moved, l1=_box_banks(v, "dst", spec.l1_to_l0a))
    return Cost(dram_bytes=moved, ub=_box_banks(v, "dst", spec.ub_bytes_per_cycle))


LOAD = Instruction(
    "load",
    0x10,
    "dma_in",
    "Copy a box from DRAM to L1 or UB; padded elements are filled.  All padding: a fill.",
    (
        _ELEMENT,
        u8("dst_mem", "destination memory", ("l1", "ub")),
        u16("src_slot", "buffer slot of the source", default=0),
        u64("src", "byte offset in the slot of the first element that is read"),
        u32("dst", "byte address"),
        *_BOX,
    ),
    check=lambda v, spec: _check_box(v, "src", "dst", spec),
    cost=_load_cost,
    accesses=lambda v: _box_accesses(v, ("dram", v["src_slot"]), (v["dst_mem"], 0)),
    execute=lambda v, m: _copy_box(v, m, ("dram", v["src_slot"]), (v["dst_mem"], 0)),
)


# --- store: UB -> DRAM or L1 -------------------------------------------------------------------


def _store_cost(v: Values, spec: NPUSpec) -> Cost:
    ub = _box_banks(v, "src", spec.ub_bytes_per_cycle)
    moved = granules(v["extents"], v["dst_strides"], v["elem"]) * BANK_BYTES
    if v["dst_mem"] == "dram":
        return Cost(dram_bytes=moved, ub=ub)
    wider = max(moved, _read_granules(v) * BANK_BYTES)
    return Cost(unit=wider / spec.l0c_to_ub, l1=_box_banks(v, "dst", spec.l1_to_l0a), ub=ub)


STORE = Instruction(
    "store",
    0x11,
    "dma_out",
    "Copy a box from UB to DRAM or L1; padded elements are filled.",
    (
        _ELEMENT,
        u8("dst_mem", "destination memory", ("dram", "l1")),
        u16("dst_slot", "buffer slot of a destination in DRAM", default=0),
        u32("src", "byte address of the first element that is read"),
        u64("dst", "byte offset in the slot, or byte address in L1"),
        *_BOX,
    ),
    check=lambda v, spec: _check_store(v, spec),
    cost=_store_cost,
    accesses=lambda v: _box_accesses(v, ("ub", 0), (v["dst_mem"], v["dst_slot"])),
    execute=lambda v, m: _copy_box(v, m, ("ub", 0), (v["dst_mem"], v["dst_slot"])),
)


def _check_store(v: Values, spec: NPUSpec) -> Iterator[str]:
    yield from _check_box(v, "src", "dst", spec)
    if v["dst_mem"] == "l1" and v["dst_slot"]:
        yield "dst_slot must be 0 for a destination in L1"


# --- move: L1 -> L0A or L0B --------------------------------------------------------------------


def _path(memory: str, spec: NPUSpec) -> int:
    return spec.l1_to_l0a if memory == "l0a" else spec.l1_to_l0b


def _move_cost(v: Values, spec: NPUSpec) -> Cost:
    pieces = max(_read_granules(v), granules(v["extents"], v["dst_strides"], v["elem"]))
    return Cost(unit=pieces * BANK_BYTES / _path(v["dst_mem"], spec), l1=_box_banks(v, "src", spec.l1_to_l0a))


MOVE = Instruction(
    "move",
    0x12,
    "move",
    "Copy a box from L1 to an operand buffer of the matrix unit; padded elements are filled.",
    (
        _ELEMENT,
        u8("dst_mem", "destination memory", ("l0a", "l0b")),
        u32("src", "byte address in L1 of the first element that is read"),
        u32("dst", "byte address, aligned to the spec's alignment"),
        *_BOX,
    ),
    check=lambda v, spec: _check_box(v, "src", "dst", spec),
    cost=_move_cost,
    accesses=lambda v: _box_accesses(v, ("l1", 0), (v["dst_mem"], 0)),
    execute=lambda v, m: _copy_box(v, m, ("l1", 0), (v["dst_mem"], 0)),
)


# --- im2col: L1 -> L0A, the patches of a convolution --------------------------------------------


def _patch_run(v: Values) -> int:
    """Contiguous bytes of one patch row: a kernel row when pixels are packed and not dilated."""
    pixel = v["channels"] * v["elem"]
    return pixel * v["kernel_w"] if v["pixel_pitch"] == pixel and v["dilation_w"] == 1 else pixel


def _im2col_cost(v: Values, spec: NPUSpec) -> Cost:
    row = v["k"] * v["elem"]
    run = _patch_run(v)
    pieces = v["m"] * max(-(-row // BANK_BYTES), -(-row // run) * -(-min(run, row) // BANK_BYTES))
    return Cost(unit=pieces * BANK_BYTES / spec.l1_to_l0a, l1=pieces * BANK_BYTES / spec.l1_to_l0a)


def _check_im2col(v: Values, spec: NPUSpec) -> Iterator[str]:
    width = v["elem"]
    if width not in (1, 2, 4):
        yield f"elem must be 1, 2 or 4 bytes, got {width}"
        return
    if v["fill"] >> 8 * width:
        yield f"fill 0x{v['fill']:x} does not fit {width} bytes"
    aligned = dict.fromkeys(("src", "row_pitch", "pixel_pitch", "dst_pitch"), width)
    for name, align in (aligned | {"dst": spec.alignment}).items():
        if v[name] % align:
            yield f"{name} is misaligned: {v[name]} is not a multiple of {align}"
    if v["m"] > 1 and v["dst_pitch"] < v["k"] * width:
        yield "the destination overlaps itself: dst_pitch is less than a row"
    taps = v["kernel_h"] * v["kernel_w"] * v["channels"]
    if v["k_start"] + v["k"] > taps:
        yield f"k_start + k is {v['k_start'] + v['k']}, a patch has {taps} elements"


def _im2col_accesses(v: Values) -> list[Access]:
    first, count = v["k_start"] % v["channels"], v["k"]
    if first + count > v["channels"]:
        first, count = 0, v["channels"]
    image = Access(
        "l1",
        v["src"] + first * v["elem"],
        (v["height"], v["width"]),
        (v["row_pitch"], v["pixel_pitch"]),
        count * v["elem"],
        False,
    )
    return [image, Access("l0a", v["dst"], (v["m"],), (v["dst_pitch"],), v["k"] * v["elem"], True)]


def _im2col(v: Values, machine: Memories) -> None:
    dtype = np.dtype(f"u{v['elem']}")
    m = v["m_start"] + np.arange(v["m"])[:, None]
    k = v["k_start"] + np.arange(v["k"])[None, :]
    tap, channel = k // v["channels"], k % v["channels"]
    y = m // v["out_width"] * v["stride_h"] - v["pad_top"] + tap // v["kernel_w"] * v["dilation_h"]
    x = m % v["out_width"] * v["stride_w"] - v["pad_left"] + tap % v["kernel_w"] * v["dilation_w"]
    inside = (y >= 0) & (y < v["height"]) & (x >= 0) & (x < v["width"])
    patches = np.full(inside.shape, v["fill"], dtype)
    where = v["src"] + y * v["row_pitch"] + x * v["pixel_pitch"] + channel * v["elem"]
    for index in zip(*np.nonzero(inside), strict=True):
        patches[index] = machine.read("l1", 0, int(where[index]), (), (), dtype)
    machine.write("l0a", 0, v["dst"], (v["dst_pitch"], v["elem"]), patches)


IM2COL = Instruction(
    "im2col",
    0x13,
    "move",
    "Write rows m_start... of the patch matrix of an image in L1 (height, width, channels) to L0A.  "
    "Row m is the output pixel (m // out_width, m % out_width); column k is (tap row, tap column, "
    "channel), channel fastest.  Taps outside of the image are filled.  Every pixel counts as read for data "
    "races and must be written: of its channels those of the columns, when they are of one tap, or else all.",
    (
        u8("elem", "bytes per element: 1, 2 or 4"),
        u32("src", "byte address in L1 of pixel (0, 0)"),
        size("height", "rows of the image in L1"),
        size("width", "pixels per row"),
        size("channels", "channels per pixel, contiguous"),
        u32("row_pitch", "bytes from row to row"),
        u32("pixel_pitch", "bytes from pixel to pixel"),
        u16("kernel_h", "taps"),
        u16("kernel_w", "taps"),
        u16("stride_h", "rows per output row", default=1),
        u16("stride_w", "pixels per output", default=1),
        u16("dilation_h", "rows per tap", default=1),
        u16("dilation_w", "pixels per tap", default=1),
        i32("pad_top", "rows of padding above row 0", default=0),
        i32("pad_left", "pixels of padding before pixel 0", default=0),
        size("out_width", "output pixels per output row"),
        u32("m_start", "first output pixel", default=0),
        size("m", "rows to write"),
        u32("k_start", "first column", default=0),
        size("k", "columns to write"),
        u32("dst", "byte address in L0A, aligned to the spec's alignment"),
        u32("dst_pitch", "bytes from row to row in L0A"),
        u32("fill", "bits of the fill element", default=0),
    ),
    check=_check_im2col,
    cost=_im2col_cost,
    accesses=_im2col_accesses,
    execute=_im2col,
)


# --- gather: rows of a table in DRAM, by indices in UB -------------------------------------------


def _check_gather(v: Values, spec: NPUSpec) -> Iterator[str]:
    if v["indices"] % 4:
        yield f"indices is misaligned: {v['indices']} is not a multiple of 4"
    if v["count"] > 1 and v["dst_pitch"] < v["row_bytes"]:
        yield "the destination overlaps itself: dst_pitch is less than a row"


def _gather_cost(v: Values, spec: NPUSpec) -> Cost:
    rows, width = v["count"], v["row_bytes"]
    moved = granules((rows,), (max(v["src_pitch"], width + 1),), width) * BANK_BYTES
    if v["dst_mem"] == "l1":
        return Cost(dram_bytes=moved, l1=bank_cycles((rows,), (v["dst_pitch"],), width, spec.l1_to_l0a))
    return Cost(dram_bytes=moved, ub=bank_cycles((rows,), (v["dst_pitch"],), width, spec.ub_bytes_per_cycle))


def _gather_accesses(v: Values) -> list[Access]:
    table = Access("dram", v["src"], (v["rows"],), (v["src_pitch"],), v["row_bytes"], False, v["src_slot"])
    return [
        Access("ub", v["indices"], (v["count"],), (4,), 4, False),
        table,
        Access(v["dst_mem"], v["dst"], (v["count"],), (v["dst_pitch"],), v["row_bytes"], True),
    ]


def _gather(v: Values, machine: Memories) -> None:
    rows = machine.read("ub", 0, v["indices"], (v["count"],), (4,), np.dtype("i4"))
    if ((rows < 0) | (rows >= v["rows"])).any():
        raise IndexError(f"index out of range: the table has {v['rows']} rows")
    for i, row in enumerate(rows.tolist()):
        data = machine.read(
            "dram", v["src_slot"], v["src"] + row * v["src_pitch"], (v["row_bytes"],), (1,), np.dtype("u1")
        )
        machine.write(v["dst_mem"], 0, v["dst"] + i * v["dst_pitch"], (1,), data)


GATHER = Instruction(
    "gather",
    0x14,
    "dma_in",
    "Copy the rows of a table in DRAM that int32 indices in UB name.  The whole table counts as read "
    "for data races and must be written.",
    (
        u8("dst_mem", "destination memory", ("l1", "ub")),
        u16("src_slot", "buffer slot of the table", default=0),
        u64("src", "byte offset of row 0"),
        u32("src_pitch", "bytes from row to row"),
        size("rows", "rows of the table; other indices are a fault", 1 << 28),
        size("row_bytes", "bytes to copy of each row"),
        u32("indices", "byte address in UB, int32, contiguous"),
        size("count", "rows to copy"),
        u32("dst", "byte address"),
        u32("dst_pitch", "bytes from row to row"),
    ),
    check=_check_gather,
    cost=_gather_cost,
    accesses=_gather_accesses,
    execute=_gather,
)

INSTRUCTIONS = (LOAD, STORE, MOVE, IM2COL, GATHER)
