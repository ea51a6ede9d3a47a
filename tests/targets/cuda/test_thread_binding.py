"""Kernels whose stores no thread runs are refused."""

import pytest

from hetero_tvm.errors import BuildError
from hetero_tvm.host.tvm import tvm
from hetero_tvm.targets.cuda import thread_binding
from hetero_tvm.targets.registry import parse_target


def test_an_unscheduled_kernel_is_refused():
    from hetero_tvm.host.tvm import te

    a = te.placeholder((64,), "float32", "a")
    function = te.create_prim_func([a, te.compute((64,), lambda i: a[i] + 1, "b")])
    assert not thread_binding.is_bound(function)
    with pytest.raises(BuildError, match="without a schedule") as caught:
        thread_binding.check_bound(tvm.IRModule({"forgotten": function}))
    assert caught.value.problems == ("forgotten",)
    assert thread_binding.is_bound(parse_target("cuda:sm_80").schedule_generic(function))
