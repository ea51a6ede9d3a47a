"""Convolutions on channel blocks, for their tests."""

import dataclasses

PAD = (1, 1, 1, 1)
WINOGRAD_ERROR = 6e-6
"""Error relative to the largest value: transforms with factors up to 5 around sums of a few channels."""


def on(machine, op, x="", y="", residual=""):
    """The op in blocks of the machine's lanes; texts give halos, None leaves X plain."""
    block = f"NCHW{machine.lanes}c"
    layouts = {"y_layout": block + y, "residual_layout": block + residual}
    return dataclasses.replace(op, x_layout="NCHW" if x is None else block + x, **layouts)
