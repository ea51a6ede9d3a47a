import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.schedules.npu.images.conv2d_kernel import Conv2dEmitter
from hetero_tvm.schedules.npu.images.conv2d_tiles import as_product, candidates, is_plain, panels_in
from hetero_tvm.schedules.npu.images.image_rows import rows_below
from hetero_tvm.targets.npu.regions.codegen import generate
from tests.schedules.npu.running import machine

SAME = (1, 1, 1, 1)


def test_a_product_has_the_work_of_the_convolution():
    op = Conv2d(2, 20, 13, 10, 24, (3, 5), (2, 1), (1, 2, 1, 2), epilogue=("bias", "relu"))
    product = as_product(op)
    assert product.flops == op.flops and product.n == op.filters and product.epilogue == op.epilogue
    assert not is_plain(op) and is_plain(Conv2d(1, 4, 5, 5, 8, (1, 1)))
    assert not is_plain(Conv2d(1, 4, 5, 5, 8, (1, 1), (2, 2)))


def test_rows_below_are_those_that_the_taps_reach():
    op = Conv2d(1, 4, 40, 40, 4, (3, 3), (2, 2), SAME, (3, 3))
    for rows in (1, 2, 7):
        taps = {y * 2 + i * 3 for y in range(rows) for i in range(3)}
        assert rows_below(op, rows) == max(taps) + 1


@pytest.mark.parametrize(
    "op",
    [
        Conv2d(1, 64, 28, 28, 96, (3, 3), (1, 1), SAME, epilogue=("bias", "relu")),
        Conv2d(1, 3, 64, 64, 32, (7, 7), (2, 2), (3,) * 4, epilogue=("bias",)),
    ],
    ids=lambda op: op.label,
)
def test_what_fits_compiles(op):
    mach = machine()
    tiles = sorted(candidates(op, mach.spec), key=str)
    for t in tiles[:: max(1, len(tiles) // 5)]:
        panels = panels_in(op, t, mach.spec.scratchpad("l1"))
        program = generate(Conv2dEmitter(op, t, mach, panels=panels).run(), mach.spec)
        assert all(need <= mach.spec.scratchpad(memory) for memory, need in program.needs.items()), t
