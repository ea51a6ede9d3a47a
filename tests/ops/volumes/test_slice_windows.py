"""Windows of slices: each number by its index; the tensor program."""

import itertools

import numpy as np
import pytest

from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from tests.ops.helpers import run_workload

FORMS = [
    SliceWindows(2, 5, 4, 2, 3, taps=3, before=1, after=1),
    SliceWindows(1, 6, 4, 1, 2, taps=2, step=2, dilation=3, after=2, groups=2),
    SliceWindows(2, 3, 2, 1, 1, taps=5, before=4, groups=2),
    SliceWindows(1, 1, 1, 1, 1, taps=1),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_each_number(form):
    x = np.random.default_rng(0).standard_normal(form.inputs[0].shape).astype("float32")
    y = form.reference(x)
    assert y.shape == form.output.shape
    each = form.channels // form.groups
    for volume, window, group, tap, c in itertools.product(
        *map(range, (form.volumes, form.out_slices, form.groups, form.taps, each))
    ):
        place = window * form.step + tap * form.dilation - form.before
        wanted = 0 * x[0, 0]
        if 0 <= place < form.slices:
            wanted = x[volume * form.slices + place, group * each + c]
        image, channel = volume * form.out_slices + window, (group * form.taps + tap) * each + c
        np.testing.assert_array_equal(y[image, channel], wanted)
    np.testing.assert_array_equal(run_workload(form, [x])[0], y)
