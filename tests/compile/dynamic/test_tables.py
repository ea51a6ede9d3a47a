"""Constants that follow from the sizes: the rules, and that their kernels write the values of every size."""

import contextlib

import numpy as np
import pytest

from hetero_tvm.codegen.pipeline import compile_kernels
from hetero_tvm.compile.dynamic.tables import (
    RULES,
    front_kernel,
    shifted,
    shrunk,
    table_kernel,
    window_kernel,
)
from hetero_tvm.compile.dynamic.tensor_ir import lift_function
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.extents import Unfit
from tests.schedules.cpu.running import TARGET

SIZES = ({"q": 8, "p": 31}, {"q": 7, "p": 31}, {"q": 8, "p": 23}, {"q": 5, "p": 19})
NEW = ({"q": 1, "p": 0}, {"q": 3, "p": 40}, {"q": 11, "p": 2})


def told(sizes):
    return [((sizes["q"], 2), "float32"), ((sizes["p"],), "int64")]


def check(kernels, of, given=(), new=NEW, room=0.0):
    """The lifted kernel writes ``of(q, p)``, but for ``room``, at sizes that it was not made from."""
    module = tvm.IRModule({"f": lift_function(kernels, SIZES).with_attr("global_symbol", "f")})
    function = compile_kernels(module, TARGET).jit()["f"]
    for at in new:
        wanted = of(at["q"], at["p"])
        tells = [np.zeros(shape, dtype) for shape, dtype in told(at)]
        y = tvm.runtime.tensor(np.full(wanted.shape, 1).astype(wanted.dtype))
        function(*map(tvm.runtime.tensor, (*given, *tells)), y)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=room)


def by_rules(of):
    """Kernels by each rule that the values follow at all sizes."""
    found = []
    for rule in RULES:
        with contextlib.suppress(Unfit):
            found.append([table_kernel(rule, of(**at), told(at)) for at in SIZES])
    return found


@pytest.mark.parametrize(
    "of",
    [
        lambda q, p: np.arange(p, p + q),
        lambda q, p: np.arange(q)[:, None] * (p + q) + np.arange(p + q),
        lambda q, p: (3 * np.arange(q) - p).astype(np.int32).reshape(1, q, 1),
        lambda q, p: np.arange(p + q) <= np.arange(p, p + q)[:, None],
        lambda q, p: np.triu(np.full((1, 1, q, p + q), -np.inf, np.float32), p + 1),
        lambda q, p: abs(np.arange(p + q) - np.arange(p, p + q)[:, None]) < 4,
        lambda q, p: np.array([q, 3, 2 * p + q], np.float32),
        lambda q, p: np.broadcast_to(np.arange(3 * q)[:, None] < q, (3 * q, 2)),
        lambda q, p: np.where(np.arange(2 * p + 3 * q) < p + q, 0.5, -2.5).astype(np.float32),
        lambda q, p: np.array([[[q], [9], [p]]]),
        lambda q, p: np.array([1 / np.sqrt(q + 1)], np.float32),
    ],
    ids=[
        "positions",
        "places",
        "steps",
        "causal",
        "infinite",
        "window",
        "shape",
        "first rows",
        "two levels",
        "shape in a column",
        "root",
    ],
)
def test_values_that_follow_a_rule(of):
    def table(q, p):
        return of(q=q, p=p)

    for kernels in by_rules(of)[:1]:
        check(kernels, table)
    assert by_rules(of)


def points(width, height, stride):
    """x, y and stride of a grid's points, row by row."""
    y, x = np.indices((height, width)).reshape(2, -1)
    return np.stack([x + 0.5, y + 0.5, np.full(x.shape, stride)]).astype(np.float32)


