"""Added convolutions of one image become one."""

import numpy as np
import pytest

from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.fusions.convolutions.added import MergeAddedConvolutions
from tests.relax_passes.graphs import bindings, constant, fuse, module, names_of, op, same_numbers, weights
from tests.relax_passes.rewrite import Rewrite

IMAGE = {"x": (2, 4, 7, 6)}
SAME = {"padding": (1, 1)}


def conv(x, *shape, seed=0, **attrs):
    return op.nn.conv2d(x, constant(weights(*shape, seed=seed)), **attrs)


def batch_norm(x, channels=4):
    scale, shift, mean = (constant(weights(channels, seed=n)) for n in (1, 2, 3))
    variance = constant(np.abs(weights(channels, seed=4)) + 0.1)
    return relax.TupleGetItem(op.nn.batch_norm(x, scale, shift, mean, variance, axis=1, epsilon=1e-3), 0)


def bias(seed=0):
    return constant(weights(1, 4, 1, 1, seed=seed))


def merged(body, inputs=IMAGE):
    """The operators that are left, and how many sums of convolutions were merged."""

    def emitted(emit, *variables):
        return body(*variables)

    before = module(inputs, emitted)
    after, names, report = fuse(before, MergeAddedConvolutions())
    same_numbers(before, after)
    assert names_of(before) <= set().union(*names.values())
    found = [b.value.op.name.split(".")[-1] for b in bindings(after) if isinstance(b.value, relax.Call)]
    return sorted(found), report.fusions.get("added_convolutions", 0)


class TestMergeAddedConvolutions(Rewrite):
    rule = MergeAddedConvolutions()
    inputs = IMAGE

    def before(self, x):
        return op.add(
            op.add(conv(x, 4, 4, 3, 3, **SAME), bias()),
            op.add(conv(x, 4, 4, 3, 3, seed=1, **SAME), bias(1)),
        )

    def expected(self, x):
        filters = sum(weights(4, 4, 3, 3, seed=n).astype("float64") for n in (0, 1)).astype("float32")
        shift = sum(weights(1, 4, 1, 1, seed=n).astype("float64") for n in (0, 1)).astype("float32")
        return op.add(op.nn.conv2d(x, constant(filters), **SAME), constant(shift))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_small_filter_lies_among_the_zeros_of_a_large_one(groups):
    def body(x):
        channels = 4 // groups
        large = conv(x, 4, channels, 3, 3, groups=groups, **SAME)
        small = conv(x, 4, channels, 1, 1, groups=groups)
        return op.add(op.add(large, bias()), op.add(op.add(small, bias(1)), batch_norm(x)))

    assert merged(body) == (["add", "conv2d"], 1)


def test_branches_of_other_widths_strides_and_dilations():
    def body(x):
        y = op.add(conv(x, 4, 4, 1, 3, padding=(0, 1)), conv(x, 4, 4, 3, 5, padding=(1, 2)))
        z = op.add(conv(x, 4, 4, 3, 3, strides=(2, 2), **SAME), conv(x, 4, 4, 1, 1, strides=(2, 2)))
        dilated = conv(x, 4, 4, 3, 3, padding=(2, 2), dilation=(2, 2))
        return (
            y,
            z,
            op.add(dilated, conv(x, 4, 4, 1, 1)),
            op.add(dilated, conv(x, 4, 4, 5, 5, padding=(2, 2))),
        )

    # The dilated one is read twice, so it stays.
    assert merged(body)[1] == 2


def test_a_dilated_filter_lies_in_a_wide_one():
    def body(x):
        return op.add(
            conv(x, 4, 4, 3, 3, padding=(2, 2), dilation=(2, 2)), conv(x, 4, 4, 5, 5, padding=(2, 2))
        )

    assert merged(body) == (["conv2d"], 1)


def test_what_else_is_added_stays():
    def body(x, y):
        total = op.add(conv(x, 4, 4, 3, 3, **SAME), y)
        return op.nn.relu(op.add(total, op.add(conv(x, 4, 4, 1, 1), x)))

    assert merged(body, {**IMAGE, "y": (2, 4, 7, 6)}) == (["add", "add", "conv2d", "relu"], 1)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, y: op.add(conv(x, 4, 4, 1, 1), conv(y, 4, 4, 1, 1)),
        lambda x, y: op.add(conv(x, 4, 4, 1, 3, padding=(0, 1)), conv(x, 4, 4, 3, 1, padding=(1, 0))),
        lambda x, y: op.add(conv(x, 4, 4, 1, 1), conv(x, 4, 2, 1, 1, groups=2)),
        lambda x, y: op.add(
            conv(x, 4, 4, 2, 2, padding=(1, 1, 0, 0)), conv(x, 4, 4, 2, 2, padding=(0, 0, 1, 1))
        ),
        lambda x, y: op.add(conv(x, 4, 4, 1, 1), batch_norm(y)),
        lambda x, y: op.add(conv(x, 4, 4, 1, 1), x),
        lambda x, y: op.add(op.nn.conv2d(x, y), op.nn.conv2d(x, y)),
    ],
    ids=["images", "windows", "groups", "paddings", "norm of another", "residual", "computed filters"],
)
def test_others_stay_as_they_are(body):
    filters = "computed" in str(body) or body.__code__.co_names.count("nn")
    inputs = {**IMAGE, "y": (4, 4, 1, 1) if filters else (2, 4, 7, 6)}
    assert merged(body, inputs)[1] == 0


def test_results_that_others_read_stay():
    def body(x):
        y = relax.BlockBuilder.current().emit(conv(x, 4, 4, 3, 3, **SAME))
        return op.add(y, conv(x, 4, 4, 1, 1)), y

    assert merged(body)[1] == 0
