import dataclasses

import pytest

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.pool2d import Pool2d
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.npu.base import CHANNELS_LAST, ROW_MAJOR, image_layouts, other_layout, stored_as
from hetero_tvm.schedules.npu.rows.softmax import NpuSoftmaxSpace
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import machine


def test_types_that_the_npu_keeps():
    assert stored_as("float32", "bfloat16") == stored_as("bfloat16", "bfloat16") == "bfloat16"
    assert stored_as("int64", "float16") == "int32"
    assert {stored_as(dtype, "float16") for dtype in ("uint8", "int8", "bool")} == {"int8"}
    with pytest.raises(KeyError):
        stored_as("float16", "bfloat16")


def test_images_and_residuals_lie_channels_last():
    op = Conv2d(1, 4, 5, 5, 4, (1, 1), epilogue=("bias", "relu", "residual"))
    assert image_layouts(op) == ((CHANNELS_LAST, ROW_MAJOR, ROW_MAJOR, CHANNELS_LAST), CHANNELS_LAST)


def test_layouts_of_other_targets_are_named():
    conv = Conv2d(1, 16, 5, 5, 16, (1, 1))
    pool = Pool2d(1, 16, 5, 5, (2, 2), (2, 2), (0,) * 4, (2, 2), "max")
    assert other_layout(conv) is None and other_layout(pool) is None
    for op in (conv, pool):
        assert "NCHW8c" in other_layout(dataclasses.replace(op, x_layout="NCHW8c"))
    assert other_layout(dataclasses.replace(conv, residual_layout="NCHW8c")) is not None


def test_a_space_without_chains_says_so():
    op, mach = Softmax((4,), 8), machine()
    space = NpuSoftmaxSpace()
    assert space.on_chip(op) == frozenset()
    assert space.fitted(op, None, mach, frozenset(), 0) == space.default(op, mach)
    with pytest.raises(NotImplementedError, match="npu.softmax keeps nothing in L1"):
        space.emit_held(op, space.default(op, mach), mach, frozenset({0}))


def test_spaces_have_names_of_their_own():
    names = [space.name for space in NPU_SPACES]
    assert len(set(names)) == len(names) and all(name.startswith("npu.") for name in names)
