"""A 1x1 convolution and the depthwise one behind it: strides, chunks, blocks; every choice of every knob."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.schedules.cpu.chains.expand_depthwise import ExpandDepthwiseSpace, chain_pays
from tests.schedules.cpu.running import MACHINES, SWEPT, check_points, check_shapes

SPACE = ExpandDepthwiseSpace()
BIAS, BOTH = ("bias",), ("bias", "relu6")


def on(machine, op, x="", y="+1,1,1,1"):
    """The op in blocks of the machine's lanes; texts give halos."""
    block = f"NCHW{machine.lanes}c"
    return dataclasses.replace(op, x_layout=block + x, y_layout=block + y)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", SWEPT)
def test_every_choice_computes_both(machine):
    ops = [
        ExpandDepthwise(2, 20, 9, 7, 22, (3, 3), (1, 1), (1, 1, 1, 1), BOTH, ("bias", "sigmoid")),
        ExpandDepthwise(1, 5, 8, 9, 17, (5, 3), (2, 2), (2, 1, 1, 0), ("relu",), ()),
        ExpandDepthwise(1, 16, 5, 6, 8, (3, 3), (3, 1), (0, 2, 0, 2), (), BIAS),
    ]
    check_shapes(SPACE, [on(machine, op) for op in ops], machine)


@pytest.mark.thorough
@settings(max_examples=8)
@given(st.data())
def test_random_shapes_and_points(data):
    draw = data.draw
    machine = MACHINES[draw(st.sampled_from(sorted(MACHINES)))]
    size, small, side = st.integers(1, 40), st.integers(1, 5), st.integers(0, 2)
    steps = st.sampled_from([(), BIAS, BOTH, ("sigmoid",), ("bias", "silu")])
    op = ExpandDepthwise(
        draw(st.integers(1, 2)),
        draw(size),
        draw(size),
        draw(size),
        draw(size),
        (draw(small), draw(small)),
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        tuple(draw(side) for _ in range(4)),
        draw(steps),
        draw(steps),
    )
    halo = draw(st.sampled_from(["", "+1,0,2,1"]))
    op = on(machine, op, halo, halo)
    assume(SPACE.refuses(op, machine) is None)
    point = {knob.name: draw(st.sampled_from(knob.choices)) for knob in SPACE.knobs(op, machine)}
    check_points(SPACE, op, [point], machine)


def test_default_is_a_choice_and_features_are_finite():
    for machine in MACHINES.values():
        for size, channels, step in ((112, 16, 2), (28, 32, 1), (7, 160, 1)):
            op = ExpandDepthwise(
                1, channels, size, size, 6 * channels, (3, 3), (step, step), (1, 1, 1, 1), BOTH, BOTH
            )
            op = on(machine, op)
            assert SPACE.refuses(op, machine) is None
            point = SPACE.default(op, machine)
            SPACE.check(op, point, machine)
            assert np.isfinite(SPACE.features(op, point, machine)).all()


def test_what_is_refused():
    machine = MACHINES["avx2"]
    op = ExpandDepthwise(1, 8, 9, 9, 16, (3, 3), (1, 1), (1, 1, 1, 1))
    assert SPACE.refuses(on(machine, op), machine) is None
    assert "not in blocks of 8" in SPACE.refuses(op, machine)
    apart = on(machine, dataclasses.replace(op, kernel=(1, 1), strides=(2, 2), padding=(0, 0, 0, 0)))
    assert "leave out rows" in SPACE.refuses(apart, machine)
    assert "not a 1x1" in SPACE.refuses(Conv2d(1, 8, 5, 5, 8, (1, 1)), machine)


def test_it_pays_where_the_image_between_is_large():
    """So it does in the first inverted residual of MobileNetV2, and not in the last."""
    machine = MACHINES["avx512"]
    for size, channels, step, wanted in ((112, 16, 2, True), (56, 24, 1, True), (7, 160, 1, False)):
        op = ExpandDepthwise(
            1, channels, size, size, 6 * channels, (3, 3), (step, step), (1, 1, 1, 1), BOTH, BOTH
        )
        op = on(machine, op)
        between = f"NCHW{machine.lanes}c+1,1,1,1"
        expand = dataclasses.replace(op.expand, y_layout=between)
        depthwise = dataclasses.replace(op.depthwise, x_layout=between)
        assert chain_pays(op, expand, depthwise, machine) is wanted
