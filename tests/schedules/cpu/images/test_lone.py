"""Layouts of convolutions among plain images."""

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.cpu.images.lone import blocks_pay, on_blocks
from tests.schedules.cpu.running import MACHINES


@pytest.mark.parametrize("channels, pays", [(1152, True), (64, False)])
def test_many_planes_far_apart_are_read_in_blocks(channels, pays):
    """A tile of the plain kernel reads every plane, each on a page of its own."""
    machine = MACHINES["avx512"]
    op = Conv2d(1, channels, 64, 64, filters=128, kernel=(1, 1))
    assert blocks_pay(op, on_blocks(op, machine), machine) == pays


def test_short_vectors_wait_for_the_lines_of_plain_images():
    def pays(name, op):
        return blocks_pay(op, on_blocks(op, MACHINES[name]), MACHINES[name])

    image = Conv2d(1, 128, 65, 65, 128, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1))
    row = Conv2d(8, 64, 1, 300, 128, (1, 80), padding=(0, 40, 0, 40))
    assert pays("avx2", image) and not pays("avx2", row)


def test_products_of_another_arithmetic_pay_for_conversions():
    machine = MACHINES["avx512"]
    op = Conv2d(1, 128, 1, 800, filters=256, kernel=(1, 1))
    paid = [blocks_pay(op, on_blocks(op, machine), machine, rounded) for rounded in (None, 80_000.0, 5e6)]
    assert paid == [False, True, False]
