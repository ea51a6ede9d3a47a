"""Arguments that share memory: what counts as shared, and numbers when a graph of open sizes changes them."""

import pytest
import torch

from hetero_tvm.torch.backend import hetero_tvm
from hetero_tvm.torch.sharing import share_memory


@pytest.mark.parametrize(
    "cut, shared",
    [
        (lambda x: (x, x), True),
        (lambda x: (x[:4], x[3:]), True),
        (lambda x: (x[:4], x[4:]), False),
        (lambda x: (x[:4], x.clone()), False),
        (lambda x: (x[:0], x), False),
        (lambda x: (x.expand(2, 8), x[7:]), True),
        (lambda x: (x, 3), False),
    ],
)
def test_memory_is_shared_where_bytes_overlap(cut, shared):
    assert share_memory(cut(torch.zeros(8)), (0,)) is shared


def test_only_what_is_changed_counts():
    x = torch.zeros(8)
    assert not share_memory((torch.zeros(2), x, x), (0,))


def test_an_argument_that_another_one_overlaps_is_changed_as_pytorch_does(tmp_path):
    torch._dynamo.reset()

    def change(a, b):
        a.mul_(2)
        return a + b

    options = {"cache": tmp_path, "check": False}
    net = torch.compile(change, backend=hetero_tvm, options=options, dynamic=True)
    for cut in (lambda x: (x[:4], x[4:]), lambda x: (x[:4], x[1:5]), lambda x: (x[:4], x[4:])):
        ours = torch.arange(8.0)
        theirs = ours.clone()
        torch.testing.assert_close(net(*cut(ours)), change(*cut(theirs)), rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
