"""Packed columns are found by their values, in any order and company; others are not."""

import numpy as np

from hetero_tvm.ops.decoding.columns import PackedColumns
from hetero_tvm.ops.decoding.storage import QuantizedWeight, Storage

PLAIN, MOVED = (Storage("int4", 32, zero, "float32") for zero in (False, True))


def weight(seed, n=6, k=70, storage=MOVED):
    random = np.random.default_rng(seed)
    groups = -(-k // storage.group)
    zero = random.integers(0, 16, (n, groups)).astype(np.uint8) if storage.zero_points else None
    scale = random.uniform(0.1, 1, (n, groups)).astype(storage.scales)
    return QuantizedWeight(storage, random.integers(0, 16, (n, k)).astype(np.uint8), scale, zero)


def test_columns_of_two_weights_in_another_order():
    columns = PackedColumns()
    assert not columns
    first, second = weight(0), weight(1)
    columns.add(first)
    columns.add(second)
    assert columns
    both = np.concatenate([first.dequantized(), second.dequantized()])
    order = [11, 3, 0, 0, 7]
    found = columns.find(both[order].T)
    assert found.storage == first.storage
    np.testing.assert_array_equal(found.dequantized(), both[order])
    np.testing.assert_array_equal(found.q, np.concatenate([first.q, second.q])[order])


def test_a_column_that_was_changed_is_none():
    columns = PackedColumns()
    columns.add(weight(0))
    values = weight(0).dequantized()
    assert columns.find(values.T) is not None
    values[3, 5] = np.nextafter(values[3, 5], np.float32(9))
    assert columns.find(values.T) is None
    assert columns.find(values[:3].T) is not None


def test_columns_that_were_multiplied():
    columns, stored = PackedColumns(), weight(0)
    columns.add(stored)
    values, factors = stored.dequantized(), np.float32([0.37, 1, -2.5, 1e-3, 7, 1.1])
    values[1, 0] = 0  # the factor of a column is that of its largest value
    stored.q[1, 0] = stored.zero[1, 0]
    columns = PackedColumns()
    columns.add(stored)
    found = columns.find((values * factors[:, None]).T)
    assert found.storage.scales == "float32"
    np.testing.assert_array_equal(found.q, stored.q)
    # Two roundings in another order.
    np.testing.assert_allclose(found.dequantized(), values * factors[:, None], rtol=2.5e-7)
    changed = values * factors[:, None]
    changed[4, 9] *= np.float32(1.0001)
    assert columns.find(changed.T) is None
    assert columns.find(0 * values.T) is None


def test_columns_of_two_storages_are_no_weight():
    columns = PackedColumns()
    plain = weight(2, storage=PLAIN)
    columns.add(weight(0))
    columns.add(plain)
    both = np.concatenate([weight(0).dequantized(), plain.dequantized()])
    assert columns.find(both.T) is None
    assert columns.find(both[6:].T).zero is None
