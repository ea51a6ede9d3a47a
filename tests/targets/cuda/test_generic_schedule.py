"""The schedule of last resort, and that every kernel of every kind gets one."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import te, topi
from hetero_tvm.targets.cuda import generic_schedule
from hetero_tvm.targets.cuda.thread_binding import is_bound
from tests.schedules.cuda.running import TARGET, compiled


def cases():
    x = te.placeholder((5, 37), "float32", "x")
    y = te.placeholder((37, 9), "float32", "y")
    v = te.placeholder((7,), "float32", "v")
    i8, w8 = te.placeholder((20, 32), "int8", "a"), te.placeholder((32, 24), "int8", "b")
    k = te.reduce_axis((0, 32), "k")
    product8 = te.compute(
        (20, 24), lambda i, j: te.sum(i8[i, k].astype("int32") * w8[k, j].astype("int32"), axis=k), "c"
    )
    scalar = te.placeholder((), "float32", "s")
    return {
        "mean over everything": ([x], topi.sum(x, axis=None) / 185.0, lambda x: x.mean()),
        "mean of a vector": ([v], topi.sum(v, axis=0) / 7.0, lambda v: v.mean()),
        "scalar": ([scalar], te.compute((), lambda: scalar() * 2.0, "t"), lambda s: 2 * s),
        "row sums": ([x], topi.sum(x, axis=1), lambda x: x.sum(1)),
        "column maxima": ([x], topi.max(x, axis=0), lambda x: x.max(0)),
        "matmul": ([x, y], topi.nn.matmul(x, y), lambda x, y: x @ y),
        "int8 matmul": ([i8, w8], product8, lambda a, b: a.astype("int32") @ b.astype("int32")),
        "transpose": ([x], topi.transpose(x), lambda x: x.T),
        "softmax": ([x], topi.nn.softmax(x), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        "cumulative sum": ([x], topi.gpu.cumsum(x, axis=1), lambda x: x.cumsum(1)),
        "power": ([x], topi.power(x, 3.0), lambda x: x**3),
        "sine": ([x], topi.sin(topi.multiply(x, 1000.0)), lambda x: np.sin(x.astype("float32") * 1000)),
    }


with TARGET.tvm_target:
    CASES = cases()


def scheduled(name, schedule):
    arguments, result, _ = CASES[name]
    with TARGET.tvm_target:
        return schedule(te.create_prim_func([*arguments, result]))


def check(names, functions):
    generator = np.random.default_rng(0)
    for name, call in zip(names, compiled(functions), strict=True):
        arguments, result, reference = CASES[name]
        arrays = [
            generator.integers(-100, 100, [int(e) for e in x.shape]).astype("int8")
            if str(x.dtype) == "int8"
            else np.asarray(generator.standard_normal([int(e) for e in x.shape]), "float32")
            for x in arguments
        ]
        blank = np.full([int(e) for e in result.shape], 7, str(result.dtype))
        (out,) = call(arrays, [blank])
        np.testing.assert_allclose(out, reference(*arrays), rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.thorough
def test_every_kind_of_kernel_gets_a_schedule_and_keeps_its_numbers(emulated):
    functions = [scheduled(name, TARGET.schedule_generic) for name in CASES]
    assert all(map(is_bound, functions))
    check(CASES, functions)


def test_the_last_resort(emulated):
    names = [name for name in CASES if name != "cumulative sum"]  # binds its own threads
    functions = [scheduled(name, generic_schedule.bind_blocks) for name in names]
    assert all(map(is_bound, functions))
    check(names, functions)


def test_a_rule_that_throws_leaves_the_kernel_to_the_next(emulated, monkeypatch):
    class Bad:
        def apply(self, *_):
            raise RuntimeError("block_realize == old_block_realize_")

    monkeypatch.setattr(generic_schedule, "_rules", lambda function: [Bad()])
    function = scheduled("row sums", TARGET.schedule_generic)
    assert is_bound(function)
    check(["row sums"], [function])


@pytest.mark.parametrize("name", list(CASES))
def test_unscheduled_kernels_are_seen(name):
    if name != "cumulative sum":
        assert not is_bound(scheduled(name, lambda function: function))
