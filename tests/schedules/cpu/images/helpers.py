"""Convolutions for their tests: random ones, and ones on channel blocks."""

import dataclasses

from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d

PAD = (1, 1, 1, 1)
WINOGRAD_ERROR = 6e-6
"""Error relative to the largest value: transforms with factors up to 5 around sums of a few channels."""


def on(machine, op, x="", y="", residual=""):
    """The op in blocks of the machine's lanes; texts give halos, None leaves X plain."""
    block = f"NCHW{machine.lanes}c"
    layouts = {"y_layout": block + y, "residual_layout": block + residual}
    return dataclasses.replace(op, x_layout="NCHW" if x is None else block + x, **layouts)


def random_conv2d(draw, channels, filters, groups=1):
    """A small convolution of the drawn extents and epilogue; images lie plain."""
    small, size = st.integers(1, 3), st.integers(1, 18)
    pair = st.tuples(small, small)
    steps = st.lists(
        st.sampled_from(["bias", "residual", "gate", "relu", "relu6", "sigmoid"]), max_size=3, unique=True
    )
    return Conv2d(
        batch=draw(st.integers(1, 2)),
        channels=channels,
        height=draw(size),
        width=draw(size),
        filters=filters,
        kernel=draw(pair),
        strides=draw(pair),
        padding=draw(st.tuples(*[st.integers(0, 2)] * 4)),
        dilation=draw(pair),
        groups=groups,
        epilogue=tuple(draw(steps)),
    )


def random_blocks(draw, machine, op):
    """``op`` on channel blocks with at least its padding around X, and zeros or none around the others."""
    padding = "+" + ",".join(str(side + draw(st.integers(0, 1))) for side in op.padding)
    halo = draw(st.sampled_from(["", "+1,0,2,1"]))
    return on(machine, op, padding, halo, halo)
