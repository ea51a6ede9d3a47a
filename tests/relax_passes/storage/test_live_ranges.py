"""Storages of lowered functions: when they live, and what shares them."""

from __future__ import annotations

import pytest

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.host.tvm import script_I as I
from hetero_tvm.host.tvm import script_R as R
from hetero_tvm.host.tvm import script_T as T
from hetero_tvm.relax_passes.storage.in_place import share
from hetero_tvm.relax_passes.storage.live_ranges import ELSEWHERE, analyse


def explicit(module):
    """A module in the form that the planner sees."""
    passes = (
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    )
    return tvm.transform.Sequential(list(passes))(module)


def by_name(ranges):
    return {storage.name: storage for storage in ranges.storages}


@I.ir_module
class Chain:
    @T.prim_func(private=True, s_tir=True)
    def scale(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        for i, j in T.grid(4, 8):
            y[i, j] = x[i, j] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def halves(x: T.Buffer((32,), "float32"), a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
        for i in range(16):
            a[i] = x[i]
            b[i] = x[i + 16]

    @T.prim_func(private=True, s_tir=True)
    def join(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32"), y: T.Buffer((16,), "float32")):
        for i in range(16):
            y[i] = a[i] + b[i]

    @R.function
    def main(x: R.Tensor((4, 8), "float32")):
        cls = Chain
        with R.dataflow():
            first = R.call_tir(cls.scale, (x,), out_ty=R.Tensor((4, 8), "float32"))
            view = R.reshape(first, R.shape([32]))
            pair = R.call_tir(
                cls.halves, (view,), out_ty=[R.Tensor((16,), "float32"), R.Tensor((16,), "float32")]
            )
            low = pair[0]
            high = pair[1]
            again = R.call_tir(cls.scale, (first,), out_ty=R.Tensor((4, 8), "float32"))
            last = R.call_tir(cls.join, (low, high), out_ty=R.Tensor((16,), "float32"))
            gv = (last, again)
            R.output(gv)
        return gv


def test_views_and_tuples_share_their_storage():
    ranges = analyse(explicit(Chain)["main"])
    found = by_name(ranges)
    assert found["x"].is_input and not found["x"].plannable
    first = found["first"]
    assert (first.lower, first.upper, first.nbytes, first.writer) == (0, 3, 128, "scale")
    assert found["last"].escapes and found["again"].escapes and not found["again"].plannable
    halves = [s for s in ranges.storages if s.writer == "halves"]
    assert [(s.lower, s.upper, s.nbytes) for s in halves] == [(1, 4, 64), (1, 4, 64)]
    assert [call.name for call in ranges.calls] == ["scale", "halves", "scale", "join"]


@I.ir_module
class Branches:
    @T.prim_func(private=True, s_tir=True)
    def scale(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = x[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32"), c: R.Tensor((), "bool")):
        R.func_attr({"relax.force_pure": True})
        cls = Branches
        before = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
        cls.scale(x, before)
        if c:
            inner = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
            cls.scale(before, inner)
            result = inner
        else:
            first = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
            cls.scale(x, first)
            other = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
            cls.scale(first, other)
            result = other
        last = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
        cls.scale(result, last)
        return last


def test_both_branches_are_planned():
    found = {s.var.name: s for s in analyse(Branches["main"]).storages}
    assert found["before"].upper <= found["first"].lower  # dead in the other branch
    for name in ("inner", "other"):  # the result of either branch lives until it is used after it
        assert found[name].upper == found["last"].lower + 1
    assert found["first"].upper == found["other"].lower + 1
    assert found["last"].escapes


@I.ir_module
class BranchOfAConstant:
    @T.prim_func(private=True, s_tir=True)
    def scale(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            y[i] = x[i] * T.float32(2)

    @R.function
    def main(x: R.Tensor((8,), "float32"), c: R.Tensor((), "bool")):
        R.func_attr({"relax.force_pure": True})
        cls = BranchOfAConstant
        if c:
            result = R.const([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "float32")
        else:
            inner = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
            cls.scale(x, inner)
            result = inner
        last = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
        cls.scale(result, last)
        return last


def test_a_branch_may_give_a_constant():
    """The result is not what the other branch wrote, and nothing may be written over it."""
    ranges = analyse(BranchOfAConstant["main"])
    result = ranges.of(ranges.calls[-1].args[0])
    assert ELSEWHERE in result and len(result) == 2
    assert not share(BranchOfAConstant, ranges).calls


@I.ir_module
class Unknown:
    @R.function
    def main(x: R.Tensor((8,), "float32")):
        R.func_attr({"relax.force_pure": True})
        a = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
        _ = R.call_packed("fill", x, a, ty_args=R.Tuple())
        b = R.call_packed("some_view", a, ty_args=R.Tensor((8,), "float32"))
        c = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0), R.str("global"))
        _1 = R.call_packed("fill", b, c, ty_args=R.Tuple())
        return c


def test_results_of_the_runtime_may_be_views():
    main = Unknown["main"]
    ranges = analyse(main)
    a = by_name(ranges)["a"]
    assert a.upper == 3  # alive while what may be a view of it is used
    (b,) = [binding.var for binding in main.body.blocks[0].bindings if binding.var.name == "b"]
    assert ranges.of(b) == {a.number, ELSEWHERE}


@I.ir_module
class Dynamic:
    @T.prim_func(private=True, s_tir=True)
    def scale(px: T.handle, py: T.handle):
        n = T.int64()
        x = T.match_buffer(px, (n, T.int64(3)), "float32")
        y = T.match_buffer(py, (n, T.int64(3)), "float32")
        for i, j in T.grid(n, T.int64(3)):
            y[i, j] = x[i, j] * T.float32(2)

    @R.function
    def main(x: R.Tensor(("n", 3), "float32")):
        n = T.int64()
        cls = Dynamic
        with R.dataflow():
            first = R.call_tir(cls.scale, (x,), out_ty=R.Tensor((n, 3), "float32"))
            second = R.call_tir(cls.scale, (first,), out_ty=R.Tensor((n, 3), "float32"))
            R.output(second)
        return second


def test_symbolic_shapes_need_upper_bounds():
    with pytest.raises(BuildError, match="no upper bound for n"):
        analyse(explicit(Dynamic)["main"])
    module = Dynamic.clone()
    module.update_func(
        module.get_global_var("main"), module["main"].with_attr("tir_var_upper_bound", {"n": 100})
    )
    assert by_name(analyse(explicit(module)["main"]))["first"].nbytes == 100 * 3 * 4
