"""Points and their knobs: foreign choices are named, JSON gives the same points back."""

import json

import numpy as np
import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.base import DesignSpace, Knob, thaw

OP, MACHINE = Softmax((3,), 4), CpuModel("x")


class Space(DesignSpace):
    name = "test.space"

    def refuses(self, op, machine):
        return None

    def knobs(self, op, machine):
        return Knob("tile", ((4, 2), (1, 1))), Knob("unroll", (4, 1)), Knob("cuts", (1, 2), absent=1)

    def default(self, op, machine):
        return {"tile": (4, 2), "unroll": 4, "cuts": 1}

    def emit(self, op, point, machine):
        raise NotImplementedError


SPACE = Space()


def test_points_of_the_space_pass_the_check():
    SPACE.check(OP, SPACE.default(OP, MACHINE), MACHINE)
    SPACE.check(OP, {"tile": (1, 1), "unroll": 1, "cuts": 2}, MACHINE)
    SPACE.check(OP, {"tile": (1, 1), "unroll": 1}, MACHINE)  # written before the space had ``cuts``


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"tile": (4, 2), "unroll": 3, "cuts": 1}, r"test.space: unroll=3 is not among \(4, 1\)"),
        ({"tile": (4, 2), "cuts": 1}, r"test.space: unroll=None is not among"),
        ({"tile": [4, 2], "unroll": 4}, r"test.space: tile=\[4, 2\] is not among"),
    ],
)
def test_a_foreign_choice_is_named(point, message):
    with pytest.raises(ValueError, match=message):
        SPACE.check(OP, point, MACHINE)


def test_points_come_back_from_json():
    point = {"tile": (4, 2), "unroll": 4, "method": "direct"}
    assert thaw(json.loads(json.dumps(point))) == point


def test_a_space_must_say_what_it_refuses_offers_and_emits():
    with pytest.raises(TypeError, match="abstract"):
        DesignSpace()


def test_what_a_space_need_not_say():
    point = SPACE.default(OP, MACHINE)
    assert SPACE.version == 1 and SPACE.driver is None
    assert SPACE.pack(OP, point, MACHINE) == {}
    assert np.size(SPACE.features(OP, point, MACHINE)) == 0
    assert SPACE.canonical(OP, point, MACHINE) == point
