"""A convolution and the pooling behind it, joined, against both contracts one after the other."""

from dataclasses import dataclass

import numpy as np
import pytest

from hetero_tvm.ops.base import Operand
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.schedules.npu.images.conv2d_pool import ConvPool, ConvPoolSpace
from tests.schedules.npu.running import assert_close, machine

SPACE = ConvPoolSpace()
SAME = (1, 1, 1, 1)


@dataclass(frozen=True)
class Joined(ConvPool):
    """The joined operators with the parts of a contract that a test needs."""

    label = "joined"

    @property
    def output(self) -> Operand:
        return self.pool.output

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        return self.pool.reference(self.conv.reference(*arrays))


def joined(conv, kernel=(3, 3), strides=(2, 2), padding=SAME):
    image = (conv.out_height, conv.out_width)
    out = tuple(
        (size + padding[axis] + padding[axis + 2] - kernel[axis]) // strides[axis] + 1
        for axis, size in enumerate(image)
    )
    return Joined(conv, Pool2d(1, conv.filters, *image, kernel, strides, padding, out, "max"), raw=True)


OTHER_WINDOWS = ((3, 2), (1, 2), (2, 0, 2, 1))


@pytest.mark.parametrize("preset", ["edge", "mobile"])
@pytest.mark.parametrize(
    "op",
    [
        joined(Conv2d(1, 3, 30, 30, 20, (7, 7), (2, 2), (3,) * 4, epilogue=("bias", "relu"))),
        joined(Conv2d(1, 3, 17, 22, 8, (3, 3), (1, 1), SAME, epilogue=("bias",))),
        joined(Conv2d(1, 5, 19, 9, 12, (3, 3), (2, 1), SAME, epilogue=("bias", "relu")), *OTHER_WINDOWS),
    ],
    ids=["stem", "no relu", "other windows"],
)
def test_both_contracts_are_kept(op, preset):
    assert SPACE.refuses(op, machine(preset)) is None
    assert_close(SPACE, op, machine(preset))


@pytest.mark.parametrize(
    "op, reason",
    [
        (joined(Conv2d(1, 4, 8, 8, 4, (1, 1), groups=2, epilogue=("bias",))), "no groups"),
        (joined(Conv2d(1, 4, 8, 8, 4, (1, 1), epilogue=("bias", "silu"))), "a bias and a relu"),
        (joined(Conv2d(1, 4, 8, 8, 4, (1, 1), epilogue=("bias",)), padding=(0,) * 4), "have in common"),
        (joined(Conv2d(1, 3, 64, 4000, 64, (3, 3), epilogue=("bias",))), "does not fit"),
    ],
)
def test_refusals_say_why(op, reason):
    assert reason in SPACE.refuses(op, machine())
