"""The list of CPU spaces: names are unique, and a process can make each again from its class."""

from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.targets.cpu.spaces import CPU_SPACES
from tests.schedules.cpu.running import MACHINES

MACHINE = MACHINES["avx2"]


def first(op):
    return next(space.name for space in CPU_SPACES if space.refuses(op, MACHINE) is None)


def test_names_are_unique_and_those_of_the_records():
    names = [space.name for space in CPU_SPACES]
    assert len(set(names)) == len(names)
    assert all(
        name.startswith("cpu.") and space.version >= 1 for name, space in zip(names, CPU_SPACES, strict=True)
    )


def test_spaces_have_no_state():
    for space in CPU_SPACES:
        again = type(space)()
        assert again.name == space.name and vars(again) == vars(space) == {}


def test_the_first_space_that_serves_an_operator():
    assert first(Matmul((4,), 8, 8)) == "cpu.matmul"
    assert first(AddNorm((2, 3), 8, (8,), 1e-5)) == "cpu.add_norm"
    assert first(Elementwise((4,), "silu")) == "cpu.elementwise"
    image = Conv2d(1, 8, 5, 5, 8, (3, 3), padding=(1, 1, 1, 1))
    assert first(image) == "cpu.conv2d"
    blocks = {"x_layout": "NCHW8c+1,1,1,1", "y_layout": "NCHW8c", "residual_layout": "NCHW8c"}
    assert first(Conv2d(1, 8, 5, 5, 8, (3, 3), padding=(1, 1, 1, 1), **blocks)) == "cpu.conv2d_blocked"
    assert first(Conv2d(1, 8, 5, 5, 8, (3, 3), padding=(1, 1, 1, 1), groups=8, **blocks)) == "cpu.depthwise"
