"""Indexing by tensors of one integer under ``torch.compile``."""

import pytest
import torch

import hetero_tvm.torch  # noqa: F401
from hetero_tvm.torch.rewrites.places import with_tensor_places
from tests.selection import thorough


def cache_step(cache, x, place):
    cache[:, place] = x
    cache[0, place, 1:3] = 7
    return cache.sum(1) * cache[:, place].exp()


def counted(cache, x, place):
    cache[..., place] += x[0, 0]
    place += 1
    return cache * 2


def pair(cache, x, place):
    cache[place, :, place] = x[0, :4].double()[:3].sum()
    return cache[place, :, place] + cache[None, place]


def plain(cache, x, place):
    row = cache[place]
    cache.zero_()
    return row + 1  # a view: of zeros


@pytest.mark.parametrize(
    "function, whole", [(cache_step, True), *thorough([(counted, True), (pair, True)]), (plain, False)]
)
def test_numbers_and_changes_are_those_of_pytorch(function, whole, tmp_path):
    torch._dynamo.reset()
    events = []
    options = {"cache": str(tmp_path), "on_event": events.append}
    compiled = torch.compile(function, backend="hetero_tvm", options=options)
    for at in (0, 2, -1):
        cache, x = torch.randn(4, 4, 4), torch.randn(4, 4)
        ours, place = cache.clone(), torch.tensor(at)
        want = function(cache, x, place)
        got = compiled(ours, x, again := torch.tensor(at))
        torch.testing.assert_close((got, ours, again), (want, cache, place))
    assert any(event["event"] == "refused" for event in events) is not whole


def test_graphs_without_such_indices_are_left_alone():
    gm = torch.fx.symbolic_trace(lambda x: x[0] + x[1:])
    assert with_tensor_places(gm) is gm
