"""Matrices of Winograd's method against the sum that defines a filter."""

import numpy as np
import pytest

from hetero_tvm.schedules.cpu.winograd import winograd
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import compiled


def transform(count, results, side):
    """A kernel that applies ``side`` to ``count`` values, which gives ``results`` of them."""
    k = Kernel()
    with k:
        x, y = k.argument("x", (count,)), k.argument("y", (results,))
        for i, value in enumerate(side(k, [k.let(k.load(x, [i])) for i in range(count)])):
            k.store(y, value, [i])
    return k.function, (results,)


@pytest.mark.parametrize("size", (2, 4))
def test_a_tile_is_filtered_along_one_axis(size):
    form = winograd(size)
    generator = np.random.default_rng(size)
    values, taps = generator.standard_normal(size + 2), generator.standard_normal(3)
    into, out = compiled(
        [transform(size + 2, size + 2, form.input_side), transform(size + 2, size, form.output_side)]
    )
    filtered = out((into(values.astype("float32")) * (form.filters @ taps)).astype("float32"))
    expected = [sum(values[i + j] * taps[j] for j in range(3)) for i in range(size)]
    np.testing.assert_allclose(filtered, expected, atol=1e-5)


@pytest.mark.parametrize("size", (2, 4))
def test_filters_are_transformed_along_both_axes(size):
    form = winograd(size)
    w = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype("float32")
    transformed = form.filter(w)
    assert transformed.shape == (2, 3, size + 2, size + 2)
    # The point at infinity takes the last tap alone, the point 0 the first one (times its scale).
    np.testing.assert_allclose(transformed[..., -1, -1], w[..., 2, 2])
    scale = form.filters[0, 0]
    np.testing.assert_allclose(transformed[..., 0, 0], w[..., 0, 0] * scale**2)
    assert not form.filters[0, 1:].any() and not form.filters[-1, :-1].any()
