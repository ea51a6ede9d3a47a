"""Operators over rows, their operands and tolerances, that several tests share."""

import dataclasses

import numpy as np

from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.group_norm import GroupNorm
from tests.schedules.cuda.spaces import HALF, check_all

SINGLE = 4e-6
"""float32: sums of up to some thousand terms, exponentials of the hardware (2 units in the last place)."""
EMBEDDINGS = [
    EmbeddingNorm((2, 3), 40, (Lookup(11, (2, 3)),), (), 1e-5),
    EmbeddingNorm((2, 5), 33, (Lookup(11, (2, 5)), Lookup(3, (1, 5), "int32", 2.0)), (5, 33), 1e-5, True),
    EmbeddingNorm((4, 1), 128, (Lookup(7, (4, 1)),), (4, 1, 128), 1e-6, False, False),
]
GROUPS = [
    GroupNorm((2, 6, 5, 7), 3, 1e-5),
    GroupNorm((1, 8, 4, 4), 2, 1e-5, "silu"),
    GroupNorm((3, 4, 2), 4, 1e-5),
    GroupNorm((2, 4), 2, 1e-5, "relu"),
]


def half(op):
    return dataclasses.replace(op, dtype="float16")


def some(op):
    generator = np.random.default_rng(3)
    table = generator.standard_normal
    return [
        generator.integers(-x.shape[-1], 5, x.shape).astype(x.dtype)
        if np.dtype(x.dtype).kind == "i"
        else table(x.shape).astype(x.dtype)
        for x in op.inputs
    ]


def check_both(space, cases):
    """Pairs of operator and arrays, in float32 and in float16 (random arrays are converted)."""
    check_all(
        [(space, op, None, arrays, SINGLE) for op, arrays in cases]
        + [(space, half(op), None, arrays and some(half(op)), HALF) for op, arrays in cases]
    )
