"""Variants of a graph of open sizes, counted with a compiler that only remembers."""

import threading

import pytest
import torch
from torch._dynamo.convert_frame import compile_lock

from hetero_tvm.torch.backend import hetero_tvm
from hetero_tvm.torch.specializing import Specialized


def graph(open_sizes):
    """``x * n + b`` with a size as an argument, as Dynamo passes it."""
    traced = torch.fx.Graph()
    n = traced.placeholder("n") if open_sizes else None
    x, b = traced.placeholder("x"), traced.placeholder("b")
    b.meta["tensor_dict"] = {"_dynamo_static_input_type": "guarded"}
    if not open_sizes:
        x.meta["example_value"] = torch.empty(2)
    b.meta["example_value"] = torch.empty(1)
    product = traced.call_function(torch.mul, (x, n if open_sizes else 2))
    traced.output((traced.call_function(torch.add, (product, b)),))
    return torch.fx.GraphModule(torch.nn.Module(), traced)


def specialized(gm, arguments, most=16):
    made = []

    def make(variant, given, frozen):
        made.append(([getattr(g, "shape", g) for g in given], set(frozen)))
        return lambda call: variant(*call)

    return Specialized(gm, arguments, make, True, most), made


def test_each_set_of_shapes_is_compiled_once_and_the_oldest_makes_room():
    b = torch.ones(1)
    call, made = specialized(graph(True), (2, torch.ones(2), b), most=2)
    for size in (2, 3, 2, 4, 2, 3):
        assert torch.equal(call(size, torch.ones(size), b)[0], torch.full((size,), size + 1.0))
    assert [given[0] for given, _ in made] == [2, 3, 4, 3]


def test_a_graph_of_fixed_sizes_has_one_variant():
    b = torch.ones(1)
    call, made = specialized(graph(False), (torch.ones(2), b))
    for _ in range(3):
        assert torch.equal(call(torch.ones(2), b)[0], torch.full((2,), 3.0))
    assert len(made) == 1 and made[0][1] == {1}


def test_parameters_are_frozen_until_one_changes():
    b = torch.ones(1)
    call, made = specialized(graph(False), (torch.ones(2), b))
    call(torch.ones(2), b)
    b.add_(1)
    assert torch.equal(call(torch.ones(2), b)[0], torch.full((2,), 4.0))
    b.add_(1)
    assert torch.equal(call(torch.ones(2), b)[0], torch.full((2,), 5.0))
    assert [frozen for _, frozen in made] == [{1}, set()]


@pytest.mark.thorough
def test_sizes_that_dynamo_keeps_unknown_are_known_at_the_first_call(tmp_path):
    torch._dynamo.reset()
    options = {"cache": tmp_path, "check": False}
    net = torch.compile(lambda x: x * 2 + 1, backend=hetero_tvm, options=options, fullgraph=True)
    for size in (2, 3):
        x = torch.randn(size, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        torch.testing.assert_close(net(x), x * 2 + 1)


def free_for_others():
    """Whether another thread could have Dynamo compile now."""
    found = []

    def look():
        found.append(compile_lock.acquire(blocking=False))
        if found[0]:
            compile_lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_dynamo_waits_while_a_call_compiles():
    seen = []

    def make(variant, given, frozen):
        seen.append(free_for_others())
        return lambda call: variant(*call)

    call = Specialized(graph(True), (2, torch.ones(2), torch.ones(1)), make, True, 16)
    call(2, torch.ones(2), torch.ones(1))
    assert seen == [False] and free_for_others()


def test_parameters_that_change_while_a_variant_is_compiled_are_read():
    b, made = torch.ones(1), []

    def make(variant, given, frozen):
        made.append(set(frozen))
        value = frozen[2].clone() if frozen else None
        if frozen:
            b.add_(1)
            call(3, torch.ones(3), b)  # sees the change
        return lambda given: (given[1] * given[0] + (given[2] if value is None else value),)

    call = Specialized(graph(True), (2, torch.ones(2), b), make, True, 16)
    assert torch.equal(call(2, torch.ones(2), b)[0], torch.full((2,), 4.0))
    assert made == [{2}, set(), set()]
