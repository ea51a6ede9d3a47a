"""Vector instructions of the simulator against the NumPy semantics: exact ones bit by bit."""

import numpy as np
import pytest

from hetero_tvm.machines.npu.numbers import DTYPES, cast, numpy_dtype
from hetero_tvm.targets.npu.isa.vector import BINARY, REDUCE, TERNARY, TRANSCENDENTAL, UNARY
from tests.targets.npu.isa import programs

AREA = programs.UB // 4
DST = 3 * AREA


def region(rng, extents, width, nested=True):
    """Random strides within an area: contiguous, padded, transposed, (for sources) broadcast."""
    order = list(rng.permutation(4))
    strides, span = [0] * 4, width
    for d in order:
        strides[d] = span + width * int(rng.integers(0, 3)) * int(rng.random() < 0.3)
        span = strides[d] * extents[d]
    if not nested:
        strides = [0 if rng.random() < 0.2 else s for s in strides]
    return tuple(strides), span


def shape(rng):
    while True:
        extents = tuple(int(rng.choice([1, 2, 3, 7, 16, 33, 600])) for _ in range(4))
        if np.prod(extents) <= 900:
            return extents


def case(rng, sources, dst_dtype, dtypes):
    """Fields of operands, and an image with numbers of the right dtype in each area."""
    while True:
        extents = shape(rng)
        fields = {"extents": extents, "dst": DST, "dst_dtype": dst_dtype}
        image = rng.integers(0, 60, programs.UB).astype(np.uint8)
        fields["dst_strides"], span = region(rng, extents, programs.width(dst_dtype))
        spans = [span]
        for i, (name, dtype) in enumerate(zip(sources, dtypes, strict=True)):
            fields[f"{name}_dtype"] = dtype
            if dtype == "imm":
                continue
            values = programs.numbers(rng, dtype, AREA // programs.width(dtype))
            image[i * AREA : (i + 1) * AREA] = values.view(np.uint8)
            fields[name] = i * AREA
            fields[f"{name}_strides"], span = region(rng, extents, programs.width(dtype), nested=False)
            spans.append(span)
        if max(spans) <= AREA:
            return fields, image


def compare(name, fields, image):
    got, expected = programs.ub_after(lambda b: b.emit(name, **fields), image)
    dtype = numpy_dtype(fields["dst_dtype"])
    assert (got[:DST] == expected[:DST]).all()
    got, expected = got[DST:].view(dtype), expected[DST:].view(dtype)
    if dtype.kind == "i":
        assert (got == expected).all()
        return
    # The bytes around the result are arbitrary numbers too.
    got, expected = got.astype("f4"), expected.astype("f4")
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    if fields["op"] in TRANSCENDENTAL - {"div", "sqrt", "rsqrt", "reciprocal"}:
        # libm's f32 functions are within 4 ulp; one more rounding to a narrow dtype.
        ulp = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-21}[fields["dst_dtype"]]
        tiny = 2.0**-24 if fields["dst_dtype"] == "f16" else 1e-37
        finite = np.isfinite(got) & np.isfinite(expected)
        off = np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0))
        same |= finite & (off <= ulp * np.abs(expected) + tiny)
    assert same.all(), (fields, got[~same][:4], expected[~same][:4])


@pytest.mark.parametrize("op", UNARY)
def test_vunary(op):
    rng = np.random.default_rng(len(op) * 7 + ord(op[0]))
    for _ in range(12):
        src, dst = rng.choice(DTYPES), rng.choice(DTYPES)
        if op in TRANSCENDENTAL:
            # An integer result may differ by a whole one where the function is near a half.
            src, dst = rng.choice(DTYPES[:3]), rng.choice(DTYPES[:3])
        fields, image = case(rng, ["src"], str(dst), [str(src)])
        if rng.random() < 0.3:
            fields |= {"mul": 0.25, "add": -1.5}
        compare("vunary", fields | {"op": op}, image)


@pytest.mark.parametrize("op", BINARY)
def test_vbinary(op):
    rng = np.random.default_rng(len(op) * 11 + ord(op[1]))
    for _ in range(16):
        dtypes = [str(rng.choice(DTYPES)), str(rng.choice([*DTYPES, "imm"]))]
        if rng.random() < 0.5:
            dtypes.reverse()
        fields, image = case(rng, ["src0", "src1"], str(rng.choice(DTYPES)), dtypes)
        compare("vbinary", fields | {"op": op, "imm": float(rng.choice([3.0, -0.7, 2.5]))}, image)


@pytest.mark.parametrize("op", TERNARY)
def test_vternary(op):
    rng = np.random.default_rng(ord(op[0]))
    for _ in range(20):
        dtypes = [str(rng.choice(DTYPES)), str(rng.choice([*DTYPES, "imm"])), str(rng.choice(DTYPES))]
        fields, image = case(rng, ["src0", "src1", "src2"], str(rng.choice(DTYPES)), dtypes)
        compare("vternary", fields | {"op": op, "imm": 1.75}, image)


