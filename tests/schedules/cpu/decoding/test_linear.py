"""Products against NumPy in float64, for every number of rows that takes another way through the kernel."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.cpu import cpu_features
from hetero_tvm.host.tvm import tvm
from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.decoding.contracts import Linear
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage, stored
from hetero_tvm.schedules.cpu.decoding.integer_words import has_integer_words, rounds_to_bytes
from hetero_tvm.schedules.cpu.decoding.layout import PanelLayout
from hetero_tvm.schedules.cpu.decoding.linear import emit_linear
from hetero_tvm.schedules.cpu.decoding.matrix_halves import ENOUGH_FOR_TILES
from hetero_tvm.schedules.cpu.decoding.words import FEW
from tests.schedules.cpu.symbolic.helpers import choices_after_simplifying
from tests.selection import thorough

MACHINE = CpuModel("x86-64-v3", threads=2)
INTEGERS = dataclasses.replace(MACHINE, features=("avx2",))
ROWS = (1, 2, 3, 7, 8, 13, 33, 100, 200)
WIDE = dataclasses.replace(
    MACHINE, mcpu="icelake-server", lanes=16, registers=32, features=("avx512bw", "avx512_vnni")
)

TILES = dataclasses.replace(
    WIDE, mcpu="sapphirerapids", features=(*WIDE.features, "amx_tile", "amx_int8", "amx_bf16")
)

CASES = [
    Linear(100, 70, Storage("int4", 32, True), bias=True, activation="silu", gated=True),
    Linear(96, 256, Storage("int8", 128)),
    Linear(41, 70, Storage("bf16"), bias=True, activation="silu", gated=True),
    *(
        pytest.param(op, marks=pytest.mark.exhaustive)
        for op in (
            Linear(100, 50, bias=True, residual=True),
            Linear(1000, 64, Storage("f16"), softcap=5.0),
            Linear(72, 64, activation="gelu_tanh", gated=True),
            Linear(37, 30, activation="gelu_erf", bias=True),
            Linear(100, 100, Storage("int4", 128), residual=True),
            Linear(64, 70, Storage("int8", 32, True), bias=True),
            Linear(1, 1),
            Linear(33, 1, Storage("bf16")),
            Linear(1000, 256, Storage("bf16"), softcap=5.0, residual=True),
        )
    ),
]


def tensors(arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


MACHINES = [
    pytest.param(INTEGERS, id="avx2"),
    pytest.param(
        WIDE,
        id="vnni",
        marks=pytest.mark.skipif(not set(WIDE.features) <= cpu_features(), reason="no AVX-512 VNNI"),
    ),
    pytest.param(
        TILES,
        id="tiles",
        marks=pytest.mark.skipif(not set(TILES.features) <= cpu_features(), reason="no AMX"),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "machine",
    [*MACHINES, pytest.param(MACHINE, id="floats", marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("op", CASES, ids=str)
def test_numbers(op, machine):
    """With the integer instructions of a machine, and without."""
    integers = has_integer_words(machine)
    random = np.random.default_rng(0)
    layout = PanelLayout.of(op, machine)
    columns = op.n * (1 + op.gated)
    weight = stored((random.standard_normal((columns, op.k)) / op.k**0.5).astype(np.float32), op.storage)
    exact = weight.dequantized() if isinstance(weight, QuantizedWeight) else weight.astype(np.float32)
    target = tvm.target.Target(machine.codegen_target())
    kernel = compile_kernels(emit_linear(op, machine), target).jit()["main"]
    packed = layout.pack(weight)
    assert [(a.shape, a.dtype.name) for a in packed] == [
        (shape, dtype) for _, shape, dtype in layout.arrays()
    ]
    bias = random.standard_normal(columns).astype(np.float32) if op.bias else None
    given = tensors([*packed, *([layout.pack_bias(bias)] if op.bias else [])])
    same_row, alone = random.standard_normal(op.k).astype(np.float32), None
    for rows in ROWS:
        x = random.standard_normal((rows, op.k)).astype(np.float32)
        x[-1] = same_row
        residual = (
            np.tile(random.standard_normal(op.n).astype(np.float32), (rows, 1)) if op.residual else None
        )
        y = tvm.runtime.tensor(np.full((rows, op.n), np.nan, np.float32))
        kernel(*tensors([x]), *given, *(tensors([residual]) if op.residual else []), y)
        want = op.reference(x.astype(np.float64), exact.astype(np.float64), bias, residual)
        # Sums of up to 256 float32 products, and polynomials for the activations.  Rounded x: half a step of
        # 3 / 127 (or 3 / 32767) per product with weights of 1 / sqrt(k), which add up like a random
        # walk to 0.01 (0.00004); five times that, and the gate multiplies it.
        rounding = {"int4": 0.1, "int8": 6e-4}.get(op.storage.name, 0) if integers else 0
        np.testing.assert_allclose(y.numpy(), want, rtol=2e-5, atol=2e-5 + rounding)
        last = y.numpy()[-1] - (residual[-1] if op.residual else 0)
        if rows == 1:
            alone = last
        elif rows >= ENOUGH_FOR_TILES and op.storage.name == "bf16" and "amx_bf16" in machine.features:
            # Sums in the order of tiles: as many roundings, which differ.
            if not op.residual:
                np.testing.assert_allclose(last, alone, rtol=2e-5, atol=2e-5)
        elif not op.residual and (rows < FEW or integers or not op.storage.bits):
            np.testing.assert_array_equal(last, alone)  # the same bits alone and among others


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("bits, x_bits", [("int8", 0), ("int8", 8), *thorough([("int4", 0)])])
def test_extremes(machine, bits, x_bits):
    """The largest integers on both sides fit into the sums, zero points included; what is not finite stays in
    its rows."""
    if x_bits and not rounds_to_bytes(machine):
        pytest.skip("no VNNI")
    storage = Storage(bits, 128, True)
    op = Linear(64, 256, storage)
    most = (1 << storage.bits) - 1
    zero = np.zeros((64, 2), np.uint8)
    zero[::2] = most
    q = np.full((64, 256), most, np.uint8) - np.repeat(zero, 128, 1)
    weight = QuantizedWeight(storage, q, np.ones((64, 2), np.float16), zero)
    x = np.ones((9, 256), np.float32) * np.array([1, -1, 0, 1, -1, 1, 1, 1, 1], np.float32)[:, None]
    x[5, 7], x[6, 200], x[7, 3] = np.nan, np.inf, -np.inf
    target = tvm.target.Target(machine.codegen_target())
    kernel = compile_kernels(emit_linear(op, machine, x_bits), target).jit()["main"]
    for rows in (x, x[:1], x[5:6], x[3:8], np.concatenate([x] * 5)):
        y = tvm.runtime.tensor(np.zeros((len(rows), 64), np.float32))
        kernel(*tensors([rows, *PanelLayout.of(op, machine).pack(weight)]), y)
        with np.errstate(invalid="ignore"):
            want = rows.astype(np.float64) @ weight.dequantized().T.astype(np.float64)
        found, finite = y.numpy(), np.isfinite(rows).all(1)
        np.testing.assert_allclose(found[finite], want[finite], rtol=1e-6)
        assert not np.isfinite(found[~finite]).any()


@pytest.mark.parametrize("machine", MACHINES[1:])
@pytest.mark.parametrize(
    "op",
    [
        Linear(96, 256, Storage("int8", 128)),
        *thorough([Linear(41, 70, Storage("int8", 32, True), gated=True)]),
    ],
)
def test_rows_of_8_bits_beside_weights_of_8(op, machine):
    """Exact sums of rounded rows, each with the same bits alone and among others."""
    random = np.random.default_rng(0)
    weight = stored(random.standard_normal((op.n * (1 + op.gated), op.k)).astype(np.float32), op.storage)
    target = tvm.target.Target(machine.codegen_target())
    kernel = compile_kernels(emit_linear(op, machine, 8), target).jit()["main"]
    x, group = random.standard_normal((100, op.k)).astype(np.float32), op.storage.group
    parts = np.pad(x, ((0, 0), (0, -op.k % group))).reshape(len(x), -1, group)
    most = np.abs(parts).max(2, keepdims=True)
    rounded = np.floor(parts * (np.float32(127) / most) + np.float32(0.5)).astype(np.float64) * most / 127
    rounded = rounded.reshape(len(x), -1)[:, : op.k]
    want = op.reference(rounded, weight.dequantized().astype(np.float64))
    results = []
    for rows in (x, x[:20], x[:3], x[:1]):
        y = tvm.runtime.tensor(np.zeros((len(rows), op.n), np.float32))
        kernel(*tensors([rows, *PanelLayout.of(op, machine).pack(weight)]), y)
        results.append(y.numpy())
    # Scales and sums of groups are float32.
    np.testing.assert_allclose(results[0], want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    for few in results[1:]:
        np.testing.assert_array_equal(few, results[0][: len(few)])


@pytest.mark.skipif(not set(TILES.features) <= cpu_features(), reason="no AMX")
def test_parts_of_x_keep_all_bits_of_float32():
    """Weights of one and zero: the sums are x itself, huge, tiny and with all bits; what is not finite stays
    in its rows."""
    op = Linear(64, 64, Storage("bf16"))
    random = np.random.default_rng(0)
    x = random.standard_normal((40, 64)) * np.exp2(random.integers(-90, 120, (40, 64)))
    x = x.astype(np.float32)
    x[:, :3] = [[3.4028235e38, -1e-30, 0]]
    x[7, 5], x[20, 9] = np.nan, np.inf
    weight = stored(np.eye(64, dtype=np.float32), op.storage)
    target = tvm.target.Target(TILES.codegen_target())
    kernel = compile_kernels(emit_linear(op, TILES), target).jit()["main"]
    y = tvm.runtime.tensor(np.zeros((40, 64), np.float32))
    kernel(*tensors([x, *PanelLayout.of(op, TILES).pack(weight)]), y)
    finite = np.isfinite(x).all(1)
    np.testing.assert_array_equal(y.numpy()[finite], x[finite])
    assert not np.isfinite(y.numpy()[~finite]).all(1).any()


@pytest.mark.skipif(not set(TILES.features) <= cpu_features(), reason="no AMX")
@pytest.mark.parametrize("k", [64, 75])
def test_many_rows_may_be_rounded_to_bfloat16(k):
    """Products are those of the nearest bfloat16; what is not finite stays in its rows."""
    op = Linear(48, k, Storage("bf16"))
    random = np.random.default_rng(0)
    x = random.standard_normal((40, k)).astype(np.float32)
    x[7, 5], x[20, k - 1] = np.nan, np.inf
    weight = stored(random.standard_normal((48, k)).astype(np.float32), op.storage)
    kernel = compile_kernels(emit_linear(op, TILES, 16), tvm.target.Target(TILES.codegen_target())).jit()[
        "main"
    ]
    y = tvm.runtime.tensor(np.zeros((40, 48), np.float32))
    kernel(*tensors([x, *PanelLayout.of(op, TILES).pack(weight)]), y)
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    want = rounded @ np.asarray(weight).astype(np.float64).T
    finite = np.isfinite(x).all(1)
    # Sums of 75 exact products in float32.
    np.testing.assert_allclose(y.numpy()[finite], want[finite], rtol=1e-5, atol=1e-5)
    assert not np.isfinite(y.numpy()[~finite]).any()


@pytest.mark.parametrize("storage", [Storage("int8", 64), Storage("int4", 32), Storage("bf16")], ids=str)
def test_tiles_multiply_many_rows_only(storage):
    """Machines with tiles have both ways in a kernel; without them there are no tiles."""
    op = Linear(64, 256, storage)
    assert "hetero_tvm_tiles_end" in str(emit_linear(op, TILES))
    assert "hetero_tvm_tiles_end" not in str(emit_linear(op, WIDE))


def test_the_simplifier_does_not_copy_choices():
    """It wrote how many blocks there are wherever that was used, and compiled for ten times as long."""
    assert choices_after_simplifying(emit_linear(Linear(96, 256), MACHINE)) < 4


def test_a_row_reads_several_streams_where_memory_is_far():
    """As many panels at once as give every thread the same; there the hardware looks ahead by itself."""
    halves = Linear(1024, 256, Storage("f16"))
    assert [PanelLayout.of(halves, machine).together for machine in (TILES, WIDE)] == [8, 1]
    prefetches = [str(emit_linear(halves, machine)).count("llvm.prefetch") for machine in (TILES, WIDE)]
    assert prefetches[0] < prefetches[1]
    uneven = Linear(1024 + 32 * TILES.threads, 256, Storage("f16"))
    assert PanelLayout.of(uneven, TILES).together < 8


def test_threads_share_groups_of_panels():
    """Few columns: one panel at a time, so that every thread has some."""
    few, many = (PanelLayout.of(Linear(n, 64), MACHINE) for n in (96, 32000))
    assert (few.together, many.together) == (1, 4)
    wide = dataclasses.replace(MACHINE, lanes=16, registers=32)
    assert PanelLayout.of(Linear(96, 64), wide).width == 32
