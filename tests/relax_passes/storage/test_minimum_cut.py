"""Minimum cuts, against all cuts of small networks and against SciPy's flows of larger ones."""

import itertools
import random

import pytest

from hetero_tvm.relax_passes.storage.minimum_cut import source_side


def network(seed, count, edges, most=9):
    choose = random.Random(seed)
    return [
        (*choose.sample(range(count), 2), choose.choice([0, 1, choose.randint(1, most)]))
        for _ in range(edges)
    ]


def cut(edges, side):
    return sum(capacity for start, end, capacity in edges if start in side and end not in side)


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_is_smaller(seed):
    """Nor is any of the same size that has fewer nodes on the source's side."""
    edges = network(seed, 7, 5 + seed // 2)
    sides = [{0, *others} for size in range(6) for others in itertools.combinations(range(2, 7), size)]
    assert source_side(7, edges, 0, 1) == min(sides, key=lambda side: (cut(edges, side), len(side)))


@pytest.mark.parametrize("seed", range(5))
def test_as_scipy(seed):
    np = pytest.importorskip("numpy")
    sparse = pytest.importorskip("scipy.sparse")
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    edges = network(seed, 300, 1200, 100000)
    starts, ends, capacities = (np.array(part) for part in zip(*edges, strict=True))
    capacity = sparse.csr_matrix((capacities.astype("int32"), (starts, ends)), shape=(300, 300))
    left = capacity - maximum_flow(capacity, 0, 1).flow
    left.eliminate_zeros()
    assert source_side(300, edges, 0, 1) == {
        int(n) for n in breadth_first_order(left, 0, return_predecessors=False)
    }


def test_a_long_chain():
    """No recursion: a path has as many nodes as the network."""
    chain = [(0, 2, 5), *((n, n + 1, 4 if n == 2500 else 7) for n in range(2, 5000)), (5000, 1, 5)]
    assert source_side(5001, chain, 0, 1) == {0, *range(2, 2501)}
