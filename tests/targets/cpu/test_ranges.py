"""A target for ranges decides what may not differ from size to size the same way at all of them."""

from dataclasses import replace

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.layout import Layout
from hetero_tvm.targets.registry import parse_target


@pytest.mark.thorough
def test_layouts_of_images_are_the_same_at_all_batches():
    target = parse_target("cpu")
    lanes = target.machine.lanes

    def answers(target, channels, size):
        plain = Conv2d(1, channels, size, size, channels, (7, 7), padding=(3, 3, 3, 3), groups=channels)
        x, y = str(Layout(lanes, plain.padding)), str(Layout(lanes))
        blocked = replace(plain, x_layout=x, y_layout=y)
        batches = range(1, 17)
        return {
            target.image_layouts.pays(replace(plain, batch=b), replace(blocked, batch=b)) for b in batches
        }

    cases = [(channels, size) for channels in (16, 24, 32, 96) for size in (2, 4, 7, 14, 28)]
    assert all(len(answers(target.for_ranges(), *case)) == 1 for case in cases)
    assert any(len(answers(target, *case)) == 2 for case in cases)  # else the cases prove nothing