@pytest.mark.parametrize("op", REDUCE)
def test_vreduce(op):
    rng = np.random.default_rng(ord(op[-1]))
    for _ in range(24):
        fields, image = case(rng, ["src"], str(rng.choice(DTYPES)), [str(rng.choice(DTYPES))])
        axes = int(rng.integers(1, 16))
        strides = [0 if axes >> i & 1 else s for i, s in enumerate(fields["dst_strides"])]
        fields |= {"op": op, "axes": axes, "dst_strides": tuple(strides)}
        compare("vreduce", fields | {"accumulate": str(rng.choice(["no", "yes"]))}, image)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_nan_and_infinity(dtype):
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 65519.0, 65520.0, 5e-8, 0.0] * 8, "f4")
    image = np.zeros(programs.UB, np.uint8)
    image[: values.nbytes] = values.view(np.uint8)
    image[AREA : AREA + values.nbytes] = values[::-1].copy().view(np.uint8)
    count, step = len(values), programs.width(dtype)
    f32 = {"src0_strides": (4,), "src1_strides": (4,), "src0_dtype": "f32", "src1_dtype": "f32"}
    for op in ("max", "min", "add", "div", "lt", "ne"):
        fields = {"op": op, "src0": 0, "src1": AREA, "dst": DST, "dst_dtype": dtype, "dst_strides": (step,)}
        compare("vbinary", fields | f32 | {"extents": (count,)}, image)
    unary = {"src": 0, "src_dtype": "f32", "src_strides": (4,), "dst": DST, "extents": (count,)}
    for op in ("copy", "relu", "exp", "rsqrt", "sigmoid", "tanh", "erf"):
        compare("vunary", unary | {"op": op, "dst_dtype": dtype, "dst_strides": (step,)}, image)
    for integer in ("i8", "i32"):
        fields = {"op": "copy", "dst_dtype": integer, "dst_strides": (programs.width(integer),)}
        compare("vunary", unary | fields, image)
    for op in ("max", "min", "absmax", "sum"):
        fields = {"op": op, "axes": 8, "dst_dtype": dtype, "dst_strides": (step, 0), "extents": (9, 8)}
        compare("vreduce", unary | fields | {"src_strides": (32, 4)}, image)


@pytest.mark.parametrize("op", REDUCE)
def test_integers_reduced_onto_floats(op):
    """Whatever lies there, what no int32 holds among it."""
    image = np.zeros(programs.UB, np.uint8)
    image[:24] = np.array([5, -7, 2**31 - 1, 3, -(2**31), 9], "i4").view(np.uint8)
    image[DST : DST + 24] = np.array([np.nan, np.inf, -np.inf, 3e38, 0.25, -4.5e9], "f4").view(np.uint8)
    fields = {"src": 0, "src_dtype": "i32", "src_strides": (4, 4), "dst": DST, "dst_dtype": "f32"}
    fields |= {"extents": (6, 1), "dst_strides": (4, 0), "axes": 8, "accumulate": "yes"}
    compare("vreduce", fields | {"op": op}, image)


def test_all_f16_values_survive_and_round():
    every = np.arange(1 << 15, dtype=np.uint16)  # the other half differs by the sign
    image = np.zeros(programs.UB, np.uint8)
    image[: 2 * len(every)] = every.view(np.uint8)
    fields = {"op": "copy", "src": 0, "src_dtype": "f16", "src_strides": (2,), "extents": (1 << 14,)}
    for half in (0, 1 << 15):
        got, _ = programs.ub_after(
            lambda b, at=half: b.emit(
                "vunary",
                **fields | {"src": at, "dst": 0 if at else 1 << 15},
                dst_dtype="bf16",
                dst_strides=(2,),
            ),
            image,
        )
        at = 0 if half else 1 << 15
        values = every.view(np.float16)[half // 2 : half // 2 + (1 << 14)].astype("f4")
        result = got[at : at + (1 << 15)].view(numpy_dtype("bf16")).astype("f4")
        expected = cast(values, "bf16").astype("f4")
        assert ((result == expected) | (np.isnan(result) & np.isnan(expected))).all()


def test_quantize_and_dequantize():
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(300) * 3).astype("f4")
    x[:4] = [0.125, 0.375, 100.0, -100.0]  # halves round to even; saturation
    image = np.zeros(programs.UB, np.uint8)
    image[: x.nbytes] = x.view(np.uint8)

    def program(b):
        b.emit(
            "vunary",
            op="copy",
            mul=4.0,
            add=0.0,
            src=0,
            src_dtype="f32",
            src_strides=(4,),
            dst=AREA,
            dst_dtype="i8",
            dst_strides=(1,),
            extents=(300,),
        )
        b.emit(
            "vunary",
            op="copy",
            mul=0.25,
            src=AREA,
            src_dtype="i8",
            src_strides=(1,),
            dst=DST,
            dst_dtype="f32",
            dst_strides=(4,),
            extents=(300,),
        )

    got, expected = programs.ub_after(program, image)
    assert (got == expected).all()
    quantized = np.clip(np.rint(x * np.float32(4)), -128, 127)
    assert (got[AREA : AREA + 300].view("i1") == quantized).all()
    assert (got[DST : DST + 1200].view("f4") == quantized / 4).all()
