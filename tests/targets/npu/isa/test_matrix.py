"""The matrix unit of the simulator: integers bit by bit, floats in the machine's order of sums."""

import numpy as np
import pytest

from hetero_tvm.machines.npu.numbers import DTYPES, cast, numpy_dtype
from hetero_tvm.targets.npu.isa.stream import Builder
from tests.targets.npu.isa import programs

L1_B = 64 * 1024


SHAPES = [(1, 1, 1), (16, 16, 16), (17, 33, 40), (13, 70, 5), (1, 64, 33), (50, 1, 31)]


def product(dtype, m, n, k, a_transposed, b_transposed, out, accumulate=False, rows=None, **move_out):
    """A program C = A B (twice onto itself when accumulating), moved out to UB and stored; ``rows`` come to
    where ``move_out`` expects its residual."""
    w = programs.width(dtype)
    builder = Builder()
    a, b = builder.slot("a", m * k * w, "input"), builder.slot("b", k * n * w, "input")
    extra = builder.slot("columns", 8 * n, "input")
    c = builder.slot("c", m * n * programs.width(out), "output")
    programs.load_all(builder, a, "l1", m * k * w)
    programs.load_all(builder, b, "l1", k * n * w, dst=L1_B)
    programs.load_all(builder, extra, "ub", 8 * n)
    if rows is not None:
        slot = builder.slot("rows", rows.nbytes, "input")
        programs.load_all(builder, slot, move_out["residual_mem"], rows.nbytes, dst=move_out["residuals"])
    builder.emit("barrier")
    a_rows, a_row = (k, m * w) if a_transposed else (m, k * w)
    b_rows, b_row = (n, k * w) if b_transposed else (k, n * w)
    a_pitch, b_pitch = a_row + 2 * w, b_row + w
    tiles = (("l0a", 0, a_rows, a_row, a_pitch), ("l0b", L1_B, b_rows, b_row, b_pitch))
    for memory, src, rows, row, pitch in tiles:
        builder.emit(
            "move",
            elem=w,
            dst_mem=memory,
            src=src,
            dst=32,
            extents=(rows, row // w),
            src_strides=(row, w),
            dst_strides=(pitch, w),
        )
    builder.emit("barrier")
    for again in range(2 if accumulate else 1):
        builder.emit(
            "mmad",
            dtype=dtype,
            accumulate="yes" if again else "no",
            m=m,
            n=n,
            k=k,
            a_transposed="yes" if a_transposed else "no",
            b_transposed="yes" if b_transposed else "no",
            a=32,
            a_pitch=a_pitch,
            b=32,
            b_pitch=b_pitch,
            c=64,
            c_pitch=4 * n + 8,
        )
    builder.emit("barrier")
    fields = {"src_dtype": "i32" if dtype == "i8" else "f32", "dst_dtype": out, "c": 64, "c_pitch": 4 * n + 8}
    fields |= {"dst": 8192, "row_stride": n * programs.width(out), "column_stride": programs.width(out)}
    builder.emit("move_out", m=m, n=n, **fields | move_out)
    builder.emit("barrier")
    programs.store_all(builder, c, m * n * programs.width(out), src=8192)
    return builder.finish()


def operands(dtype, m, n, k, a_transposed=False, b_transposed=False, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((k, m) if a_transposed else (m, k), (n, k) if b_transposed else (k, n))
    if dtype == "i8":
        return [rng.integers(-128, 128, shape).astype("i1") for shape in shapes]
    return [rng.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i8"])
@pytest.mark.parametrize("m,n,k", SHAPES)
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_mmad(dtype, m, n, k, a_transposed, b_transposed):
    out = "i32" if dtype == "i8" else "f32"
    stream = product(dtype, m, n, k, a_transposed, b_transposed, out, accumulate=True)
    a, b = operands(dtype, m, n, k, a_transposed, b_transposed)
    arrays = {"a": a, "b": b, "columns": np.zeros(8 * n, "u1"), "c": ((m, n), numpy_dtype(out))}
    got = programs.simulate(stream, arrays).outputs["c"]
    # Products of f16 and bf16 are exact, so the order of sums decides every bit.
    assert (got == programs.reference(stream, arrays)["c"]).all()
    wide_a, wide_b = (x.astype("f8") for x in (a.T if a_transposed else a, b.T if b_transposed else b))
    assert np.allclose(got, 2 * (wide_a @ wide_b), rtol=1e-5, atol=1e-4 * k**0.5)


def test_int8_sums_of_extreme_values_are_exact():
    m, n, k = 3, 2, 2100
    a, b = np.full((m, k), -128, "i1"), np.full((k, n), -128, "i1")
    stream = product("i8", m, n, k, False, False, "i32", accumulate=True)
    got = programs.simulate(stream, {"a": a, "b": b, "columns": np.zeros(8 * n, "u1"), "c": ((m, n), "i4")})
    assert (got.outputs["c"] == 2 * 128 * 128 * k).all()


@pytest.mark.parametrize("out", ["f32", "bf16", "i8"])
def test_products_beyond_f32_and_nan(out):
    """Every step is rounded once, as a fused multiply-add does; NaN counts as 0 before the zero point."""
    m, n, k = 4, 3, 3
    a = np.array([[3e38, 3e38, 1], [1e-30, -1e-30, 0], [np.inf, np.inf, 1], [np.nan, 0, 0]])
    b = np.array([[3e38, 3e38, 1e-12], [-3e38, 3e38, 1e-12], [1, -np.inf, -np.inf]])
    a, b = (x.astype(numpy_dtype("bf16")) for x in (a, b))
    stream = product("bf16", m, n, k, False, False, out, zero_point=5 if out == "i8" else 0)
    arrays = {"a": a, "b": b, "columns": np.zeros(8 * n, "u1"), "c": ((m, n), numpy_dtype(out))}
    got = programs.simulate(stream, arrays).outputs["c"]
    assert np.array_equal(got, programs.reference(stream, arrays)["c"], equal_nan=out != "i8")
    if out == "f32":
        assert got[0, 0] == np.inf  # the second product is -9e76, not -inf
    if out == "i8":
        assert (got[3] == 5).all()


@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("scale_mode", ["none", "immediate", "column"])
@pytest.mark.parametrize(
    "dtype,bias", [(d, b) for d in ("f16", "i8") for b in ("none", "f16", "bf16", "f32")] + [("i8", "i32")]
)
def test_move_out(dtype, out, scale_mode, bias):
    m, n, k = 9, 21, 16
    rng = np.random.default_rng(3)
    scales = (rng.random(n) * (0.01 if dtype == "i8" else 2)).astype("f4")
    biases = (rng.standard_normal(n) * 5).astype(numpy_dtype(bias if bias != "none" else "f32"))
    columns = np.zeros(8 * n, "u1")
    columns[: 4 * n] = scales.view("u1")
    columns[4 * n : 4 * n + biases.nbytes] = biases.view("u1")
    fields = {"scale_mode": scale_mode, "scale": 0.03, "scales": 0, "bias": bias, "biases": 4 * n}
    fields |= {"relu": "yes" if n % 2 else "no", "zero_point": 5 if out == "i8" else 0}
    stream = product(dtype, m, n, k, False, True, out, **fields)
    a, b = operands(dtype, m, n, k, False, True)
    arrays = {"a": a, "b": b, "columns": columns, "c": ((m, n), numpy_dtype(out))}
    got = programs.simulate(stream, arrays).outputs["c"]
    assert (got == programs.reference(stream, arrays)["c"]).all()
    # And against the formula itself.
    value = a.astype("f8") @ b.astype("f8").T
    if bias == "i32":
        value += biases
    if scale_mode != "none":
        value = value * (scales if scale_mode == "column" else 0.03)
    if bias not in ("none", "i32"):
        value += biases.astype("f8")
    expected = cast(np.maximum(value, 0), out, fields["zero_point"]).astype("f8")
    step = {"f16": 2e-3, "bf16": 1e-2, "f32": 1e-5}.get(out)
    if step is None:  # rounding of the sums may decide a half
        assert (np.abs(got - expected) <= 1).all() and (got == expected).mean() > 0.95
    else:
        finite = np.isfinite(expected)
        assert np.allclose(got.astype("f8")[finite], expected[finite], rtol=step, atol=step)


def with_residual(values, where, out, m, n, k=16, **fields):
    """A product plus a residual whose rows have some space between them: simulated, and by the reference."""
    w = values.itemsize
    stream = product(
        "f16",
        m,
        n,
        k,
        False,
        False,
        out,
        residual_mem=where,
        residual=fields.pop("dtype"),
        residuals=fields.pop("at", 32768),
        residual_pitch=fields.pop("pitch", (n + 3) * w),
        rows=values,
        **fields,
    )
    a, b = operands("f16", m, n, k)
    arrays = {"a": a, "b": b, "columns": np.zeros(8 * n, "u1"), "rows": values}
    arrays["c"] = ((m, n), numpy_dtype(out))
    got = programs.simulate(stream, arrays).outputs["c"]
    assert np.array_equal(got, programs.reference(stream, arrays)["c"], equal_nan=True)
    return got, a.astype("f8") @ b.astype("f8")


@pytest.mark.parametrize("where", ["l1", "ub"])
@pytest.mark.parametrize("dtype,out", [("f16", "f16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "i8")])
@pytest.mark.parametrize("m,n", [(1, 1), (9, 21), (5, 64)])
def test_residual_on_the_way_out(where, dtype, out, m, n):
    rng = np.random.default_rng(5)
    residual = (rng.standard_normal((m, n + 3)) * 4).astype(numpy_dtype(dtype))
    scaled = {"scale_mode": "immediate", "scale": 0.5}
    got, plain = with_residual(residual, where, out, m, n, dtype=dtype, relu="yes", **scaled)
    # Relu comes behind the residual; everything is rounded once.
    expected = cast(np.maximum(plain * 0.5 + residual[:, :n].astype("f8"), 0), out, 0).astype("f8")
    step = {"f16": 2e-3, "f32": 1e-5, "i8": 1.0}[out]
    assert np.allclose(got.astype("f8"), expected, rtol=step, atol=step)


def test_residual_in_place():
    """A tile of results may begin as the residual in the same place."""
    m, n = 6, 20
    residual = np.random.default_rng(6).standard_normal((m, n)).astype("f2")
    got, plain = with_residual(residual, "ub", "f16", m, n, dtype="f16", at=8192, pitch=2 * n)
    assert np.allclose(got.astype("f8"), plain + residual, rtol=2e-3, atol=2e-3)


def test_residual_of_special_values():
    residual = np.array([[np.nan, np.inf, -np.inf, 6e4]], "f2")
    got, _ = with_residual(residual, "ub", "f16", 1, 4, dtype="f16", pitch=8)
    assert np.isnan(got[0, 0]) and got[0, 1] == np.inf and got[0, 2] == -np.inf


def test_move_out_transposed():
    m, n, k = 7, 12, 8
    stream = product("f16", m, n, k, False, False, "f16", row_stride=2, column_stride=2 * m)
    a, b = operands("f16", m, n, k)
    arrays = {"a": a, "b": b, "columns": np.zeros(8 * n, "u1"), "c": ((n, m), "f2")}
    got = programs.simulate(stream, arrays).outputs["c"]
    plain = product("f16", m, n, k, False, False, "f16")
    assert (got.T == programs.simulate(plain, arrays | {"c": ((m, n), "f2")}).outputs["c"]).all()


def test_int8_requantised_product_is_bit_exact():
    m, n, k = 24, 40, 96
    a, b = operands("i8", m, n, k, False, True, seed=9)
    scales = np.random.default_rng(1).random(n).astype("f4") / 500
    bias = np.random.default_rng(2).integers(-2000, 2000, n).astype("i4")
    columns = np.concatenate([scales.view("u1"), bias.view("u1")])
    requantise = {"scale_mode": "column", "scales": 0, "bias": "i32", "biases": 4 * n}
    stream = product("i8", m, n, k, False, True, "i8", **requantise)
    got = programs.simulate(stream, {"a": a, "b": b, "columns": columns, "c": ((m, n), "i1")}).outputs["c"]
    sums = a.astype("i4") @ b.astype("i4").T + bias
    assert (got == np.clip(np.rint(sums.astype("f4") * scales), -128, 127)).all()
