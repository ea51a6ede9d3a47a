import pytest

from hetero_tvm.ops.activations import ACTIVATIONS
from hetero_tvm.ops.elementwise import Elementwise
from tests.ops.helpers import check
from tests.ops.test_activations import EXACT


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation(name):
    check(Elementwise((3, 5), name), EXACT[name])


def test_a_single_value():
    check(Elementwise((1,), "gelu_erf"), EXACT["gelu_erf"])


def test_cost_label_and_fusion():
    op = Elementwise((2, 3, 4), "silu")
    assert op.size == 24 and op.nbytes == 4 * 48 and op.flops > 0
    assert op.label == "silu_2x3x4"
    assert int(op.workload().attrs["op_pattern"]) == 0  # Relax may fuse it with its neighbours
