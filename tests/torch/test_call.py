"""Calls with PyTorch's tensors: what is lent, what is copied, whose memory results are."""

from types import SimpleNamespace

import pytest
import torch

from hetero_tvm.runtime.signature import Signature, TensorSpec
from hetero_tvm.torch.call import TensorCall

SPEC = TensorSpec("x", (3, 4), "float32")


def call_of(function, outputs=(("result", 0),), results=1, own=()):
    """A call of ``function`` in the place of a library, and the tensors that it was given."""
    given = []

    def call_tensors(tensors):
        given.extend(tensors)
        return list(function(*tensors))

    library = SimpleNamespace(
        call_tensors=call_tensors,
        manifest=SimpleNamespace(target=SimpleNamespace(alignment=16), constant_results=frozenset(own)),
        signature=Signature((SPEC,), (SPEC,) * results),
    )
    return TensorCall(library, [0], outputs), given


def test_dense_aligned_tensors_are_lent():
    x = torch.randn(3, 4, requires_grad=True)
    call, given = call_of(lambda x: [x + 1])
    call([x])
    assert given[0].data_ptr() == x.data_ptr() and not given[0].requires_grad


@pytest.mark.parametrize("form", ["misaligned", "strided", "repeated", "negated"])
def test_others_are_copied_to_dense_aligned_ones(form):
    memory = torch.randn(64)
    x = {
        "misaligned": memory[1:13].view(3, 4),
        "strided": memory[:12].view(4, 3).t(),
        "repeated": memory[:4].expand(3, 4),
        "negated": torch.complex(memory[:12], memory[:12]).conj().imag.view(3, 4),
    }[form]
    call, given = call_of(lambda x: [x + 1])
    assert torch.equal(call([x])[0], x + 1)
    assert given[0].is_contiguous() and given[0].data_ptr() % 16 == 0 and not given[0].is_neg()


def test_results_are_memory_of_their_own():
    constant, shared = torch.ones(3, 4), torch.zeros(3, 4)
    x = torch.randn(3, 4)
    outputs = [("result", i) for i in range(4)]
    call, _ = call_of(lambda x: [x.view(3, 4), shared, shared, constant], outputs, 4, own=[3])
    found = call([x])
    addresses = {tensor.data_ptr() for tensor in found}
    assert len(addresses) == 4 and not addresses & {x.data_ptr(), constant.data_ptr()}
    assert torch.equal(found[0], x) and torch.equal(found[2], shared) and torch.equal(found[3], constant)


def test_arguments_and_numbers_pass_through():
    x = torch.randn(3, 4)
    call, _ = call_of(lambda x: [x + 1], [("argument", 0), ("value", 3), ("result", 0), ("result", 0)])
    found = call([x])
    assert found[0] is x and found[1] == 3 and found[2] is found[3]
