"""Data movement of the simulator against the NumPy semantics, byte for byte."""

import numpy as np
import pytest

from hetero_tvm.targets.npu.device.driver import DriverError
from hetero_tvm.targets.npu.isa.stream import Builder
from tests.targets.npu.isa import programs

SLOT = 16384


def box(rng):
    """A random padded box: extents, the strides of both sides, and the bytes that each spans."""
    width = int(rng.choice([1, 2, 4]))
    extents = [int(rng.choice([1, 2, 3, 5, 8, 19])) for _ in range(4)]
    while np.prod(extents) > 1500:
        extents[int(rng.integers(4))] = 1
    low = [int(rng.integers(0, n + 1)) * int(rng.random() < 0.3) for n in extents]
    left = [n - a for n, a in zip(extents, low, strict=True)]
    high = [int(rng.integers(0, n + 1)) * int(rng.random() < 0.3) for n in left]

    def strides(nested):
        result, span = [0] * 4, width
        for d in rng.permutation(4):
            result[d] = span + width * int(rng.integers(0, 2))
            span = result[d] * extents[d]
        if not nested and rng.random() < 0.3:
            result[int(rng.integers(4))] = 0
        return tuple(result), span + width

    src, src_span = strides(nested=False)
    dst, dst_span = strides(nested=True)
    fill = int(rng.integers(0, 1 << 8 * width))
    fields = {"elem": width, "extents": extents, "src_strides": src, "dst_strides": dst, "fill": fill}
    return fields | {"pad_low": low, "pad_high": high}, src_span, dst_span


def boxes(seed, count):
    rng = np.random.default_rng(seed)
    while count:
        fields, src_span, dst_span = box(rng)
        if max(src_span, dst_span) <= SLOT:
            count -= 1
            yield rng, fields


def identity_out(builder, bytes_in_l0a, out):
    """Bytes of L0A, rows of 32 at pitch 32, through the matrix unit (times one) and UB to a slot."""
    eye = np.eye(32, dtype=np.int8)
    slot = builder.slot("eye", eye.nbytes, "constant")
    programs.load_all(builder, slot, "l1", eye.nbytes, dst=200 * 1024)
    builder.emit("barrier")
    builder.emit("move", elem=1, dst_mem="l0b", src=200 * 1024, dst=0, **programs.contiguous(1024, 1))
    builder.emit("barrier")
    rows = bytes_in_l0a // 32
    for at in range(0, rows, 128):
        m = min(128, rows - at)
        tiles = {"a": at * 32, "a_pitch": 32, "b": 0, "b_pitch": 32, "c": 0, "c_pitch": 128}
        builder.emit("mmad", dtype="i8", m=m, n=32, k=32, **tiles)
        builder.emit("barrier")
        builder.emit(
            "move_out",
            src_dtype="i32",
            dst_dtype="i8",
            m=m,
            n=32,
            c=0,
            c_pitch=128,
            dst=at * 32,
            row_stride=32,
            column_stride=1,
        )
        builder.emit("barrier")
    programs.store_all(builder, out, bytes_in_l0a)
    return {"eye": eye}


def check(builder, arrays):
    stream = builder.finish()
    got = programs.simulate(stream, arrays).outputs
    for name, expected in programs.reference(stream, arrays).items():
        assert (got[name] == expected).all()
    return got


def test_load_to_ub_and_store_to_dram():
    for rng, fields in boxes(1, 60):
        image = rng.integers(0, 256, SLOT).astype(np.uint8)
        blank = np.full(SLOT, 0xAB, np.uint8)
        builder = Builder()
        source, empty = builder.slot("x", SLOT, "input"), builder.slot("blank", SLOT, "input")
        out = builder.slot("y", SLOT, "output")
        programs.load_all(builder, empty, "ub", SLOT)
        builder.emit("load", dst_mem="ub", src_slot=source, src=0, dst=0, **fields)
        builder.emit("barrier")
        programs.store_all(builder, out, SLOT)
        builder.emit("store", dst_mem="dram", dst_slot=out, src=0, dst=0, **fields)
        got = check(builder, {"x": image, "blank": blank, "y": ((SLOT,), "u1")})
        assert not (got["y"] == blank).all()


def test_through_l1_and_l0a():
    for rng, fields in boxes(2, 40):
        image = rng.integers(0, 256, SLOT).astype(np.uint8)
        builder = Builder()
        source, out = builder.slot("x", SLOT, "input"), builder.slot("y", SLOT, "output")
        programs.load_all(builder, source, "l1", SLOT)
        programs.load_all(builder, source, "l1", SLOT, dst=SLOT)
        programs.load_all(builder, source, "ub", SLOT)
        builder.emit("load", dst_mem="l1", src_slot=source, src=0, dst=SLOT, **fields)
        builder.emit("barrier")
        builder.emit("store", dst_mem="l1", src=0, dst=0, **fields)
        builder.emit("barrier")
        half = SLOT // 2
        builder.emit("move", elem=1, dst_mem="l0a", src=0, dst=0, **programs.contiguous(half, 1))
        builder.emit("move", elem=1, dst_mem="l0a", src=SLOT, dst=half, **programs.contiguous(half, 1))
        arrays = {"x": image, "y": ((SLOT,), "u1")} | identity_out(builder, SLOT, out)
        check(builder, arrays)