@pytest.mark.parametrize(
    "of",
    [
        lambda q, p: points(q, p, 8)[None, :2],
        lambda q, p: np.concatenate([points(4 * q, 4 * p, 8), points(2 * q, 2 * p, 16), points(q, p, 32)], 1),
        lambda q, p: np.concatenate([points(2 * q, 2 * p, 8), points(q, p, 16)], 1).T[None, :, 2:],
        lambda q, p: np.concatenate([points(2 * q, 2 * p, 8), points(q, p, 16)], 1)[:2].T.astype(np.int64),
        lambda q, p: (points(q, p, 8).T[:, None, :2] + np.arange(6, dtype=np.float32).reshape(3, 2)).reshape(
            -1, 2
        ),
    ],
    ids=["one", "levels", "strides", "pairs", "boxes"],
)
def test_points_of_grids(of):
    *_, kernels = by_rules(of)  # strides are steps too
    check(kernels, of, new=({"q": 1, "p": 3}, {"q": 6, "p": 2}, {"q": 9, "p": 40}))


def test_values_that_follow_none():
    random = np.random.default_rng(0).standard_normal((60, 60)).astype(np.float32)
    assert by_rules(lambda q, p: random[:q, :p]) == []
    assert by_rules(lambda q, p: np.arange(q)[None] ** 2 + np.zeros((2, 1), np.int64)) == []
    for kernels in by_rules(
        lambda q, p: np.arange(q)[None] ** 2
    ):  # a list is one of the same numbers of elements
        with pytest.raises(Unfit):
            lift_function(kernels, SIZES)
    assert by_rules(lambda q, p: np.zeros((q, 0), np.int64)) == []
    with pytest.raises(Unfit):  # the rule holds at each size, its numbers do not fit together
        kernels, *_ = by_rules(lambda q, p: np.arange(q) + p % 3)
        lift_function(kernels, SIZES)


def test_windows_of_a_table():
    wide = np.random.default_rng(0).standard_normal((1, 64, 3)).astype(np.float32)

    def of(q, p):
        return wide[:, p : p + q]

    kernels = [window_kernel(wide, 1, of(**at), told(at)) for at in SIZES]
    check(kernels, of, [wide])
    for axis, other in ((1, wide[:, :20]), (0, wide[0]), (1, wide.astype(np.float64)), (0, wide), (2, wide)):
        with pytest.raises(Unfit):
            window_kernel(other, axis, of(**SIZES[0]), told(SIZES[0]))


def test_a_table_by_distance_begins_further_behind_for_fewer():
    """Distances from q - 1 down to -q, whose sines are added up in another order at each size, once a row."""
    most = max(at["q"] for at in SIZES)

    def of(q, p):
        places = np.arange(q, -q, -1.0) / 7
        return np.broadcast_to(np.sin(places + 1e-9 * q).astype(np.float32), (p, 2 * q))

    largest = shifted(shrunk(of(most, 5), [0]), 1)
    assert largest.shape == (1, 2 * most + 1)
    kernels = [window_kernel(largest, 1, of(**at), told(at)) for at in SIZES]
    check(kernels, of, [largest], [{"q": 1, "p": 3}, {"q": 6, "p": 1}], room=1e-6)
    whole = np.arange(2 * most)[None]
    assert shifted(whole, 1)[0, 0] != whole[0, 0]


def test_fronts_of_a_table_keep_equal_slices_once():
    whole = np.broadcast_to(np.arange(80, dtype=np.int64), (20, 80))
    source = shrunk(whole, (0, 1))
    assert source.shape == (1, 80)
    kernels = [front_kernel(source, (at["q"], at["p"] + at["q"]), told(at)) for at in SIZES]
    check(kernels, lambda q, p: np.ascontiguousarray(whole[:q, : p + q]), [source])


def test_masks_of_infinity_are_compared():
    """What hides keys by -inf is the same along heads, and a window of a longer one."""
    wide = np.where(np.arange(9) % 3 == 0, -np.inf, np.sqrt(np.arange(9))).astype(np.float32)
    assert shrunk(np.broadcast_to(wide, (2, 3, 9)), [0, 1, 2]).shape == (1, 1, 9)
    kernels = [window_kernel(wide[None], 1, wide[None, 2 : 2 + n], told(SIZES[0])) for n in (5, 6)]
    assert all(kernel.params for kernel in kernels)
    other = np.stack([wide[2:7], np.where(np.isinf(wide[2:7]), -np.inf, 1)])
    with pytest.raises(Unfit):
        window_kernel(wide[None], 1, other.astype(np.float32), told(SIZES[0]))
