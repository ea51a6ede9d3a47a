import numpy as np
import pytest
import torch
from torch.nn import functional

from hetero_tvm.ops.layout import Layout
from hetero_tvm.ops.pool2d import Pool2d, Relayout
from tests.ops.helpers import check, run_workload, sample_inputs


def formula(op, ceil_mode=False):
    """PyTorch's pools, for paddings of equal sides."""
    assert op.padding[:2] == op.padding[2:]

    def pool(x):
        x = torch.from_numpy(np.ascontiguousarray(Layout.parse(op.x_layout).unpack(x, op.channels)))
        if op.mode == "max":
            y = functional.max_pool2d(x, op.kernel, op.strides, op.padding[:2], ceil_mode=ceil_mode)
        else:
            y = functional.avg_pool2d(
                x, op.kernel, op.strides, op.padding[:2], ceil_mode, count_include_pad=op.count_padding
            )
        return Layout.parse(op.y_layout).pack(y.numpy())

    return pool


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("count_padding", [False, True])
def test_against_pytorch(mode, count_padding):
    op = Pool2d(2, 3, 7, 6, (3, 2), (2, 1), (1, 1, 1, 1), (4, 7), mode, count_padding)
    check(op, formula(op))


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("count_padding", [False, True])
def test_windows_beyond_the_edge_when_extents_are_rounded_up(mode, count_padding):
    op = Pool2d(1, 2, 6, 6, (3, 3), (2, 2), (1, 1, 1, 1), (4, 4), mode, count_padding)
    check(op, formula(op, ceil_mode=True))


@pytest.mark.parametrize("mode", ["max", "avg"])
def test_the_whole_image_and_a_single_pixel(mode):
    op = Pool2d(2, 3, 4, 5, (4, 5), (1, 1), (0, 0, 0, 0), (1, 1), mode)
    check(op, lambda x: (x.max if mode == "max" else x.mean)((2, 3), keepdims=True))
    check(Pool2d(1, 1, 1, 1, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), mode), lambda x: x)


@pytest.mark.parametrize("mode", ["max", "avg"])
def test_blocks_of_channels(mode):
    op = Pool2d(
        *(1, 6, 5, 5, (3, 3), (2, 2), (1, 1, 1, 1), (3, 3), mode),
        x_layout="NCHW4c+1,1,1,1",
        y_layout="NCHW4c+0,0,1,1",
    )
    check(op, formula(op))


def test_half_precision():
    op = Pool2d(1, 2, 5, 5, (2, 2), (1, 1), (0, 0, 0, 0), (4, 4), "avg", dtype="float16")
    check(op, formula(op), tolerance=5e-4)


def test_infinities():
    op = Pool2d(1, 1, 4, 4, (2, 2), (2, 2), (0, 0, 0, 0), (2, 2), "max")
    (x,) = sample_inputs(op)
    x[..., :2, :2], x[..., 3, 3] = -np.inf, np.inf
    (found,) = run_workload(op, [x])
    assert found[0, 0, 1, 1] == np.inf == op.reference(x)[0, 0, 1, 1]
    # The kernel starts from the lowest finite number.
    assert op.reference(x)[0, 0, 0, 0] == -np.inf and found[0, 0, 0, 0] <= np.finfo(np.float32).min


@pytest.mark.parametrize(
    "source, target", [("NCHW", "NCHW4c+1,0,2,1"), ("NCHW4c+1,0,2,1", "NCHW"), ("NCHW2c", "NCHW4c")]
)
@pytest.mark.parametrize("image", [(1, 1, 1, 1), (2, 5, 3, 4)])
def test_relayout_moves_every_value(source, target, image):
    op = Relayout(*image, source, target)

    def move(x):
        plain, result = np.zeros(image), np.zeros(Layout.parse(target).shape(image))
        plain[...] = Layout.parse(source).unpack(x, image[1])
        form = Layout.parse(target)
        for n, c, y, z in np.ndindex(*image):
            row, column = y + form.halo[0], z + form.halo[1]
            at = (n, c // form.block, row, column, c % form.block) if form.blocked else (n, c, row, column)
            result[at] = plain[n, c, y, z]
        return result

    check(op, move)


def test_cost_and_labels():
    op = Pool2d(2, 3, 7, 6, (3, 2), (2, 1), (1, 1, 1, 1), (4, 7), "max")
    assert op.flops == 2 * 3 * 4 * 7 * 6 and op.nbytes == 4 * (2 * 3 * 42 + 2 * 3 * 28)
    assert op.label == "max_pool_3x7x6_k3x2s2"
    move = Relayout(1, 3, 4, 4, "NCHW", "NCHW4c")
    assert move.flops == 0 and move.nbytes == 4 * (48 + 64) and move.label == "block_3x4x4"
    assert Relayout(1, 3, 4, 4, "NCHW4c", "NCHW").label == "unblock_3x4x4"