def test_move_with_strides_and_padding():
    for rng, fields in boxes(3, 40):
        image = rng.integers(0, 256, SLOT).astype(np.uint8)
        builder = Builder()
        source, out = builder.slot("x", SLOT, "input"), builder.slot("y", SLOT, "output")
        programs.load_all(builder, source, "l1", SLOT)
        builder.emit("barrier")
        builder.emit("move", elem=1, dst_mem="l0a", src=0, dst=0, **programs.contiguous(SLOT, 1))
        builder.emit("move", dst_mem="l0a", src=0, dst=0, **fields)
        check(builder, {"x": image, "y": ((SLOT,), "u1")} | identity_out(builder, SLOT, out))


def im2col_rows(image, kernel, stride, dilation, pad):
    """Patches by NumPy slicing: (pixels, kernel_h * kernel_w * channels), and the output width."""
    (kh, kw), c = kernel, image.shape[2]
    padded = np.pad(image, ((pad[0], pad[0]), (pad[1], pad[1]), (0, 0)))
    out_h = (padded.shape[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    out_w = (padded.shape[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    rows = np.empty((out_h, out_w, kh, kw, c), image.dtype)
    for y in range(kh):
        for x in range(kw):
            part = padded[y * dilation[0] :, x * dilation[1] :]
            rows[:, :, y, x] = part[: out_h * stride[0] : stride[0], : out_w * stride[1] : stride[1]]
    return rows.reshape(out_h * out_w, -1), out_w


@pytest.mark.parametrize(
    "kernel,stride,dilation,pad,channels",
    [
        ((3, 3), (1, 1), (1, 1), (1, 1), 4),
        ((3, 3), (2, 2), (1, 1), (0, 1), 5),
        ((1, 1), (1, 1), (1, 1), (0, 0), 8),
        ((2, 3), (1, 2), (2, 2), (2, 3), 3),
        ((7, 7), (2, 2), (1, 1), (3, 3), 1),
    ],
)
def test_im2col(kernel, stride, dilation, pad, channels):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (11, 13, channels)).astype(np.uint8)
    rows, out_w = im2col_rows(image, kernel, stride, dilation, pad)
    m_start, k_start = 3, min(2, rows.shape[1] - 1)
    part = rows[m_start : m_start + 100, k_start : k_start + 32]
    m, k = part.shape
    builder = Builder()
    source, blank = builder.slot("x", image.nbytes, "input"), builder.slot("blank", m * 32, "input")
    out = builder.slot("y", m * 32, "output")
    programs.load_all(builder, source, "l1", image.nbytes)
    programs.load_all(builder, blank, "l1", m * 32, dst=SLOT)
    builder.emit("barrier")
    builder.emit("move", elem=1, dst_mem="l0a", src=SLOT, dst=0, **programs.contiguous(m * 32, 1))
    builder.emit(
        "im2col",
        elem=1,
        src=0,
        height=11,
        width=13,
        channels=channels,
        row_pitch=13 * channels,
        pixel_pitch=channels,
        kernel_h=kernel[0],
        kernel_w=kernel[1],
        stride_h=stride[0],
        stride_w=stride[1],
        dilation_h=dilation[0],
        dilation_w=dilation[1],
        pad_top=pad[0],
        pad_left=pad[1],
        out_width=out_w,
        m_start=m_start,
        m=m,
        k_start=k_start,
        k=k,
        dst=0,
        dst_pitch=32,
    )
    arrays = {"x": image, "blank": np.zeros((m, 32), "u1"), "y": ((m, 32), "u1")}
    arrays |= identity_out(builder, m * 32, out)
    assert (check(builder, arrays)["y"][:, :k] == part).all()


def gather(indices, rows=50):
    table = np.random.default_rng(0).integers(0, 256, (50, 24)).astype(np.uint8)
    indices = np.asarray(indices, "i4")
    builder = Builder()
    index, source = builder.slot("i", indices.nbytes, "input"), builder.slot("x", table.nbytes, "constant")
    out = builder.slot("y", len(indices) * 20, "output")
    programs.load_all(builder, index, "ub", indices.nbytes)
    builder.emit(
        "gather",
        dst_mem="ub",
        src_slot=source,
        src=2,
        src_pitch=24,
        rows=rows,
        row_bytes=20,
        indices=0,
        count=len(indices),
        dst=1024,
        dst_pitch=20,
    )
    builder.emit("barrier")
    programs.store_all(builder, out, len(indices) * 20, src=1024)
    return builder, {"i": indices, "x": table, "y": ((len(indices), 20), "u1")}


def test_gather():
    indices = [3, 49, 0, 3, 17]
    builder, arrays = gather(indices)
    assert (check(builder, arrays)["y"] == arrays["x"][indices, 2:22]).all()


@pytest.mark.parametrize("index", [-1, 50, 2**31 - 1])
def test_gather_refuses_an_index_out_of_range(index):
    builder, arrays = gather([0, index])
    with pytest.raises(DriverError, match=f"instruction 1 .*gather.*index {index} .*50 rows"):
        programs.simulate(builder.finish(), arrays)
