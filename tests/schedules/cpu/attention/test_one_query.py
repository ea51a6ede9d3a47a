"""One query over keys and values where they lie: masks, windows, grouped heads, room behind the keys."""

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.host.tvm import tvm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.schedules.cpu.attention.one_query import reads_in_place
from hetero_tvm.schedules.cpu.attention.space import AttentionSpace
from hetero_tvm.schedules.cpu.symbolic import kernels
from hetero_tvm.schedules.symbolic import Witnesses
from tests.schedules.cpu.running import MACHINES, TARGET, check_points, exact
from tests.selection import thorough

AVX2 = MACHINES["avx2"]
SIZES = ({"q": 8, "past": 92}, {"q": 5, "past": 92}, {"q": 8, "past": 71}, {"q": 3, "past": 53})


def emitted(make, told):
    at = tuple([((s["q"],), "uint8"), ((s["past"],), "uint8")] if told else [] for s in SIZES)
    witnesses = Witnesses(tuple(make(**s) for s in SIZES), SIZES, told=at if told else ())
    return kernels.emit(witnesses, AttentionSpace(), AttentionSpace().default(witnesses.largest, AVX2), AVX2)


@pytest.mark.parametrize(
    ("dim", "value_dim", "kv_heads", "mask", "room", "options"),
    [
        pytest.param(16, 0, 4, False, 0, {}, id="plain", marks=pytest.mark.thorough),
        pytest.param(16, 0, 2, True, 101, {}, id="mask, grouped, room"),
        pytest.param(
            8,
            24,
            1,
            False,
            120,
            {"causal": True, "window": 20},
            id="window, long values, room",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            32, 0, 4, True, 0, {"softcap": 5.0, "zero_masked": True}, id="softcap", marks=pytest.mark.thorough
        ),
        pytest.param(
            72,
            136,
            2,
            False,
            101,
            {"causal": True},
            id="more vectors than accumulators",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_numbers(dim, value_dim, kv_heads, mask, room, options):
    def make(q, past):
        total, heads = past + q, 4
        values = value_dim or dim
        held, places = (), ()
        if room:
            held = ((2, q, heads * dim), (2, kv_heads, room, dim), (2, kv_heads, room, values))
            at = [
                (n, 0, kv_heads * room * width, room * width, width) for n, width in ((1, dim), (2, values))
            ]
            places = ((0, 0, q * heads * dim, dim, heads * dim), *at)
        shape = (2, 1, q, total) if mask else ()
        return Attention(
            2, heads, q, total, dim, dim**-0.5, kv_heads, mask=shape, value_dim=value_dim, tensors=held,
            places=places, **options,
        )  # fmt: skip

    assert reads_in_place(make(1, 3), AVX2.lanes)
    run = compile_kernels(emitted(make, bool(room)), TARGET).jit()["main"]
    random = np.random.default_rng(0)
    for past, q in ((0, 1), (1, 1), (7, 1), (8, 1), (30, 1), (92, 1), (0, 2), (20, 8)):
        op = make(q, past)
        arrays = [random.standard_normal(o.shape).astype("float32") for o in op.inputs]
        if mask:
            arrays[-1][:, :, :, : op.kv_len // 2] = -np.inf
        given = [*arrays, np.zeros(q, "uint8"), np.zeros(past, "uint8")] if room else arrays
        found = tvm.runtime.tensor(np.full(op.output.shape, np.nan, "float32"))
        run(*map(tvm.runtime.tensor, given), found)
        # float32 sums of up to 100 products, and an exponential of a few ulp
        np.testing.assert_allclose(found.numpy(), exact(op, arrays), rtol=1e-5, atol=2e-6)


@pytest.mark.thorough
def test_room_behind_the_keys_is_not_read():
    def make(q, past):
        held = ((1, q, 32), (1, 2, 128, 16), (1, 2, 128, 16))
        places = ((0, 0, q * 32, 16, 32), (1, 0, 4096, 2048, 16), (2, 0, 4096, 2048, 16))
        return Attention(1, 2, q, past + q, 16, 0.25, 2, tensors=held, places=places)

    run = compile_kernels(emitted(make, True), TARGET).jit()["main"]
    random = np.random.default_rng(0)
    for past, q in ((5, 1), (20, 1), (20, 3)):
        arrays = [random.standard_normal(o.shape).astype("float32") for o in make(q, past).inputs]
        for array in arrays[1:]:
            array[:, :, past + q :] = np.nan
        found = tvm.runtime.tensor(np.zeros((1, q, 32), "float32"))
        run(*map(tvm.runtime.tensor, [*arrays, np.zeros(q, "uint8"), np.zeros(past, "uint8")]), found)
        clean = [np.nan_to_num(array) for array in arrays]
        np.testing.assert_allclose(found.numpy(), exact(make(q, past), clean), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["avx2", *thorough([name for name in MACHINES if name != "avx2"])])
@pytest.mark.parametrize(
    ("keys", "values", "kv_heads", "mask", "options"),
    [
        (100, 0, 2, (2, 1, 1, 100), {}),
        (131, 48, 4, (1, 4, 1, 131), {"causal": True, "window": 21, "softcap": 5.0}),
        *thorough(
            [
                (1, 0, 1, (), {}),
                (7, 0, 4, (2, 4, 1, 1), {"zero_masked": True}),
                (16, 0, 4, (1, 1, 1, 16), {"replaced": True}),
                (40, 0, 4, (2, 1, 1, 40), {"zero_masked": True, "zero_by_mask": True}),
                (33, 160, 1, (), {"causal": True}),
            ]
        ),
    ],
)
def test_keys_of_a_fixed_number(name, keys, values, kv_heads, mask, options):
    """What a decoder with a static cache has: all its keys at each step, most of them hidden by the mask."""
    op = Attention(2, 4, 1, keys, 32, 0.3, kv_heads, mask=mask, value_dim=values, **options)
    space, machine = AttentionSpace(), MACHINES[name]
    point = space.default(op, machine)
    assert "packed" not in space.emit(op, point, machine).script()
    assert reads_in_place(op, machine.lanes)
    check_points(space, op, [point, {**point, "tile": (1, 1)}], machine, tolerance=3e-6)
