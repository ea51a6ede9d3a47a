import numpy as np
import pytest

from hetero_tvm.errors import CapacityError
from hetero_tvm.generation.pages import PagePool
from tests.generation.test_facts import FACTS


def test_pages_are_taken_shared_copied_and_given_back():
    pool = PagePool(FACTS, 3)
    assert pool.keys.shape == (3, *FACTS.page_shapes[0]) and pool.keys.ctypes.data % 64 == 0
    one, two = pool.take(2)
    pool.share([one])
    pool.keys[one], pool.values[one] = 1, 2
    copy = pool.own(one)
    assert copy not in (one, two) and pool.own(one) == one
    assert np.all(pool.keys[copy] == 1) and np.all(pool.values[copy] == 2)
    pool.share([two])
    with pytest.raises(CapacityError):
        pool.own(two)
    with pytest.raises(CapacityError, match="room is left for 0 of 96"):
        pool.take(1)
    pool.give_back([one, two, copy])
    assert pool.free == 2
    pool.give_back([two])
    assert pool.free == 3
